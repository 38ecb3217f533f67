"""How views answer: with a form, with a change made, or with a problem."""

import re
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar
from urllib.parse import urlencode, urlsplit

from django import forms
from django.contrib import messages
from django.http import HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils.encoding import iri_to_uri
from django.utils.html import format_html
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.safestring import SafeString

from console import polling
from console.api_errors import APIError, Forbidden, NotFound, NotOffered, Unauthorized
from console.attribute_words import WORDS_OF_ATTRIBUTES
from console.forms import FIELDS_OF_ATTRIBUTES, EmptyForm
from console.losses import Loss
from console.reach import out_of_reach
from console.request import ConsoleRequest
from console.same_request import same_request

T = TypeVar("T")


@dataclass(frozen=True)
class FormPage:
    """What is shown around a form, on a page of its own or in a dialog."""

    title: str
    submit: str
    back: str
    intro: str = ""
    # The label of the button that leaves the form without sending it.
    dismiss: str = "Cancel"
    # The button looks dangerous, because the change cannot be undone.
    danger: bool = False
    # Why the form cannot be used, and what to do first; "" if it can be used.
    blocked: str = ""
    # What is lost, if something is deleted or replaced.
    losses: Sequence[Loss] = ()
    # The form changes nothing in the account, so that a read-only key may use it.
    is_reading: bool = False
    # What the API's request has in its body besides the fields, by name; "" if not known.
    sent_too: Mapping[str, Any] = field(default_factory=dict)


def show_form(request: ConsoleRequest, form: forms.Form, page: FormPage) -> HttpResponse:
    """Show the form: on a page of its own or, for htmx, as the content of the dialog."""
    template = "_form.html" if request.htmx else "form.html"
    if not (page.blocked or page.is_reading or form.is_bound):
        page = replace(page, blocked=out_of_reach(request))
    status = 422 if form.errors else 200
    same = same_request(request, form, page.sent_too)
    context = {"form": form, "page": page, "same": same, "heading": _heading(request)}
    return render(request, template, context, status=status)


def show_confirmation(
    request: ConsoleRequest, page: Callable[[], FormPage], do: Callable[[], HttpResponse]
) -> HttpResponse:
    """Ask for confirmation. `page` makes what is around the form, and `do` makes the change."""
    form = EmptyForm(request.POST if request.method == "POST" else None)
    if request.method == "POST" and form.is_valid():
        with problems_beside(form):
            return do()
    return show_form(request, form, page())


def _heading(request: ConsoleRequest) -> str:
    """Return the element for a form's title: h2 in a dialog, as the page behind it has the h1.

    htmx also sends forms that are on a page of their own; those keep h1.
    """
    at = urlsplit(request.htmx.current_url_abs_path or "").path if request.htmx else ""
    return "h1" if not request.htmx or at == request.path else "h2"


@contextmanager
def problems_beside(form: forms.Form, field: str = "") -> Generator[None]:
    """Turn an `APIError` into an error of the form; of `field`, if that one is the cause."""
    try:
        yield
    except Unauthorized as problem:
        form.add_error(None, forms.ValidationError(words_beside(problem)))
    except APIError as problem:
        for at_fault, words in _find_faults(form, field, problem):
            form.add_error(at_fault, forms.ValidationError(words))


# How the API words values that it cannot accept:
# “… invalid: endpoint.branch_id (field required); endpoint.name (…)”.
INVALID = re.compile(r"(?P<path>[\w.]+) \((?P<why>.*?)\)(?:; |$)", re.DOTALL)

# “branch already exists; branch_name:"dev"”.
TAKEN = re.compile(r'(?P<kind>\w+) already exists; \w+_name:"(?P<name>[^"]*)"', re.IGNORECASE)

# How it words an error of one value within a field: “settings.pg_settings.work_mem: must be …”.
NAMED = re.compile(r"(?P<path>\w+(?:\.[\w$]+)+): (?P<why>.*)", re.DOTALL)


def _find_faults(form: forms.Form, field: str, problem: APIError) -> list[tuple[str | None, str]]:
    """Return the fields at fault, None for the whole form, each with what to say about it."""
    _, invalid, complaints = problem.message.partition("invalid: ")
    found: list[tuple[str | None, str]] = []
    for complaint in INVALID.finditer(complaints if invalid else ""):
        for part in reversed(complaint["path"].split(".")):
            name = FIELDS_OF_ATTRIBUTES.get(part, part)
            if name in form.fields:
                found.append((name, f"{_sentence(complaint['why'])}."))
                break
    if found:
        return [(at_fault, _in_labels(form, words)) for at_fault, words in found]
    if taken := TAKEN.search(problem.message):
        words = f"There is a {taken['kind'].lower()} called “{taken['name']}” already."
        return [("name" if "name" in form.fields else field, words)]
    is_its_fault = problem.page_status in (400, 409, 422)
    if is_its_fault and (value := _value_at_fault(form, problem.message)):
        return [value]
    named = next((name for _, name in _attributes(form, problem.message)), field)
    at_fault = named if is_its_fault and named in form.fields else None
    return [(at_fault, _in_labels(form, spell_out(problem)))]


def _value_at_fault(form: forms.Form, words: str) -> tuple[str, str] | None:
    """Return the field at fault for one value within it, and what to say about the value."""
    named = NAMED.fullmatch(words)
    parts = named["path"].split(".") if named else []
    for place, part in enumerate(parts):
        if named and part in form.fields:
            rest = ".".join(parts[place + 1 :])
            return part, f"{rest}: {named['why']}." if rest else named["why"]
    return None


# How the API writes the names of its attributes: words in lower case, joined by underscores.
ATTRIBUTE = re.compile(r"\b[A-Za-z]+(?:_[a-z]+)+\b")


def _attributes(form: forms.Form, words: str) -> list[tuple[str, str]]:
    """Return the attributes that the words name, each with the form's field for it."""
    written = ATTRIBUTE.findall(words)
    fields = [(name, FIELDS_OF_ATTRIBUTES.get(name.lower(), name.lower())) for name in written]
    return [(attribute, name) for attribute, name in fields if name in form.fields]


def _in_plain_words(words: str) -> str:
    """Replace the API's names of attributes by words, if no field of a form has a label for it."""
    return ATTRIBUTE.sub(lambda name: WORDS_OF_ATTRIBUTES.get(name[0], name[0]), words)


def _in_labels(form: forms.Form, words: str) -> str:
    """Replace the API's names of attributes by the labels of the form's fields."""
    for attribute, name in _attributes(form, words):
        words = words.replace(attribute, f"“{form[name].label}”")
    return _in_plain_words(words)


def show_secret(
    request: ConsoleRequest, template: str, context: Mapping[str, object]
) -> HttpResponse:
    """Answer a POST without a redirect, as no other answer may hold the secret. `template` is the
    content of the dialog; on a page of its own, `secret.html` includes it."""
    name = template if request.htmx else "secret.html"
    shown = {**context, "secret_template": template, "heading": _heading(request)}
    return render(request, name, shown)


def choices(request: ConsoleRequest, call: Callable[[], list[T]]) -> list[T]:
    """Return the choices that a form offers. If they cannot be read, a form that was sent does
    without them, so that what was typed is not lost. Otherwise the failure is raised."""
    try:
        return call()
    except APIError:
        if request.method == "POST":
            return []
        raise


def done(
    request: ConsoleRequest, url: str, message: str = "", *, is_live: bool = True
) -> HttpResponse:
    """Answer after a change: go to `url` or, if the browser is there, renew its live region."""
    if message:
        messages.success(request, message)
    if not request.htmx:
        return HttpResponseRedirect(url)
    is_there = urlsplit(request.htmx.current_url_abs_path or "").path == urlsplit(url).path
    if not (is_there and is_live):
        return HttpResponse(headers={"HX-Redirect": iri_to_uri(url)})
    answer = render(request, "_notices.html")
    answer["HX-Reswap"] = "none"
    answer["HX-Trigger"] = "perch:changed"
    return answer


def act(
    request: ConsoleRequest, call: Callable[[], object], *, otherwise: str, message: str = ""
) -> HttpResponse:
    """Do what a button asks for, and go back to its page. A refusal is shown there."""
    try:
        call()
    except Unauthorized:
        raise
    except APIError as problem:
        messages.error(request, _in_plain_words(spell_out(problem)))
        return done(request, back(request, otherwise))
    return done(request, back(request, otherwise), message)


def back(request: ConsoleRequest, otherwise: str) -> str:
    """Return the address that the form names as its origin, if it is within this site."""
    came_from = request.POST.get("next") or request.GET.get("next") or ""
    return came_from if is_own_url(request, came_from) else otherwise


def is_own_url(request: ConsoleRequest, url: str) -> bool:
    return url.startswith("/") and url_has_allowed_host_and_scheme(url, allowed_hosts=None)


def show_problem(request: ConsoleRequest, problem: APIError) -> HttpResponse:
    """Show a problem and how to go on: as a page, as a notice, or in a region's status line."""
    if polling.is_poll(request):
        where = sign_in_url(request) if isinstance(problem, Unauthorized) else ""
        return polling.render_problem(request, problem, sign_in_url=where)
    if isinstance(problem, Unauthorized):
        return ask_to_sign_in(request)
    if request.htmx:
        messages.error(request, spell_out(problem))
        return show_notices(request, status=problem.page_status)
    context = {
        "problem": problem,
        "advice": (request.method == "GET" and problem.advice_to_readers) or problem.advice,
        "retry_url": request.get_full_path() if request.method == "GET" else _page_of(request),
        "is_gone": isinstance(problem, NotFound | NotOffered) and problem.is_told,
        "sign_in_url": sign_in_url(request) if isinstance(problem, Forbidden) else "",
    }
    return render(request, "problem.html", context, status=problem.page_status)


def show_notices(request: ConsoleRequest, *, status: int) -> HttpResponse:
    """Show only the messages, wherever htmx would put its answer."""
    answer = render(request, "_notices.html", status=status)
    answer["HX-Reswap"] = "none"
    return answer


def ask_to_sign_in(request: ConsoleRequest) -> HttpResponse:
    """Ask the user to sign in. For htmx, the open page stays, with everything on it."""
    if request.headers.get("Accept") == "text/event-stream":
        return HttpResponse(status=401)
    if not request.htmx:
        return HttpResponseRedirect(sign_in_url(request))
    messages.error(request, _sign_in_again("You are not signed in", "try again"))
    return show_notices(request, status=401)


def _sign_in_again(why: str, then: str) -> SafeString:
    """Link to the sign-in page in another tab, so that what was typed stays in this one."""
    return format_html(
        '{}. <a href="{}" target="_blank" rel="noopener">Sign in again</a>, then come back here '
        "and {}.",
        why,
        reverse("sign_in"),
        then,
    )


def sign_in_url(request: ConsoleRequest) -> str:
    """Return the address of the sign-in page that leads back to the present page."""
    query = urlencode({"next": _page_of(request)})
    return f"{reverse('sign_in')}?{query}"


def words_beside(problem: APIError) -> str:
    """Like `spell_out`, but for a form: what was typed stays while the user signs in again."""
    if isinstance(problem, Unauthorized):
        return _sign_in_again(_sentence(problem.message), "send the form once more")
    return spell_out(problem)


def spell_out(problem: APIError) -> str:
    """Return the whole problem as one paragraph."""
    if problem.speaks_for_itself:
        return f"{_sentence(problem.message)}."
    parts = [problem.title, problem.message, problem.advice]
    if problem.request_id and problem.page_status >= 500:
        parts.append(f"Request {problem.request_id}")
    return ". ".join(_sentence(part) for part in parts if part) + "."


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:].rstrip(".")


def _page_of(request: ConsoleRequest) -> str:
    """Return the page that the browser shows: neither a fragment nor a button's address."""
    if request.htmx:
        return request.htmx.current_url_abs_path or "/"
    if request.method == "GET":
        return request.get_full_path()
    referer = urlsplit(request.headers.get("Referer", ""))
    is_own = referer.netloc == request.get_host()
    return referer._replace(scheme="", netloc="").geturl() if is_own else "/"

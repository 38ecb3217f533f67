"""How a view answers: a form to fill in, a change made, a problem."""

import re
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import urlencode, urlsplit

from django import forms
from django.contrib import messages
from django.http import HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils.encoding import iri_to_uri
from django.utils.html import format_html
from django.utils.http import url_has_allowed_host_and_scheme

from console import polling
from console.api_errors import APIError, Forbidden, NotFound, NotOffered, Unauthorized
from console.forms import FIELDS_OF_ATTRIBUTES
from console.request import ConsoleRequest

T = TypeVar("T")


@dataclass(frozen=True)
class FormPage:
    """What stands around a form, on its own page or in a dialog."""

    title: str
    submit: str
    back: str
    intro: str = ""
    # Says how to leave it alone.
    dismiss: str = "Cancel"
    # The button's look says that there is no way back.
    danger: bool = False
    # Set where the form cannot be used: says what to do first.
    blocked: str = ""


def show_form(request: ConsoleRequest, form: forms.Form, page: FormPage) -> HttpResponse:
    """The form: as a page of its own, or for htmx as what goes into the dialog."""
    template = "_form.html" if request.htmx else "form.html"
    status = 422 if form.errors else 200
    return render(request, template, {"form": form, "page": page}, status=status)


@contextmanager
def problems_beside(form: forms.Form, field: str = "") -> Generator[None]:
    """Turn what the API refuses into an error of the form; of `field`, if it is one's fault."""
    try:
        yield
    except Unauthorized as problem:
        # Signing in goes on elsewhere, so that what was typed stays here.
        link = format_html(
            '{}. <a href="{}" target="_blank" rel="noopener">Sign in again</a>, '
            "then come back here and send the form once more.",
            _sentence(problem.message),
            reverse("sign_in"),
        )
        form.add_error(None, forms.ValidationError(link))
    except APIError as problem:
        for at_fault, words in _find_faults(form, field, problem):
            form.add_error(at_fault, forms.ValidationError(words))


# How the API words the values it cannot take:
# “… invalid: endpoint.branch_id (field required); endpoint.name (…)”.
INVALID = re.compile(r"(?P<path>[\w.]+) \((?P<why>.*?)\)(?:; |$)", re.DOTALL)

# And of one value within a field: “settings.pg_settings.work_mem: must be …”.
NAMED = re.compile(r"(?P<path>\w+(?:\.[\w$]+)+): (?P<why>.*)", re.DOTALL)


def _find_faults(form: forms.Form, field: str, problem: APIError) -> list[tuple[str | None, str]]:
    """The fields to blame, None for the whole form, and what to say of each."""
    _, invalid, complaints = problem.message.partition("invalid: ")
    found: list[tuple[str | None, str]] = []
    for complaint in INVALID.finditer(complaints if invalid else ""):
        for part in reversed(complaint["path"].split(".")):
            name = FIELDS_OF_ATTRIBUTES.get(part, part)
            if name in form.fields:
                found.append((name, f"{_sentence(complaint['why'])}."))
                break
    if found:
        return found
    if named := NAMED.fullmatch(problem.message):
        parts = named["path"].split(".")
        for place, part in enumerate(parts):
            if part in form.fields:
                rest = ".".join(parts[place + 1 :])
                return [(part, f"{rest}: {named['why']}." if rest else named["why"])]
    is_its_fault = field in form.fields and problem.page_status in (400, 409, 422)
    return [(field if is_its_fault else None, spell_out(problem))]


def choices(request: ConsoleRequest, call: Callable[[], list[T]]) -> list[T]:
    """What a form has on offer. While sending one, doing without beats losing what was typed;
    before, a failure is a page of its own."""
    try:
        return call()
    except APIError:
        if request.method == "POST":
            return []
        raise


def done(
    request: ConsoleRequest, url: str, message: str = "", *, is_live: bool = True
) -> HttpResponse:
    """The change is made: go to `url`, or if the browser is there already, renew what is live."""
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
    """Do what one button asks, and go back to where it stands. A refusal is told there."""
    try:
        call()
    except Unauthorized:
        raise
    except APIError as problem:
        messages.error(request, spell_out(problem))
        return done(request, back(request, otherwise))
    return done(request, back(request, otherwise), message)


def back(request: ConsoleRequest, otherwise: str) -> str:
    """Where the form says it came from, if that is within this site."""
    came_from = request.POST.get("next") or request.GET.get("next") or ""
    return came_from if is_own_url(request, came_from) else otherwise


def is_own_url(request: ConsoleRequest, url: str) -> bool:
    return url.startswith("/") and url_has_allowed_host_and_scheme(url, allowed_hosts=None)


def show_problem(request: ConsoleRequest, problem: APIError) -> HttpResponse:
    """A page, a notice or a line that says what went wrong, and how to go on."""
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
        "retry_url": request.get_full_path() if request.method == "GET" else _page_of(request),
        "is_gone": isinstance(problem, NotFound | NotOffered),
        "sign_in_url": sign_in_url(request) if isinstance(problem, Forbidden) else "",
    }
    return render(request, "problem.html", context, status=problem.page_status)


def show_notices(request: ConsoleRequest, *, status: int) -> HttpResponse:
    """The messages alone, wherever htmx meant to put its answer."""
    answer = render(request, "_notices.html", status=status)
    answer["HX-Reswap"] = "none"
    return answer


def ask_to_sign_in(request: ConsoleRequest) -> HttpResponse:
    if request.htmx:
        return HttpResponse(headers={"HX-Redirect": sign_in_url(request)})
    return HttpResponseRedirect(sign_in_url(request))


def sign_in_url(request: ConsoleRequest) -> str:
    """The sign-in page, returning afterwards to the page that is open now."""
    query = urlencode({"next": _page_of(request)})
    return f"{reverse('sign_in')}?{query}"


def spell_out(problem: APIError) -> str:
    """The whole of a problem in one paragraph."""
    if problem.speaks_for_itself:
        return f"{_sentence(problem.message)}."
    parts = [problem.title, problem.message, problem.advice]
    if problem.request_id and problem.page_status >= 500:
        parts.append(f"Request {problem.request_id}")
    return ". ".join(_sentence(part) for part in parts if part) + "."


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:].rstrip(".")


def _page_of(request: ConsoleRequest) -> str:
    """The page the browser shows: not a fragment of it, nor a button's address."""
    if request.htmx:
        return request.htmx.current_url_abs_path or "/"
    if request.method == "GET":
        return request.get_full_path()
    referer = urlsplit(request.headers.get("Referer", ""))
    is_own = referer.netloc == request.get_host()
    return referer._replace(scheme="", netloc="").geturl() if is_own else "/"

"""How problems are shown: as pages without a stack trace, as notices, in a region's status line,
and beside the fields of a form at fault."""

import re
from collections.abc import Generator
from contextlib import contextmanager
from datetime import datetime
from http import HTTPStatus
from urllib.parse import urlencode

from django import forms
from django.contrib import messages
from django.contrib.messages.storage.cookie import CookieStorage
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.timezone import localtime

from console.api.answers import ATTRIBUTE
from console.api.errors import APIError, Forbidden, NotFound, NotOffered, RequestShown, Unauthorized
from console.forms.api_requests import FIELDS_OF_ATTRIBUTES
from console.forms.fields import WORDS_OF_ATTRIBUTES
from console.pages import live_regions
from console.pages.addresses import page_shown
from console.request import ConsoleRequest
from console.templatetags import console_tags


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    # Plain text, because no page can be rendered for a host name that is not allowed.
    return HttpResponse(
        "Bad request. If you use your own host name, add it to PERCH_ALLOWED_HOSTS.\n",
        content_type="text/plain; charset=utf-8",
        status=HTTPStatus.BAD_REQUEST,
    )


def not_found(request: ConsoleRequest, exception: Exception) -> HttpResponse:
    return refuse(request, 404, "Page not found", "Check the address.")


def server_error(request: ConsoleRequest) -> HttpResponse:
    return refuse(request, 500, "Internal error", "An internal error occurred. Try again.")


def csrf_failure(request: ConsoleRequest, reason: str = "") -> HttpResponse:
    advice = (
        "The form was open too long, or cookies are blocked. Go back, reload the page "
        "and send it again."
    )
    return refuse(request, 403, "Form expired", advice)


def refuse(request: ConsoleRequest, status: int, title: str, advice: str) -> HttpResponse:
    """Answer a request that no view can answer: as a page or, for htmx, as a notice."""
    if getattr(request, "htmx", None) and hasattr(request, "_messages"):
        messages.error(request, f"{title}. {advice}")
        return show_notices(request, status=status)
    context = {"problem": {"title": title, "message": advice}, "is_gone": True}
    return render(request, "problem.html", context, status=status)


def show_problem(request: ConsoleRequest, problem: APIError) -> HttpResponse:
    """Show a problem and how to go on: as a page, as a notice, or in a region's status line."""
    if live_regions.is_poll(request):
        where = sign_in_url(request) if isinstance(problem, Unauthorized) else ""
        return live_regions.render_problem(request, problem, sign_in_url=where)
    if isinstance(problem, Unauthorized):
        return ask_to_sign_in(request)
    if request.htmx:
        messages.error(request, spell_out(problem))
        return show_notices(request, status=problem.page_status)
    context = {
        "problem": problem,
        "advice": problem.advice,
        "retry_url": request.get_full_path() if request.method == "GET" else page_shown(request),
        "is_gone": isinstance(problem, NotFound | NotOffered) and problem.is_told,
        "sign_in_url": sign_in_url(request) if isinstance(problem, Forbidden) else "",
    }
    return render(request, "problem.html", context, status=problem.page_status)


def ask_to_sign_in(request: ConsoleRequest) -> HttpResponse:
    """Ask the user to sign in. For htmx, the open page stays, with everything on it."""
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
    query = urlencode({"next": page_shown(request)})
    return f"{reverse('sign_in')}?{query}"


def words_beside(problem: APIError) -> str:
    """Like `spell_out`, but for a form: what was typed stays while the user signs in again."""
    if isinstance(problem, Unauthorized):
        return _sign_in_again(sentence(problem.message), "send the form again")
    return spell_out(problem)


def spell_out(problem: APIError) -> str:
    """Return the whole problem as one paragraph."""
    if problem.speaks_for_itself:
        return f"{sentence(problem.message)}."
    parts = [problem.title, problem.message, problem.advice]
    if problem.request_id and problem.page_status >= 500:
        parts.append(f"Request {problem.request_id}")
    return ". ".join(sentence(part) for part in parts if part) + "."


def quoted(words: str) -> str:
    """Return the words with the console's quotation marks around the names of things."""
    return re.sub(r'"([^"]*)"', r"“\1”", words)


def sentence(words: str) -> str:
    return console_tags.sentence(words).rstrip(".")


class NoticeStorage(CookieStorage):
    """Messages that are shown once, on the next page, in a cookie of their own. In the session's
    cookie, each page that shows one would write back the session as it was when the page was
    requested. That could undo a sign-in or a switch in another tab."""

    cookie_name = "perch_notices"

    def _update_cookie(self, encoded_data: str | None, response: HttpResponse) -> None:
        """Send no cookie if there are no messages and were none."""
        if encoded_data or self.cookie_name in self.request.COOKIES:
            super()._update_cookie(encoded_data, response)  # type: ignore[misc]


def show_notices(request: ConsoleRequest, *, status: int) -> HttpResponse:
    """Show only the messages, wherever htmx would put its answer."""
    answer = render(request, "_notices.html", status=status)
    answer["HX-Reswap"] = "none"
    return answer


@contextmanager
def problems_beside(form: forms.Form, field: str = "") -> Generator[None]:
    """Turn an `APIError` into an error of the form; of `field`, if that one is the cause. A request
    that is only to be shown is no error."""
    try:
        yield
    except RequestShown:
        pass
    except Unauthorized as problem:
        form.add_error(None, forms.ValidationError(words_beside(problem)))
    except APIError as problem:
        for at_fault, words in _find_faults(form, field, problem):
            form.add_error(at_fault, forms.ValidationError(words))


def _find_faults(form: forms.Form, field: str, problem: APIError) -> list[tuple[str | None, str]]:
    """Return the fields at fault, None for the whole form, each with what to say about it. `field`
    is at fault if the API names a field that the form does not have."""
    if problem.page_status not in (400, 409, 422):
        return [(None, _in_labels(form, spell_out(problem)))]
    found: dict[str, str] = {}
    for error in problem.fields:
        name, value = _field_of(form, error.field)
        words = f"{value}: {error.message}." if value else f"{sentence(error.message)}."
        # The same is said of two fields that contradict each other. Show it once.
        if name:
            found.setdefault(words, name)
    if found:
        return [(name, _in_labels(form, quoted(words))) for words, name in found.items()]
    at_fault = field if field in form.fields else None
    return [(at_fault, _in_labels(form, spell_out(problem)))]


def _field_of(form: forms.Form, path: str) -> tuple[str, str]:
    """Return the form's field for a path in the API's body, and the rest of the path, which leads
    to a value within the field. Both are "" if the form has none."""
    parts = path.split(".")
    for place in range(len(parts) - 1, -1, -1):
        part = parts[place]
        name = part if part in form.fields else FIELDS_OF_ATTRIBUTES.get(part, part)
        if name in form.fields:
            return name, _value_at(form, name, ".".join(parts[place + 1 :]))
    return "", ""


def _value_at(form: forms.Form, name: str, path: str) -> str:
    """Return the line that a path in a list leads to, and any other path as it is."""
    lines = getattr(form, "cleaned_data", {}).get(name)
    if isinstance(lines, list) and path.isdecimal() and int(path) < len(lines):
        return str(lines[int(path)])
    return path


# A size of a compute beside its label, of which the API says the number alone.
SIZE = re.compile(r"(“M(?:in|ax)imum size” \d+(?:\.\d+)?)(?! CU)\b(?!\.\d)")


TIME = re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z")


def translate_message(words: str) -> str:
    """Replace the API's names of attributes by words, if no field of a form has a label for it, and
    its times by those in the reader's zone."""
    words = TIME.sub(lambda found: _in_local_time(found[0]), words)
    return ATTRIBUTE.sub(lambda name: WORDS_OF_ATTRIBUTES.get(name[0], name[0]), words)


def _in_local_time(time: str) -> str:
    try:
        return f"{localtime(datetime.fromisoformat(time)):%Y-%m-%d %H:%M:%S %Z}"
    except (ValueError, OverflowError):
        return time


def _in_labels(form: forms.Form, words: str) -> str:
    """Replace the API's names of attributes by the labels of the form's fields."""
    for attribute in ATTRIBUTE.findall(words):
        name = FIELDS_OF_ATTRIBUTES.get(attribute.lower(), attribute.lower())
        if name in form.fields:
            words = words.replace(attribute, f"“{form[name].label}”")
    return translate_message(SIZE.sub(r"\1 CU", words))

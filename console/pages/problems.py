"""Answers to failures that Django detects: unknown addresses, stale forms, bugs. They show no
stack trace."""

import re
from http import HTTPStatus
from urllib.parse import urlencode

from django.conf import settings
from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from console.api.errors import APIError, Forbidden, NotFound, NotOffered, Unauthorized
from console.pages import live_regions
from console.pages.addresses import page_shown
from console.pages.notices import show_notices
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
    return _page(request, 404, "Page not found", "Check the address.")


def server_error(request: ConsoleRequest) -> HttpResponse:
    advice = "An internal error occurred. Try again."
    return _page(request, 500, "Internal error", advice)


def wrong_method(request: ConsoleRequest) -> HttpResponse:
    advice = "This address only accepts form submissions. Go back and use the button."
    return _page(request, 405, "Method not allowed", advice)


def too_large(request: ConsoleRequest) -> HttpResponse:
    most = settings.DATA_UPLOAD_MAX_MEMORY_SIZE >> 20
    advice = f"Requests can have at most {most} MiB. Nothing was changed."
    return _page(request, 413, "Request too large", advice)


def csrf_failure(request: ConsoleRequest, reason: str = "") -> HttpResponse:
    advice = (
        "The form was open too long, or cookies are blocked. Go back, reload the page "
        "and send it again."
    )
    return _page(request, 403, "Form expired", advice)


def _page(request: ConsoleRequest, status: int, title: str, advice: str) -> HttpResponse:
    if getattr(request, "htmx", None) and hasattr(request, "_messages"):
        messages.error(request, f"{title}. {advice}")
        answer = render(request, "_notices.html", status=status)
        answer["HX-Reswap"] = "none"
        return answer
    return render(request, "lost.html", {"title": title, "advice": advice}, status=status)


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

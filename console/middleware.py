"""What holds for every page: logged, signed in first, failures told as pages, kept in no cache."""

import logging
import time
import uuid
from collections.abc import Callable
from datetime import UTC, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

from django.conf import settings
from django.http import HttpRequest, HttpResponse, HttpResponseForbidden
from django.http.response import HttpResponseBase
from django.middleware.csrf import CsrfViewMiddleware
from django.middleware.gzip import GZipMiddleware
from django.urls import reverse
from django.utils import timezone

from console import changes, logs, service_words, sessions
from console.api_errors import AnotherSignIn, APIError, Unauthorized
from console.management_api import ManagementAPI
from console.request import ConsoleRequest
from console.responses import show_problem
from console.views.problems import too_large, wrong_method

log = logging.getLogger(__name__)

# The rest of the headers went with the answer that the browser has.
KEPT_WHEN_UNCHANGED = {"ETag", "Cache-Control"}
# What a browser heeds with a document alone.
NO_DOCUMENTS = ("text/css", "text/javascript", "text/event-stream")
FOR_DOCUMENTS = ("Content-Security-Policy", "Cross-Origin-Opener-Policy", "Referrer-Policy")

# Seconds.
AT_ONCE = 2.0

GetResponse = Callable[[ConsoleRequest], HttpResponseBase]
View = Callable[..., HttpResponseBase]


def public(view: View) -> View:
    """Mark a view that needs nobody signed in."""
    view.public = True  # type: ignore[attr-defined]
    return view


class RequestLogMiddleware:
    """One line for each request, once its answer is made, with an id that the API is told too.
    The outermost, so that none is answered unseen."""

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response

    def __call__(self, request: ConsoleRequest) -> HttpResponseBase:
        began = time.perf_counter()
        with logs.context(request=str(uuid.uuid4())):
            response = self.get_response(request)
            # Without the query, and without what was sent: the sign-in's form holds a key.
            fields = {
                "method": request.method,
                "path": request.path,
                "status": response.status_code,
                "ms": round((time.perf_counter() - began) * 1000, 1),
                "bytes": _length(response),
                "client": request.META.get("REMOTE_ADDR", ""),
            }
            log.info("answered", extra=fields)
        return response


def _length(response: HttpResponseBase) -> int | None:
    """In bytes; None for a stream that does not say."""
    if isinstance(response, HttpResponse):
        return len(response.content)
    length = response.headers.get("Content-Length")
    return int(length) if length else None


class LeanMiddleware(GZipMiddleware):
    """Few bytes: packed, and of what has not changed only that.

    A secret that is packed together with what somebody else has put into the page can be guessed
    by the length (BREACH). Whatever shows one is therefore the answer to a POST, which no other
    site can have sent, and is not packed; the tokens of forms are masked anew for each answer.
    """

    def process_response(
        self, request: HttpRequest, response: HttpResponseBase
    ) -> HttpResponseBase:
        if response.status_code == 304:
            for name in set(response.headers) - KEPT_WHEN_UNCHANGED:
                del response[name]
            return response
        if response.headers.get("Content-Type", "").startswith(NO_DOCUMENTS):
            for name in FOR_DOCUMENTS:
                del response[name]
        # A stream's pieces must go out as they come.
        if response.streaming or request.method not in ("GET", "HEAD"):
            return response
        return super().process_response(request, response)


class CarefulResponseMiddleware:
    """Answer to our own host names only, out of every cache, with cookies fit for the scheme."""

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response

    def __call__(self, request: ConsoleRequest) -> HttpResponseBase:
        # Raises when the host name is not one of ours, before anything is done for it.
        request.get_host()
        response = self.get_response(request)
        # What is the same for everybody says so itself.
        response.setdefault("Cache-Control", "no-store")
        if request.is_secure():
            for cookie in response.cookies.values():
                cookie["secure"] = True
        return response


class ZoneMiddleware:
    """Tell times as the reader's clock does, which their browser has named in a cookie."""

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response

    def __call__(self, request: ConsoleRequest) -> HttpResponseBase:
        with timezone.override(_zone(request.COOKIES.get("perch_zone", ""))):
            return self.get_response(request)


def _zone(name: str) -> tzinfo:
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError):
        # None was named, or one that is not known here.
        return UTC


class FormsMiddleware(CsrfViewMiddleware):
    """Take forms of our own pages only, by their token.

    Where only the token is wrong, and the browser says that the page is ours, somebody has signed
    in or out since it was made. Nothing is done then, as they may be somebody else now; but the
    view answers, so that what was typed comes back with a new token.
    """

    def process_view(self, request: HttpRequest, *view: Any) -> HttpResponseForbidden | None:
        request.is_out_of_date = False  # type: ignore[attr-defined]
        refusal = super().process_view(request, *view)
        own = f"{request.scheme}://{request.get_host()}"
        if refusal and request.headers.get("Origin") in (own, *settings.CSRF_TRUSTED_ORIGINS):
            # One that came back because nobody was signed in is meant for who signs in then.
            is_awaited = "waits_for_sign_in" in request.POST
            request.is_out_of_date = not is_awaited  # type: ignore[attr-defined]
            return None
        return refusal


class ProblemMiddleware:
    """Tell what the management API refused, wherever the view itself did not."""

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response

    def __call__(self, request: ConsoleRequest) -> HttpResponseBase:
        # Django bounds what it keeps of a form, but not the files that it would put on disk for it:
        # here nobody is known yet, and nothing of it was read.
        if int(request.META.get("CONTENT_LENGTH") or 0) > settings.DATA_UPLOAD_MAX_MEMORY_SIZE:
            return too_large(request)
        response = self.get_response(request)
        return wrong_method(request) if response.status_code == 405 else response

    def process_exception(self, request: ConsoleRequest, error: Exception) -> HttpResponse | None:
        return show_problem(request, error) if isinstance(error, APIError) else None


class SignInMiddleware:
    """Let only the signed in pass, and hand the view the API as they see it."""

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response

    def __call__(self, request: ConsoleRequest) -> HttpResponseBase:
        began = time.monotonic()
        request.keeps_awake = False
        response = self.get_response(request)
        if request.keeps_awake and time.monotonic() - began < AT_ONCE:
            sessions.keep_awake(request)
        return response

    def process_view(
        self, request: ConsoleRequest, view: View, args: Any, kwargs: Any
    ) -> HttpResponse | None:
        if getattr(view, "public", False):
            return None
        sign_in = sessions.present(request)
        if sign_in is None:
            # A form that was sent after signing out elsewhere comes back with what was typed: its
            # view finds that the API refuses whoever has no key, as it does one that was revoked.
            request.api = ManagementAPI("")
            if request.method == "POST":
                return None
            return show_problem(request, Unauthorized("You are not signed in."))
        if _is_of_another(request, sign_in):
            name = sign_in.account.name or "somebody else"
            words = f"In another tab you are {name} now. Reload this page to go on as {name}."
            return show_problem(request, AnotherSignIn(words))
        request.keeps_awake = _is_by_a_person(request)
        request.api = ManagementAPI(sign_in.key, sign_in.shown_server)
        if request.is_out_of_date:
            request.api.refuse_changes()
        request.channel = _channel(request, kwargs.get("project_id", ""))
        if sign_in.account.is_perch:
            service_words.ask(sign_in.shown_server, sign_in.key)
        return None


def _channel(request: ConsoleRequest, project_id: str) -> str:
    """With the mark of what the page will have seen: noted before anything is read for it."""
    url = reverse("project_changes", args=[project_id]) if project_id else reverse("changes")
    seen = changes.mark(request.api.changes, project_id)
    return f"{url}?seen={seen}" if seen else url


# Whom a page was made for, by the mark of the sign-in: its scripts send it with all they ask, and a
# form that came back to be sent once more is the newer of the two.
OF_PAGE, OF_FORM = "Perch-Sign-In", "signed_in_as"


def _is_of_another(request: ConsoleRequest, sign_in: sessions.SignIn) -> bool:
    """Whether a page that is open since before asks, as all tabs have one cookie: it would do and
    show under one name what is another's."""
    if "waits_for_sign_in" in request.POST:
        return False
    made_for = request.POST.get(OF_FORM) or request.headers.get(OF_PAGE) or sign_in.mark
    if made_for == sign_in.mark:
        return False
    # What was typed comes back, with what is to be said of it.
    return not (OF_FORM in request.POST and request.is_out_of_date)


def _is_by_a_person(request: ConsoleRequest) -> bool:
    """Not by a page that was left open and renews itself: that keeps no session awake."""
    if request.method not in ("GET", "HEAD") or request.htmx.boosted:
        return True
    if request.htmx:
        return bool(request.htmx.target == "dialog")
    # Older browsers do not tell.
    return request.headers.get("Sec-Fetch-Mode", "navigate") == "navigate"

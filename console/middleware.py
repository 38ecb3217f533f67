"""What holds for every page: logged, signed in first, failures told as pages, kept in no cache."""

import logging
import time
import uuid
from collections.abc import Callable
from datetime import UTC, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.middleware.gzip import GZipMiddleware
from django.utils import timezone

from console import logs, sessions
from console.api_errors import APIError, Unauthorized
from console.management_api import ManagementAPI
from console.request import ConsoleRequest
from console.responses import show_problem
from console.views.problems import wrong_method

log = logging.getLogger(__name__)

# The rest of the headers went with the answer that the browser has.
KEPT_WHEN_UNCHANGED = {"ETag", "Cache-Control"}

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


class ProblemMiddleware:
    """Tell what the management API refused, wherever the view itself did not."""

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response

    def __call__(self, request: ConsoleRequest) -> HttpResponseBase:
        response = self.get_response(request)
        return wrong_method(request) if response.status_code == 405 else response

    def process_exception(self, request: ConsoleRequest, error: Exception) -> HttpResponse | None:
        return show_problem(request, error) if isinstance(error, APIError) else None


class SignInMiddleware:
    """Let only the signed in pass, and hand the view the API as they see it."""

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response

    def __call__(self, request: ConsoleRequest) -> HttpResponseBase:
        return self.get_response(request)

    def process_view(
        self, request: ConsoleRequest, view: View, args: Any, kwargs: Any
    ) -> HttpResponse | None:
        if getattr(view, "public", False):
            return None
        key = sessions.api_key(request)
        if not key:
            return show_problem(request, Unauthorized("You are not signed in."))
        request.api = ManagementAPI(key)
        return None

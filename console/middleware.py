"""What holds for every page: it is logged, requires a sign-in, shows failures as pages, and is not
cached."""

import logging
import time
import uuid
from collections.abc import Callable
from datetime import UTC, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

from django.conf import settings
from django.http import (
    HttpRequest,
    HttpResponse,
    HttpResponseForbidden,
    HttpResponseNotAllowed,
    JsonResponse,
)
from django.http.response import HttpResponseBase
from django.middleware.csrf import CsrfViewMiddleware
from django.middleware.gzip import GZipMiddleware
from django.utils import timezone
from django.utils.deprecation import MiddlewareMixin

from console import client_address, logs
from console.api.errors import AnotherSignIn, APIError, Unauthorized
from console.api.management_api import ManagementAPI
from console.forms.fields import AS_CURL
from console.memory import Reservation
from console.pages import service_notice
from console.pages.problems import refuse, show_problem
from console.request import ConsoleRequest, View
from console.sign_in import sessions

log = logging.getLogger(__name__)

# The browser has the other headers from the answer that it keeps.
KEPT_WHEN_UNCHANGED = {"ETag", "Cache-Control"}
# Headers that browsers heed only for documents are not sent with these types.
STATIC_TYPES = ("text/css", "text/javascript")
DOCUMENT_HEADERS = ("Content-Security-Policy", "Cross-Origin-Opener-Policy", "Referrer-Policy")

# The methods that a page may have.
PAGE_METHODS = ("GET", "HEAD", "POST")

# Seconds. Only an answer made within this time renews the session's cookie, because another tab may
# have changed the cookie during a longer one.
MAX_RENEWAL_SECONDS = 2.0

GetResponse = Callable[[ConsoleRequest], HttpResponseBase]


class Middleware:
    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response


class RequestLogMiddleware(Middleware):
    """Logs one line per request, once its answer is made, with an id that the API gets too. It is
    the outermost middleware, so that every request is logged."""

    def __call__(self, request: ConsoleRequest) -> HttpResponseBase:
        began = time.perf_counter()
        peer = request.META.get("REMOTE_ADDR", "")
        if client_address.is_trusted(peer, settings.TRUSTED_PROXIES):
            # Cookies are marked as secure if the browser used TLS.
            scheme = request.headers.get("X-Forwarded-Proto", request.scheme)
            request.META["wsgi.url_scheme"] = "https" if scheme == "https" else "http"
        client = request.META["REMOTE_ADDR"] = client_address.client_of(
            peer, request.headers.get("X-Forwarded-For", ""), settings.TRUSTED_PROXIES
        )
        with logs.context(request=str(uuid.uuid4())), client_address.client_context(client):
            response = self.get_response(request)
            # The query and the body are not logged: the sign-in form holds a key.
            fields = {
                "method": request.method,
                "path": request.path,
                "status": response.status_code,
                "ms": round((time.perf_counter() - began) * 1000, 1),
                "bytes": _length(response),
                "client": client,
            }
            log.info("answered", extra=fields)
        return response


def _length(response: HttpResponseBase) -> int | None:
    """Return the length in bytes; None for a stream of unknown length."""
    if isinstance(response, HttpResponse):
        return len(response.content)
    length = response.headers.get("Content-Length")
    return int(length) if length else None


class MemoryMiddleware(Middleware):
    """Gives each request a reservation of memory, which lasts until its answer has been sent. No
    other middleware but the log may replace the answer, which would then not be closed."""

    def __call__(self, request: ConsoleRequest) -> HttpResponseBase:
        request.memory = Reservation()
        try:
            response = self.get_response(request)
            if isinstance(response, HttpResponse):
                # What the page was made of is gone.
                request.memory.shrink(len(response.content))
        except BaseException:
            request.memory.release()
            raise
        response._resource_closers.append(request.memory.release)  # type: ignore[attr-defined]
        return response

    def process_view(self, request: ConsoleRequest, view: View, *given: Any) -> None:
        if not getattr(view, "public", False) and (sign_in := sessions.present(request)):
            request.memory.account = sign_in.whose


class HealthMiddleware(Middleware):
    """Answers whether this process works, for monitoring and load balancers. These may ask by
    address, under a host name that is not the console's. The API's health is its own: a console
    without the API still shows pages that say so."""

    def __call__(self, request: ConsoleRequest) -> HttpResponseBase:
        if request.path == "/healthz":
            return JsonResponse({"status": "ok"}, headers={"Cache-Control": "no-store"})
        return self.get_response(request)


class LeanMiddleware(GZipMiddleware):
    """Keeps answers small: compresses them, and sends those without content with few headers. A
    secret that is compressed together with text that somebody else has put into the page can be
    guessed from the length (BREACH). So every secret is shown only in the answer to a POST, which
    no other site can have sent, and which is not compressed; nor are the rows of tables, which are
    shown to a GET. The tokens of forms are masked differently in each answer."""

    def process_response(
        self, request: HttpRequest, response: HttpResponseBase
    ) -> HttpResponseBase:
        if response.status_code in (204, 304):
            for name in set(response.headers) - KEPT_WHEN_UNCHANGED:
                del response[name]
            return response
        if response.headers.get("Content-Type", "").startswith(STATIC_TYPES):
            for name in DOCUMENT_HEADERS:
                del response[name]
        # The pieces of a stream must be sent as they arrive.
        shows_secrets = getattr(request, "shows_secrets", False)
        if response.streaming or shows_secrets or request.method not in ("GET", "HEAD"):
            return response
        return super().process_response(request, response)


class CarefulResponseMiddleware(Middleware):
    """Answers only for the console's own host names, forbids caching, and makes cookies secure."""

    def __call__(self, request: ConsoleRequest) -> HttpResponseBase:
        # The console's own cookies have no backslashes. Some versions of Python decode those of a
        # cookie in time that grows with the square of their number: 8 KiB took 0.3 s.
        if "\\" in (cookies := request.META.get("HTTP_COOKIE", "")):
            request.META["HTTP_COOKIE"] = cookies.replace("\\", "")
        # Raises for a host name that is not the console's, before anything is done for it.
        request.get_host()
        response = self.get_response(request)
        # An answer that is the same for every user sets the header itself.
        response.setdefault("Cache-Control", "no-store")
        if request.is_secure():
            for cookie in response.cookies.values():
                cookie["secure"] = True
        return response


class ZoneMiddleware(Middleware):
    """Shows times in the zone of the reader's clock, which the browser has stored in a cookie."""

    def __call__(self, request: ConsoleRequest) -> HttpResponseBase:
        with timezone.override(_zone(request.COOKIES.get("perch_zone", ""))):
            return self.get_response(request)

    def process_view(self, request: ConsoleRequest, *view: Any) -> None:
        # What was typed is in the zone that its form named. The browser's may be another since.
        if "zone" in request.POST:
            timezone.activate(_zone(request.POST["zone"]))


def _zone(name: str) -> tzinfo:
    try:
        return ZoneInfo(name) if name else UTC
    except (ValueError, OSError, KeyError):
        # It is not known here.
        return UTC


class FormsMiddleware(CsrfViewMiddleware):
    """Accepts forms of the console's own pages only, by their CSRF token. If only the token is
    wrong, and the browser says that the page is the console's own, somebody has signed in or out
    since the page was made. The change is then refused, as the user may be another one now. The
    view still answers, so that what was typed is returned with a new token."""

    def process_view(self, request: HttpRequest, *view: Any) -> HttpResponseForbidden | None:
        request.is_out_of_date = False  # type: ignore[attr-defined]
        refusal = super().process_view(request, *view)
        own = f"{request.scheme}://{request.get_host()}"
        if refusal and request.headers.get("Origin") in (own, *settings.CSRF_TRUSTED_ORIGINS):
            # A form returned because nobody was signed in is meant for the user who signs in next.
            is_awaited = "waits_for_sign_in" in request.POST
            request.is_out_of_date = not is_awaited  # type: ignore[attr-defined]
            return None
        return refusal


class ProblemMiddleware(Middleware):
    """Shows what the management API refused, if the view itself did not."""

    def __call__(self, request: ConsoleRequest) -> HttpResponseBase:
        response = self.get_response(request)
        if response.status_code != 405:
            return response
        advice = "This address only accepts form submissions. Go back and use the button."
        return refuse(request, 405, "Method not allowed", advice)

    def process_exception(self, request: ConsoleRequest, error: Exception) -> HttpResponse | None:
        return show_problem(request, error) if isinstance(error, APIError) else None


class MethodMiddleware(MiddlewareMixin):
    """Refuses methods that no page has. A view that accepts fewer is marked by Django's decorators.
    It is the innermost middleware, so that this is the last reason to refuse a request."""

    def process_view(
        self, request: ConsoleRequest, view: View, args: Any, kwargs: Any
    ) -> HttpResponse | None:
        # Django's own views refuse methods themselves.
        if request.method in PAGE_METHODS or hasattr(view, "view_class"):
            return None
        return HttpResponseNotAllowed(PAGE_METHODS)


class SignInMiddleware(Middleware):
    """Lets only signed-in users pass, and gives the view the API as they see it."""

    def __call__(self, request: ConsoleRequest) -> HttpResponseBase:
        began = time.monotonic()
        request.keeps_awake = False
        response = self.get_response(request)
        if request.keeps_awake and time.monotonic() - began < MAX_RENEWAL_SECONDS:
            sessions.keep_awake(request)
        return response

    def process_view(
        self, request: ConsoleRequest, view: View, args: Any, kwargs: Any
    ) -> HttpResponse | None:
        if getattr(view, "public", False):
            return None
        sign_in = sessions.present(request)
        if sign_in is None:
            # A form that was sent after signing out elsewhere is returned with what was typed. The
            # view finds that the API refuses a request without a key, like one with a revoked key.
            request.api = ManagementAPI("")
            if request.method == "POST":
                return None
            return show_problem(request, Unauthorized("You are not signed in."))
        if _is_of_another(request, sign_in):
            name = sign_in.account.name or "someone else"
            words = f"You are {name} in another tab now. Reload this page to continue as {name}."
            return show_problem(request, AnotherSignIn(words))
        request.keeps_awake = _is_by_a_person(request)
        request.api = ManagementAPI(
            sign_in.key,
            sign_in.shown_server,
            has_marks=sign_in.account.is_perch,
            once=request.POST.get("once", ""),
        )
        request.api.transport.is_out_of_date = request.is_out_of_date
        request.api.transport.only_shows = AS_CURL in request.POST
        if sign_in.account.is_perch:
            service_notice.ask(sign_in.shown_server, sign_in.key)
        return None


# Where a request names the sign-in that its page was made for, by its mark. htmx sends the header
# with every request. The field counts first: a form that was returned is newer than its page.
SIGN_IN_HEADER, SIGN_IN_FIELD = "Perch-Sign-In", "signed_in_as"


def _is_of_another(request: ConsoleRequest, sign_in: sessions.SignIn) -> bool:
    """Whether the page that sends the request was made for another user. All tabs share one cookie,
    so the page would show and do things under the wrong name."""
    if "waits_for_sign_in" in request.POST:
        return False
    made_for = request.POST.get(SIGN_IN_FIELD) or request.headers.get(SIGN_IN_HEADER)
    if not made_for or sign_in.is_marked(made_for):
        return False
    # A form that is out of date goes to its view, which returns it with what was typed.
    return not (SIGN_IN_FIELD in request.POST and request.is_out_of_date)


def _is_by_a_person(request: ConsoleRequest) -> bool:
    """Whether a person sent the request, and not an open page that renews itself. Only requests of
    persons keep the session awake."""
    if request.method not in ("GET", "HEAD") or request.htmx.boosted:
        return True
    if request.htmx:
        return bool(request.htmx.target == "dialog")
    # Older browsers do not send this header.
    return request.headers.get("Sec-Fetch-Mode", "navigate") == "navigate"

"""The API's access log and its figures, and the request id, which the logs of all processes
contain."""

import logging
import re
import time
import uuid
from collections.abc import Callable
from datetime import datetime

from django.http import HttpRequest, HttpResponse

from controlplane import clock, logs
from controlplane.metrics import figures
from controlplane.traces import spans
from controlplane.traces.context import TraceContext, carrying

log = logging.getLogger(__name__)

REQUEST_ID = re.compile(r"[A-Za-z0-9_.:-]{1,64}")


def request_id(request: HttpRequest) -> str:
    """The caller's X-Request-ID if it is well-formed, otherwise a new UUID."""
    known = request.META.get("perch.request_id")
    if known is None:
        given = request.headers.get("X-Request-ID", "")
        known = given if REQUEST_ID.fullmatch(given) else str(uuid.uuid4())
        request.META["perch.request_id"] = known
    return str(known)


class RequestLogMiddleware:
    """Logs and counts each request, once its response is made. This is the outermost middleware,
    so that every log line about a request has its id and every response is logged."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        began, began_at = time.perf_counter(), clock.now()
        given = TraceContext.parse(request.headers.get("traceparent", ""))
        span = spans.child_of(given)
        with (
            logs.context(request=request_id(request), trace=span.trace_id if span else ""),
            carrying(span),
            figures.REQUESTS_UNDER_WAY.track_inprogress(),
        ):
            response = self.get_response(request)
            seconds = time.perf_counter() - began
            account = getattr(request, "auth", None)
            # The path without the query, because users sometimes put keys in the query by mistake.
            fields = {
                "method": request.method,
                "path": request.path,
                "status": response.status_code,
                "ms": round(seconds * 1000, 1),
                # The length of a stream is not known yet.
                "bytes": None if response.streaming else len(response.content),
                "client": request.META.get("REMOTE_ADDR", ""),
                "account": account.id if account else None,
            }
            log.info("answered", extra=fields)
            route = route_of(request)
            figures.note_request(request.method or "", route, response.status_code, seconds)
            if span is not None:
                _note_span(request, response, route, span, given, began_at)
        return response


def _note_span(
    request: HttpRequest,
    response: HttpResponse,
    route: str,
    span: TraceContext,
    given: TraceContext | None,
    began_at: datetime,
) -> None:
    about = {
        "http.request.method": request.method,
        "http.route": f"/{route}" if route else None,
        "http.response.status_code": response.status_code,
        "perch.request": request_id(request),
    }
    error = f"status {response.status_code}" if response.status_code >= 500 else ""
    name = f"{request.method} /{route}" if route else str(request.method)
    spans.note(name, span, given, began_at, clock.now(), serves=True, error=error, about=about)


def route_of(request: HttpRequest) -> str:
    """The template of the request's path, such as "api/v2/projects/{project_id}"; "" if the path is
    none of the API's."""
    found = request.resolver_match
    return found.route.replace("<", "{").replace(">", "}") if found else ""

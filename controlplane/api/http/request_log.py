"""The API's access log and its figures, and the request id, which the logs of all processes
contain."""

import logging
import re
import time
import uuid
from collections.abc import Callable

from django.http import HttpRequest, HttpResponse

from controlplane import logs
from controlplane.metrics import figures

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
        began = time.perf_counter()
        with (
            logs.context(request=request_id(request)),
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
            figures.note_request(
                request.method or "", route_of(request), response.status_code, seconds
            )
        return response


def route_of(request: HttpRequest) -> str:
    """The template of the request's path, such as "api/v2/projects/{project_id}"; "" if the path is
    none of the API's."""
    found = request.resolver_match
    return found.route.replace("<", "{").replace(">", "}") if found else ""

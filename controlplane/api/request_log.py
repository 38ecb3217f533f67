"""The API's access log, and the id that a request is followed by through all processes."""

import logging
import re
import time
import uuid
from collections.abc import Callable

from django.http import HttpRequest, HttpResponse

from controlplane import logs

log = logging.getLogger(__name__)

REQUEST_ID = re.compile(r"[A-Za-z0-9_.:-]{1,64}")


def request_id(request: HttpRequest) -> str:
    """The caller's X-Request-ID where it sent a sound one, else one of our own."""
    known = request.META.get("perch.request_id")
    if known is None:
        given = request.headers.get("X-Request-ID", "")
        known = given if REQUEST_ID.fullmatch(given) else str(uuid.uuid4())
        request.META["perch.request_id"] = known
    return str(known)


class RequestLogMiddleware:
    """One line for each request, once its answer is made. The outermost, so that every line
    about a request bears its id, and none is answered unseen."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        began = time.perf_counter()
        with logs.context(request=request_id(request)):
            response = self.get_response(request)
            account = getattr(request, "auth", None)
            # Of the address without its query: that is where keys are pasted by mistake.
            fields = {
                "method": request.method,
                "path": request.path,
                "status": response.status_code,
                "ms": round((time.perf_counter() - began) * 1000, 1),
                # Of a stream nobody knows yet.
                "bytes": None if response.streaming else len(response.content),
                "client": request.META.get("REMOTE_ADDR", ""),
                "account": account.id if account else None,
            }
            log.info("answered", extra=fields)
        return response

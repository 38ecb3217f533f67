"""Turns every error into a JSON body `{request_id, code, message, errors}`, never into HTML."""

import logging
from collections.abc import Callable, Mapping, Sequence

from django.db import InterfaceError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from ninja import NinjaAPI
from ninja.errors import AuthenticationError, HttpError, ValidationError

from controlplane.api.http.field_errors import (
    MAX_VALUES,
    Entry,
    TooManyValues,
    message_of,
    not_offered,
    of_refusal,
    of_validation,
)
from controlplane.api.http.not_offered import PREFIX, why_not_offered, words_of_missing
from controlplane.api.http.request_limits import TooManyRequests
from controlplane.api.http.request_log import request_id
from controlplane.services.errors import (
    Conflict,
    EndpointDisabled,
    Forbidden,
    HostAway,
    HostFull,
    Invalid,
    Locked,
    NotFound,
    OutsideBounds,
    PasswordNotStored,
    ServiceError,
    TooManyAtOnce,
    TooManyUnfinished,
    Unprocessable,
)
from controlplane.services.rules.idempotency import AnsweredBefore
from controlplane.services.rules.plan_limits import QuotaExceeded
from controlplane.services.rules.request_rates import RateLimited

log = logging.getLogger(__name__)

STATUS_OF: Mapping[type[ServiceError], int] = {
    Invalid: 400,
    Forbidden: 403,
    NotFound: 404,
    EndpointDisabled: 406,
    OutsideBounds: 406,
    Conflict: 409,
    PasswordNotStored: 412,
    Unprocessable: 422,
    Locked: 423,
    QuotaExceeded: 423,
    RateLimited: 429,
    TooManyAtOnce: 429,
    HostFull: 503,
}
# A missing, a wrong and a revoked key get the same message, so that an untrusted caller does not
# learn which of them it was.
UNAUTHENTICATED = "supplied credentials do not pass authentication"


def error_response(
    request: HttpRequest,
    status: int,
    message: str,
    *,
    code: str = "",
    errors: Sequence[Entry] = (),
) -> JsonResponse:
    """The response to a refused request. `errors` are the fields at fault, if there are any."""
    body = {
        "request_id": request_id(request),
        "code": code,
        "message": message,
        "errors": list(errors),
    }
    return JsonResponse(body, status=status)


def set_retry_after(response: HttpResponse) -> HttpResponse:
    """Set `Retry-After: 1`, because the same request may succeed a second later."""
    response.headers["Retry-After"] = "1"
    return response


class JsonErrorsMiddleware:
    """Turns the errors that the API's own handlers do not see into JSON: unknown paths and
    methods, requests that Django itself refuses, and exceptions. Adds the request's id to each
    response."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        # Postgres cannot store NUL, so no resource can have it in its name.
        if "\0" in request.path:
            response: HttpResponse = error_response(
                request, 404, "not found: a path cannot contain a NUL character"
            )
        elif "%00" in request.META.get("QUERY_STRING", ""):
            response = error_response(request, 400, "invalid request: NUL character")
        elif "HTTP_TRANSFER_ENCODING" in request.META:
            # Django reads only as many bytes as Content-Length states. It would ignore this body.
            response = error_response(request, 411, "a body must be sent with its Content-Length")
        else:
            response = self.get_response(request)
        content_type = response.headers.get("Content-Type", "")
        if response.status_code >= 400 and not content_type.startswith("application/json"):
            response = _in_json(request, response)
        if not response.streaming:
            # Without Content-Length the response would be sent in chunks, each in its own packet.
            response.headers["Content-Length"] = str(len(response.content))
        response.headers["x-neon-ret-request-id"] = request_id(request)
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Cache-Control"] = "no-store"
        return response

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse | None:
        return None if isinstance(error, Http404) else unexpected_response(request, error)


def _in_json(request: HttpRequest, refused: HttpResponse) -> HttpResponse:
    """Convert Django's response to an unknown path or method, or to a request that Django cannot
    read, into the API's error format."""
    status = refused.status_code
    code, message = "", refused.reason_phrase.lower()
    if status == 404:
        code, message = words_of_missing(request)
    elif status == 405:
        message = "method not allowed"
        if why_not_offered(str(request.method), request.path.removeprefix(PREFIX)):
            code, message = words_of_missing(request)
    response = error_response(request, status, message, code=code)
    if status == 405 and (allowed := refused.headers.get("Allow")):
        response.headers["Allow"] = allowed
    return response


def too_many_requests(request: HttpRequest, error: TooManyRequests) -> HttpResponse:
    words = f"{error}; try again when others have ended"
    return set_retry_after(error_response(request, 429, words))


def install_error_handlers(api: NinjaAPI) -> None:
    @api.exception_handler(ServiceError)
    def refused(request: HttpRequest, error: ServiceError) -> HttpResponse:
        response = error_response(
            request,
            _status_of(error),
            error.message,
            code=error.code,
            errors=of_refusal(request, error),
        )
        return set_retry_after(response) if isinstance(error, Locked | TooManyAtOnce) else response

    @api.exception_handler(HostAway)
    @api.exception_handler(TooManyUnfinished)
    def not_scheduled(request: HttpRequest, error: HostAway | TooManyUnfinished) -> HttpResponse:
        status = 503 if isinstance(error, HostAway) else 423
        return set_retry_after(error_response(request, status, str(error)))

    @api.exception_handler(AuthenticationError)
    def unauthenticated(request: HttpRequest, error: AuthenticationError) -> HttpResponse:
        return error_response(request, 401, UNAUTHENTICATED)

    @api.exception_handler(TooManyRequests)
    def too_many(request: HttpRequest, error: TooManyRequests) -> HttpResponse:
        return too_many_requests(request, error)

    @api.exception_handler(RateLimited)
    def too_often(request: HttpRequest, error: RateLimited) -> HttpResponse:
        response = refused(request, error)
        response.headers["Retry-After"] = str(error.retry_after)
        return response

    @api.exception_handler(AnsweredBefore)
    def answered_before(request: HttpRequest, error: AnsweredBefore) -> HttpResponse:
        response = HttpResponse(
            error.answer.body,
            status=error.answer.status,
            content_type="application/json; charset=utf-8",
        )
        response.headers["Idempotent-Replayed"] = "true"
        return response

    @api.exception_handler(ValidationError)
    def undecodable(request: HttpRequest, error: ValidationError) -> HttpResponse:
        errors = of_validation(error)
        if refused := not_offered(error):
            return error_response(request, 422, refused, code="NOT_OFFERED", errors=errors)
        return error_response(request, 400, f"invalid request: {message_of(error)}", errors=errors)

    @api.exception_handler(HttpError)
    def refused_by_ninja(request: HttpRequest, error: HttpError) -> HttpResponse:
        message = str(error)
        if isinstance(error.__cause__, TooManyValues):
            return error_response(request, 413, f"a body may have at most {MAX_VALUES:,} values")
        if message == "Cannot parse request body":
            message = "invalid request: decode application/json: not valid JSON"
        return error_response(request, error.status_code, message)

    @api.exception_handler(Exception)
    def unexpected(request: HttpRequest, error: Exception) -> HttpResponse:
        return unexpected_response(request, error)


def _status_of(error: ServiceError) -> int:
    return next(STATUS_OF[kind] for kind in type(error).__mro__ if kind in STATUS_OF)


def unexpected_response(request: HttpRequest, error: Exception) -> HttpResponse:
    fields = {"method": request.method, "path": request.path}
    if isinstance(error, OperationalError | InterfaceError):
        # No traceback is logged: the place of the query does not explain why the database does
        # not answer.
        log.error("database does not answer", extra={**fields, "error": str(error).strip()})
        response = error_response(request, 503, "the database does not answer; try again")
        return set_retry_after(response)
    log.error("unexpected exception", extra=fields, exc_info=error)
    return error_response(request, 500, "internal error")

"""The HTTP part of `Idempotency-Key`. `services.rules.idempotency` documents what it guarantees."""

from collections.abc import Callable
from contextlib import ExitStack

from django.db import DatabaseError, InterfaceError
from django.http import HttpRequest, HttpResponse

from controlplane.api.http.errors import unexpected_response
from controlplane.models import ApiKey
from controlplane.services.rules.idempotency import Answer, claimed, fingerprint_of

METHODS = frozenset({"POST", "PATCH", "DELETE"})
# Statuses of responses that ask the caller to retry, or to retry with a valid API key. Such a
# request has changed nothing, and the next one with the idempotency key counts as the first.
NOT_KEPT = frozenset({401, 408, 423, 429})
# Bytes of a refusal that is stored.
MAX_KEPT_REFUSAL = 4096


class IdempotencyMiddleware:
    """The innermost middleware. Ends the transaction that `begin` has begun, before any part of
    the response is sent."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        try:
            with ExitStack() as transactions:
                request.META["perch.transactions"] = transactions
                response = self.get_response(request)
                claim = request.META.get("perch.claim")
                if claim is not None and is_kept(response):
                    claim.answer = Answer(response.status_code, response.content.decode())
        except (DatabaseError, InterfaceError) as error:
            # The change and its stored response are either both committed or both rolled back.
            # The caller can send the same request again to find out which.
            return unexpected_response(request, error)
        return response


def begin(request: HttpRequest, api_key: ApiKey) -> None:
    """If the request has an idempotency key, begin a transaction in which the request is served and
    its response is stored. The caller has authenticated and authorized the request.

    Raises what `services.rules.idempotency.claimed` raises.
    """
    key = request.headers.get("Idempotency-Key")
    if key is None or request.method not in METHODS:
        return
    address = request.get_full_path().encode()
    fingerprint = fingerprint_of(request.method.encode(), address, request.body)
    transactions: ExitStack = request.META["perch.transactions"]
    claim = transactions.enter_context(claimed(api_key, key, fingerprint))
    request.META["perch.claim"] = claim


def is_kept(response: HttpResponse) -> bool:
    """True if the response is final, and is stored for repeated requests. A long refusal is not: it
    repeats what the caller sent, and the request has changed nothing."""
    status = response.status_code
    if status >= 400 and len(response.content) > MAX_KEPT_REFUSAL:
        return False
    return status < 500 and status not in NOT_KEPT

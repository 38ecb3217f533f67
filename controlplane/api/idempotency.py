"""`Idempotency-Key`, as HTTP has it: `services.idempotency` says what it promises."""

from collections.abc import Callable
from contextlib import ExitStack

from django.db import DatabaseError, InterfaceError
from django.http import HttpRequest, HttpResponse

from controlplane.api.errors import unexpected_response
from controlplane.models import ApiKey
from controlplane.services.idempotency import Answer, claimed, fingerprint_of

METHODS = frozenset({"POST", "PATCH", "DELETE"})
# Answers that say to try again, or to do so with a good key. The request has changed nothing, and
# the next one with the key is the first again.
NOT_KEPT = frozenset({401, 408, 423, 429})


class IdempotencyMiddleware:
    """The innermost. Ends what `begin` has begun, before anything of the answer is sent."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        try:
            with ExitStack() as transactions:
                request.META["perch.transactions"] = transactions
                response = self.get_response(request)
                claim = request.META.get("perch.claim")
                if claim is not None and is_kept(response.status_code):
                    claim.answer = Answer(response.status_code, response.content.decode())
        except (DatabaseError, InterfaceError) as error:
            # Either the change and its answer are kept, or neither: the same request again tells.
            return unexpected_response(request, error)
        return response


def begin(request: HttpRequest, api_key: ApiKey) -> None:
    """Have the request, if it bears an idempotency key, be served in a transaction that also
    keeps its answer. Called once the caller is known to be who may ask for it.

    Raises as `services.idempotency.claimed` does.
    """
    key = request.headers.get("Idempotency-Key")
    if key is None or request.method not in METHODS:
        return
    address = request.get_full_path().encode()
    fingerprint = fingerprint_of(request.method.encode(), address, request.body)
    transactions: ExitStack = request.META["perch.transactions"]
    claim = transactions.enter_context(claimed(api_key, key, fingerprint))
    request.META["perch.claim"] = claim


def is_kept(status: int) -> bool:
    """Whether an answer with this status is the request's last word."""
    return status < 500 and status not in NOT_KEPT

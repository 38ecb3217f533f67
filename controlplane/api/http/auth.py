"""Authenticates requests by bearer API keys (specification, section 5)."""

import time
from collections.abc import Callable
from functools import wraps
from typing import cast

import gevent
from django.http import HttpRequest, HttpResponse, UnreadablePostError
from ninja.errors import HttpError
from ninja.security import HttpBearer

from controlplane.actors import Actor, ActorType, acting_as
from controlplane.api.http import idempotency
from controlplane.api.http.errors import too_many_requests
from controlplane.api.http.key_limits import check_key_limits, route_of
from controlplane.api.http.request_limits import (
    TooManyRequests,
    count_request,
    counted,
    until_answered,
)
from controlplane.database.base import release_connection
from controlplane.models import Account, ApiKey
from controlplane.services import accounts
from controlplane.services.rules.request_rates import admit_request

# Seconds within which a request's body must have arrived.
BODY_TIMEOUT = 30.0
# Seconds by which the response to a wrong key is delayed.
REFUSAL_DELAY = 0.05
MAX_KEYS_REMEMBERED = 10_000
# Digests of keys that this process has found to be valid. They are checked again at each request.
_valid_lately: set[str] = set()


class AuthenticatedRequest(HttpRequest):
    """A request with a valid API key. Every view of the API gets one."""

    auth: Account
    api_key: ApiKey


def without_key(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """The view, for callers without a key. Their requests are counted by address, together with
    those whose keys may be wrong."""

    @wraps(view)
    def counted_view(request: HttpRequest, **named: str) -> HttpResponse:
        try:
            with counted(f"address {request.META.get('REMOTE_ADDR', '')}"):
                return view(request, **named)
        except TooManyRequests as error:
            return too_many_requests(request, error)

    return counted_view


class ApiKeyAuth(HttpBearer):
    def authenticate(self, request: HttpRequest, token: str) -> Account | None:
        key = self._key_of(request, token)
        if key is None:
            return None
        _admit(cast(AuthenticatedRequest, request), key)
        return key.account

    def _key_of(self, request: HttpRequest, token: str) -> ApiKey | None:
        address = request.META.get("REMOTE_ADDR", "")
        digest = ApiKey.digest_of(token)
        # Keys that may be wrong are counted together, so that whoever tries many takes few database
        # connections and little time.
        with counted(f"key {digest}" if digest in _valid_lately else f"address {address}"):
            key = accounts.authenticate(token, address=address)
            if key is None:
                _valid_lately.discard(digest)
                accounts.note_refused(token, address=address)
                release_connection()
                time.sleep(REFUSAL_DELAY)
                return None
        if len(_valid_lately) >= MAX_KEYS_REMEMBERED:
            _valid_lately.clear()
        _valid_lately.add(digest)
        count_request(request, key.account_id)
        caller = Actor(ActorType.USER, name=key.name, api_key_id=key.id, address=address)
        until_answered(request).enter_context(acting_as(caller))
        return key


def _admit(request: AuthenticatedRequest, key: ApiKey) -> None:
    """Check the rate limit and the key's reach, for every route, then receive the body, and begin
    the transaction of the idempotency key.

    That transaction begins last, so that it contains neither a refused request nor a wait for the
    client. Raises RateLimited, Forbidden, NotFound, HttpError, RequestDataTooBig, and whatever
    `idempotency.begin` raises.
    """
    # ninja sets `auth` only on requests that it goes on to serve. The access log also needs the
    # account of requests that are refused here.
    request.auth = key.account
    request.api_key = key
    admit_request(key, route=f"{request.method} {route_of(request)}")
    check_key_limits(request, key)
    _receive_body(request)
    idempotency.begin(request, key)


def _receive_body(request: HttpRequest) -> None:
    """Wait for the request's body, without a database connection. Raises HttpError if it does not
    arrive in time or to its end, and RequestDataTooBig."""
    length = int(request.META.get("CONTENT_LENGTH") or 0)
    if not length:
        return
    release_connection()
    late = HttpError(408, "invalid request: it was not sent in time")
    try:
        with gevent.Timeout(BODY_TIMEOUT, late):
            is_whole = len(request.body) == length
    except UnreadablePostError:
        is_whole = False
    if not is_whole:
        raise HttpError(400, "invalid request: its body is incomplete")

"""Authenticates requests by bearer API keys (specification, section 5)."""

from typing import cast

from django.http import HttpRequest
from ninja.security import HttpBearer

from controlplane.actors import Actor, ActorType, acting_as
from controlplane.api import idempotency
from controlplane.api.fair_shares import ACCOUNT, take_project, take_share, until_answered
from controlplane.api.key_limits import check_key_limits, project_of, route_of
from controlplane.api.turns import ACCOUNT_IN_ENVIRON
from controlplane.models import Account, ApiKey
from controlplane.services import accounts
from controlplane.services.request_rates import take_turn


class AuthenticatedRequest(HttpRequest):
    """A request with a valid API key. Every view of the API gets one."""

    auth: Account
    api_key: ApiKey


class ApiKeyAuth(HttpBearer):
    def authenticate(self, request: HttpRequest, token: str) -> Account | None:
        key = self._key_of(request, token)
        if key is None:
            return None
        _admit(cast(AuthenticatedRequest, request), key)
        return key.account

    def _key_of(self, request: HttpRequest, token: str) -> ApiKey | None:
        # The share of the key comes first: a flood of requests with one key, valid or not, does
        # not reach the database.
        take_share(request, f"key {ApiKey.digest_of(token)}")
        address = request.META.get("REMOTE_ADDR", "")
        key = accounts.authenticate(token, address=address)
        if key is None:
            accounts.note_refused(token, address=address)
            return None
        request.META[ACCOUNT_IN_ENVIRON] = key.account_id
        take_share(request, f"{ACCOUNT}{key.account_id}")
        caller = Actor(ActorType.USER, name=key.name, api_key_id=key.id, address=address)
        until_answered(request).enter_context(acting_as(caller))
        return key


def _admit(request: AuthenticatedRequest, key: ApiKey) -> None:
    """Check the rate limit and the key's reach, for every route, then wait for the project that the
    request changes, and begin the transaction of the idempotency key.

    That transaction begins last, so that it contains neither a refused request nor a wait in this
    process. Raises RateLimited, Forbidden, NotFound, Locked, TooManyRequests, and whatever
    `idempotency.begin` raises.
    """
    # ninja sets `auth` only on requests that it goes on to serve. The access log also needs the
    # account of requests that are refused here.
    request.auth = key.account
    request.api_key = key
    take_turn(key, route=f"{request.method} {route_of(request)}")
    check_key_limits(request, key)
    if request.method != "GET" and (project_id := project_of(request)):
        take_project(request, key.account_id, project_id)
    idempotency.begin(request, key)

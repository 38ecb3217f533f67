"""Authenticates requests by bearer API keys (specification, section 5), and refuses requests of
limited keys, by path and method alone.

A key that is limited to a project reaches the routes below that project and the routes that are
listed here. So it cannot reach a new route elsewhere until that route is listed. A read-only key
may send GET to every route except those that reveal a password (`SECRETS`).
"""

import time
from collections.abc import Callable
from functools import wraps
from typing import cast

import gevent
from django.conf import settings
from django.core.exceptions import RequestDataTooBig
from django.http import HttpRequest, HttpResponse, UnreadablePostError
from ninja.errors import HttpError
from ninja.security import HttpBearer

from controlplane.actors import Actor, ActorType, acting_as
from controlplane.address_ranges import network_of
from controlplane.api.http import idempotency
from controlplane.api.http.errors import error_response, too_many_requests
from controlplane.api.http.request_limits import (
    TooManyRequests,
    count_request,
    counted,
    until_answered,
)
from controlplane.database.base import release_connection
from controlplane.models import Account, ApiKey
from controlplane.services import accounts
from controlplane.services.errors import Forbidden
from controlplane.services.projects import find_project
from controlplane.services.rules.request_rates import admit_request

PREFIX = "api/v2"
PROJECT = "/projects/<project_id>"
# Routes that always return a password. The view of connection strings checks its query itself.
SECRETS = frozenset({f"{PROJECT}/branches/<branch_id>/roles/<role_name>/reveal_password"})
# Routes outside its project that a key limited to a project may read: its account, the regions and
# their state, and the list of projects, which then contains only its own.
BESIDE_THE_PROJECT = frozenset(
    {
        "/projects",
        "/projects/shared",
        "/users/me",
        "/users/me/organizations",
        "/organizations/<org_id>",
        "/auth",
        "/status",
        "/regions",
        "/mark",
    }
)


def route_of(request: HttpRequest) -> str:
    """The pattern of the route that serves the request, such as "/projects/<project_id>"."""
    match = request.resolver_match
    return match.route.removeprefix(PREFIX) if match else ""


def project_of(request: HttpRequest) -> str | None:
    """The id of the project that the path names; None if it names none. There may be no such
    project."""
    match = request.resolver_match
    return match.kwargs.get("project_id") if match else None


def check_key_limits(request: HttpRequest, key: ApiKey) -> None:
    """Check that the key may send this request. Raises Forbidden if it may not, and NotFound for
    another account's project, as an unlimited key would get."""
    route = route_of(request)
    if key.read_only:
        if request.method != "GET":
            raise Forbidden(f"this API key is read-only: {request.method} is not permitted")
        if route in SECRETS:
            check_passwords(key)
    if key.project_id is not None:
        _check_project(request, key, key.project_id, route)


def check_passwords(key: ApiKey) -> None:
    """Check that the key may read passwords. Raises Forbidden."""
    if key.read_only:
        raise Forbidden("this API key is read-only: it cannot read passwords")


def _check_project(request: HttpRequest, key: ApiKey, own: str, route: str) -> None:
    if route in BESIDE_THE_PROJECT and request.method == "GET":
        return
    limited = f'this API key is limited to the project "{own}"'
    if route != PROJECT and not route.startswith(f"{PROJECT}/"):
        raise Forbidden(f"{limited}: {request.method} {request.path} is not permitted")
    project_id = project_of(request)
    assert project_id is not None
    if project_id != own:
        find_project(key.account, project_id)
        raise Forbidden(f'{limited}: it cannot access the project "{project_id}"')
    if route == PROJECT and request.method == "DELETE":
        raise Forbidden(f"{limited}, and may not delete the project itself")


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


def without_key(
    view: Callable[..., HttpResponse], *, counted_as: str = "address"
) -> Callable[..., HttpResponse]:
    """The view, for callers without a key. Their requests are counted by address, also while their
    bodies are received: by default together with those whose keys may be wrong."""

    @wraps(view)
    def counted_view(request: HttpRequest, **named: str) -> HttpResponse:
        try:
            with counted(_network(request, counted_as)):
                _receive_body(request)
                return view(request, **named)
        except TooManyRequests as error:
            return too_many_requests(request, error)
        except HttpError as error:
            return error_response(request, error.status_code, str(error))

    return counted_view


def _network(request: HttpRequest, counted_as: str = "address") -> str:
    """Whose request it is for `counted`, as long as no key says so."""
    return f"{counted_as} {network_of(request.META.get('REMOTE_ADDR', ''))}"


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
        with counted(f"key {digest}" if digest in _valid_lately else _network(request)):
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
    client. Raises RateLimited, Forbidden, NotFound, HttpError, and whatever `idempotency.begin`
    raises.
    """
    # ninja sets `auth` only on requests that it goes on to serve. The access log also needs the
    # account of requests that are refused here.
    request.auth = key.account
    request.api_key = key
    admit_request(key, route=f"{request.method} {route_of(request)}")
    check_key_limits(request, key)
    _receive_body(request)
    if admitted := request.META.get("perch.admitted"):
        admitted()
    idempotency.begin(request, key)


def _receive_body(request: HttpRequest) -> None:
    """Wait for the request's body, without a database connection. Raises HttpError if it does not
    arrive in time or to its end, or is too long."""
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
    except RequestDataTooBig as error:
        longest = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
        raise HttpError(413, f"a body may have at most {longest} bytes") from error
    if not is_whole:
        raise HttpError(400, "invalid request: its body is incomplete")

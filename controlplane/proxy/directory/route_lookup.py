"""Finds the endpoint that a client names, and the verifier that its password is checked against:
from the rows, and from what SQL has changed since in the endpoint's compute, if it runs."""

import time
from dataclasses import dataclass, replace
from functools import partial

from controlplane import clock
from controlplane.compute.catalog.reading import is_placeholder, is_verifier, placeholder_of
from controlplane.models.connecting import RouteRow, ServedHost, find_route
from controlplane.models.names import is_reserved_role
from controlplane.proxy.authentication.access_rules import AccessRules, parse_rules
from controlplane.proxy.directory.cache import EndpointCache
from controlplane.proxy.directory.changes import ComputeStates
from controlplane.proxy.directory.compute_logins import ComputeLogins, RoleLogin
from controlplane.proxy.directory.control_database import ControlDatabase
from controlplane.proxy.directory.interface import ComputeAddress, RoleIdentity, Route
from controlplane.proxy.limits.pending_clients import LookupTimes
from controlplane.proxy.wire.errors import LoginUnknown, PasswordFailed, WakeFailed

# Seconds within which a compute must answer whether a role may log in. Before the client has
# authenticated, the rows are used if the compute does not answer. Afterwards, the proxy retries.
_BEFORE_PASSWORD_TIMEOUT = 1.0
_AFTER_PASSWORD_TIMEOUT = 5.0
# Seconds in which the compute need not confirm a role again. What SQL changes in it may take
# effect so much later for requests over HTTP; what changes the rows does so at once.
_RECENT = 1.0
# What is read for a client that has not named its role yet. No role has this name.
_NO_ROLE = ""


@dataclass(frozen=True, slots=True)
class _CachedRow:
    """What the rows say of a name. That they say nothing is remembered too."""

    row: RouteRow | None


@dataclass(frozen=True, slots=True)
class _FoundRoute:
    route: Route | None
    # When its lookup began, by `time.monotonic`.
    began_at: float


class RouteLookup:
    def __init__(
        self,
        database: ControlDatabase,
        served: ServedHost,
        states: ComputeStates,
        logins: ComputeLogins,
    ) -> None:
        self._database = database
        self._served = served
        self._states = states
        self._logins = logins
        self.cache: EndpointCache[_CachedRow] = EndpointCache(
            is_unavailable=lambda: database.is_unavailable, keeps_temporary=True
        )
        self.found: EndpointCache[_FoundRoute] = EndpointCache(is_unavailable=lambda: False)
        self.lookups = LookupTimes(time.monotonic)

    async def find(self, endpoint_id: str, role: str) -> Route | None:
        """See `Directory.route`."""
        find = partial(self._find, endpoint_id, role)
        found = await self.found.refresh(endpoint_id, role, find, is_permanent=_is_confirmed)
        return found.route

    def recent(self, endpoint_id: str, role: str) -> Route | None:
        """See `Directory.recent`."""
        found = self.found.known(endpoint_id, role)
        return found.route if found and time.monotonic() - found.began_at < _RECENT else None

    async def _find(self, endpoint_id: str, role: str) -> _FoundRoute:
        began_at = time.monotonic()
        return _FoundRoute(await self._look_up(endpoint_id, role), began_at)

    async def _look_up(self, endpoint_id: str, role: str) -> Route | None:
        row = await self._read(endpoint_id, role)
        if row is None:
            return None
        by_row = _route_of(row, verifier_by_row(row), row.compute_oid)
        if not row.is_active or row.elsewhere or is_reserved(role):
            return by_row
        try:
            state = await self._states.find(endpoint_id)
            if state.run is None:
                return by_row
            row, login = await self._ask_compute(row, role, timeout=_BEFORE_PASSWORD_TIMEOUT)
        except (LoginUnknown, WakeFailed):
            return by_row  # `confirm` asks the compute again after the password
        known = is_in_rows(row, login)
        if not known:
            self._logins.synchronize_soon(endpoint_id, row.account_id)
        route = _route_of(row, verifier_by_compute(row, login), login.oid if login else None)
        return replace(route, is_in_rows=known, confirmed_by=state.run if login else None)

    async def of_any_role(self, endpoint_id: str) -> Route | None:
        """See `Directory.route_of_any_role`."""
        try:
            row = self.cache.any_of(endpoint_id).row
        except LookupError:
            row = await self._read(endpoint_id, _NO_ROLE)
        return None if row is None else _route_of(row, verifier_by_row(row), row.compute_oid)

    async def rules(self, endpoint_id: str, role: str) -> AccessRules | None:
        """See `Directory.rules`."""
        row = await self._read(endpoint_id, role)
        return parse_rules(row.access, is_protected=row.protected) if row else None

    async def confirm(
        self, route: Route, role: str, address: ComputeAddress, *, pooled: bool
    ) -> RoleIdentity:
        """See `Directory.confirm`."""
        # The pooler gets its roles from the rows, and may have sessions of an older role.
        if pooled and not route.is_in_rows:
            if not await self._logins.synchronize(route.endpoint_id, route.account_id):
                raise LoginUnknown
            # The notification of this change may not have arrived yet.
            self.cache.invalidate(route.endpoint_id)
        row = await self._read(route.endpoint_id, role)
        if row is None:
            raise PasswordFailed(role)
        was_confirmed = route.confirmed_by is not None and route.confirmed_by == address.run
        if was_confirmed and _identity_of(row, route.identity.oid) == route.identity:
            return route.identity
        row, login = await self._ask_compute(row, role, timeout=_AFTER_PASSWORD_TIMEOUT)
        if not is_in_rows(row, login):
            if pooled:
                await self._logins.synchronize(route.endpoint_id, route.account_id)
            else:
                self._logins.synchronize_soon(route.endpoint_id, route.account_id)
        if verifier_by_compute(row, login) != route.verifier:
            raise PasswordFailed(role)
        if login is None:
            raise LoginUnknown  # it is yet to be created there, perhaps in place of an older role
        return _identity_of(row, login.oid)

    async def _ask_compute(
        self, row: RouteRow, role: str, *, timeout: float
    ) -> tuple[RouteRow, RoleLogin | None]:
        """Returns the compute's answer, and a row that is no older. Raises LoginUnknown."""
        login = await self._logins.ask(
            row.endpoint_id, row.branch_id, row.account_id, role, timeout=timeout
        )
        if is_older(row, login):
            self.cache.invalidate(row.endpoint_id)
            read = await self._read(row.endpoint_id, role)
            if read is None:
                raise LoginUnknown
            row = read
        # A role that an operation is about to drop is not the row's, which may be newer.
        return row, None if login is not None and login.oid in row.doomed else login

    async def _read(self, endpoint_id: str, role: str) -> RouteRow | None:
        cached = await self.cache.read(
            endpoint_id, role, partial(self._ask, endpoint_id, role), is_permanent=_has_verifier
        )
        return cached.row

    async def _ask(self, endpoint_id: str, role: str) -> _CachedRow:
        ask = partial(find_route, endpoint_id=endpoint_id, role=role, served=self._served)
        with self.lookups.timing():
            return _CachedRow(await self._database.ask(ask))


def _is_confirmed(found: _FoundRoute) -> bool:
    return found.route is not None and found.route.confirmed_by is not None


def _has_verifier(cached: _CachedRow) -> bool:
    return cached.row is not None and bool(cached.row.verifier)


def _route_of(row: RouteRow, verifier: str | None, oid: int | None) -> Route:
    return Route(
        endpoint_id=row.endpoint_id,
        account_id=row.account_id,
        account_connections=row.connections,
        verifier=verifier,
        disabled=row.disabled,
        always_pooled=row.pooler_enabled,
        identity=_identity_of(row, oid),
        rules=parse_rules(row.access, is_protected=row.protected),
        host_id=row.host_id,
        elsewhere=row.elsewhere,
        is_moving=row.is_moving,
    )


def _identity_of(row: RouteRow, oid: int | None) -> RoleIdentity:
    if oid is not None and row.compute_oid not in (None, oid):
        return RoleIdentity(None, oid)  # SQL has created another role of that name
    return RoleIdentity(row.role_id, oid, row.sessions_end_at)


def verifier_by_row(row: RouteRow) -> str | None:
    """Returns None if the role may not log in, as far as the rows say."""
    has_expired = row.valid_until is not None and row.valid_until <= clock.now()
    return None if row.no_login or has_expired else row.verifier or None


def verifier_by_compute(row: RouteRow, login: RoleLogin | None) -> str | None:
    """Returns None if the role may not log in. `login` is None if the compute has no such role."""
    if login is None:
        # If the row has an OID, SQL has dropped the role. Otherwise the role is yet to be created
        # in the compute, which will then decide.
        return verifier_by_row(row) if row.compute_oid is None else None
    if not login.can_login:
        return None
    if row.password_is_newer:
        return row.verifier or None
    if login.has_expired:
        return None
    if is_placeholder(login.password) or (login.password is None and row.compute_oid is None):
        return row.verifier or None
    return login.password if login.password and is_verifier(login.password) else None


def is_in_rows(row: RouteRow, login: RoleLogin | None) -> bool:
    """True if the rows agree with what the compute says of the role."""
    if login is None:
        return row.compute_oid is None
    if row.password_is_newer:
        return True  # an operation is about to apply the API's password to the compute
    return (
        row.compute_oid == login.oid
        and login.can_login is not row.no_login
        and login.password == placeholder_of(row.verifier or "")
    )


def is_older(row: RouteRow, login: RoleLogin | None) -> bool:
    """True if the row was read before it got the password that a placeholder stands for now."""
    return (
        login is not None
        and is_placeholder(login.password)
        and login.password != placeholder_of(row.verifier or "")
        and not row.password_is_newer
    )


def is_reserved(role: str) -> bool:
    """True if no client can have this role, whatever a compute says of it."""
    return is_reserved_role(role) or len(role.encode()) > 63 or "\0" in role

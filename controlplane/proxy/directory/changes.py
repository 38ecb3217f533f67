"""What the rows say of an endpoint's compute for a client, and every change of that. The database's
notifications (see the migration `0001_squashed_0029`) are passed on to the caches and to those that
wait for the endpoint, and end clients' sessions that the change no longer permits."""

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import psycopg

from controlplane.models import MAY_SUCCEED, Action, EndpointState
from controlplane.models.connecting import (
    CHANGES,
    RoleState,
    StateRow,
    UnfinishedOperation,
    find_roles,
    find_state,
)
from controlplane.operations.actions.table import actions, details_of
from controlplane.proxy.authentication.access_rules import AccessRules, parse_rules
from controlplane.proxy.directory.cache import EndpointCache
from controlplane.proxy.directory.control_database import ControlDatabase, answer_by_deadline
from controlplane.proxy.directory.fair_queue import FairQueue
from controlplane.proxy.directory.interface import Client, Clients
from controlplane.proxy.wire.errors import ControlPlaneUnavailable, ProjectMoved, WakeFailed

log = logging.getLogger(__name__)

# Seconds after which a silent connection is tested. A server that hangs closes no connection.
_HEARTBEAT_INTERVAL = 4.0
_CONNECT_RETRY_DELAY = 1.0
# Seconds after which rows are read again even without a notification, which may have been lost with
# its connection.
_POLL_INTERVAL = 1.0
# How often the roles of an endpoint's clients are read again because some have just confirmed
# theirs. What is confirmed later is confirmed by newer rows.
_MAX_LOOKS = 10


@dataclass(frozen=True, slots=True)
class ComputeState:
    branch_id: str
    account_id: str
    disabled: bool
    # Identifies one run of the compute; None while the compute cannot be used.
    run: str | None
    # True if the unfinished operations lead to an active endpoint. If they do not, and `run` is
    # None, nothing will change until somebody asks for a start.
    is_coming: bool


class ComputeStates:
    """Of computes on the host `host_id`."""

    def __init__(self, database: ControlDatabase, host_id: str) -> None:
        self._database = database
        self._host_id = host_id
        self.cache: EndpointCache[ComputeState] = EndpointCache(
            is_unavailable=lambda: database.is_unavailable
        )

    async def find(self, endpoint_id: str) -> ComputeState:
        """Returns the endpoint's state, from memory if it is known. Raises WakeFailed if there is
        no such endpoint, ProjectMoved if it is on another host, ControlPlaneUnavailable."""
        return await self.cache.read(
            endpoint_id,
            "",
            partial(self._ask, endpoint_id),
            is_permanent=lambda state: state.run is not None,
        )

    async def look(self, endpoint_id: str) -> ComputeState:
        """As `find`, but always asks the database."""
        self.cache.invalidate(endpoint_id)
        return await self.find(endpoint_id)

    async def _ask(self, endpoint_id: str) -> ComputeState:
        row = await self._database.ask(partial(find_state, endpoint_id=endpoint_id))
        if row is None:
            raise WakeFailed("endpoint not found")
        if row.host_id != self._host_id:
            raise ProjectMoved
        return _state_of(row)


def _state_of(row: StateRow) -> ComputeState:
    heading_for = _state_after(row.unfinished) or row.current_state
    usable = row.current_state == EndpointState.ACTIVE and not any(
        map(will_stop_compute, row.unfinished)
    )
    return ComputeState(
        branch_id=row.branch_id,
        account_id=row.account_id,
        disabled=row.disabled,
        run=row.started_at.isoformat() if usable and row.started_at else None,
        is_coming=heading_for == EndpointState.ACTIVE,
    )


def will_stop_compute(operation: UnfinishedOperation) -> bool:
    """True if a running compute is of no use to a client, because it is about to be suspended, to
    be restarted for new settings or to start elsewhere."""
    details = details_of(operation.action, operation.details)
    return actions()[Action(operation.action)].keeps_clients_out(details, operation.status)


def why_compute_stops(unfinished: Sequence[UnfinishedOperation]) -> str:
    """Returns why the running compute is about to stop, in words for its clients; "" if it is
    not."""
    stops = [one.action for one in unfinished if will_stop_compute(one)]
    if not stops:
        return ""
    if Action.START_COMPUTE in stops:
        return "the project moves to another host; connect again"
    if _state_after(unfinished) == EndpointState.ACTIVE:
        return "the endpoint is restarted; connect again"
    return "the endpoint is suspended; connect again to start it"


def _state_after(unfinished: Sequence[UnfinishedOperation]) -> str | None:
    """Returns the endpoint's state once all of the operations, oldest first, are done. None if they
    do not change it. An operation that is being cancelled is ignored."""
    states = [
        actions()[Action(one.action)].endpoint_after
        for one in unfinished
        if one.status in MAY_SUCCEED
    ]
    return next((state for state in reversed(states) if state), None)


class ChangeListener:
    def __init__(self, database: ControlDatabase, caches: Sequence[EndpointCache[Any]]) -> None:
        self._database = database
        self._caches = caches
        self._awaited: dict[str, asyncio.Event] = {}
        # The branch that each endpoint's clients were last connected to, and their account. Kept
        # even while changes are not received, because clients from before a change may still be
        # connected.
        self._served: dict[str, tuple[str, str]] = {}
        # Endpoints that have changed, and whose clients are to be checked.
        self._unchecked = FairQueue()
        # The rules that each endpoint's clients were last checked by. Later clients were checked
        # when they connected.
        self._checked_by: dict[str, AccessRules | None] = {}
        # Set once changes have been received for the first time.
        self.are_received = asyncio.Event()

    def next_change(self, endpoint_id: str) -> asyncio.Event:
        """Returns an event that is set with the endpoint's next change, or once changes may have
        been missed.

        The caller must get it before it reads the state, so that it misses no change right after.
        """
        return self._awaited.setdefault(endpoint_id, asyncio.Event())

    async def wait_for(self, change: asyncio.Event) -> None:
        """Returns once the change has come, or after some time: the state must be read again."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(change.wait(), _POLL_INTERVAL)

    def note_branch(self, endpoint_id: str, branch_id: str, account_id: str) -> None:
        """Notes that clients of the account's endpoint are connected to this branch: see `run`."""
        self._served[endpoint_id] = branch_id, account_id

    def branch_of(self, endpoint_id: str) -> str:
        """Returns the branch that the endpoint's clients were last connected to; "" if they were
        dropped."""
        return self._served.get(endpoint_id, ("", ""))[0]

    async def run(self, clients: Clients) -> None:
        """Receives changes until cancelled. If the database does not answer, tries again.

        Ends the clients whose endpoint was deleted, disabled or reassigned since they connected,
        whose role may not be there any more, or whose address is no longer allowed.
        """
        while True:
            try:
                await self._listen(clients)
            except (psycopg.Error, ControlPlaneUnavailable, TimeoutError, OSError) as error:
                reason = str(error) or type(error).__name__
                log.warning("cannot receive changes from the database", extra={"error": reason})
            await asyncio.sleep(_CONNECT_RETRY_DELAY)

    async def _listen(self, clients: Clients) -> None:
        connection = await self._database.connect()
        checking = asyncio.create_task(self._check_all(clients))
        try:
            await answer_by_deadline(connection, connection.execute(f"LISTEN {CHANGES}".encode()))
            for cache in self._caches:
                cache.resume()
            self.are_received.set()
            # Changes may have been missed until now.
            self._checked_by.clear()
            self._check_soon(self._served)
            while not checking.done():
                # All that have arrived. Nothing here waits for anything else: until a notification
                # is read, what is remembered counts as true.
                arrived = connection.notifies(timeout=_HEARTBEAT_INTERVAL, stop_after=1)
                changed = dict.fromkeys([one.payload async for one in arrived])
                if not changed:
                    await answer_by_deadline(connection, connection.execute("SELECT 1"))
                self._note_changed(changed)
                self._check_soon(changed)
            await checking
        finally:
            self._notifications_ended()
            checking.cancel()
            await connection.close()

    def _notifications_ended(self) -> None:
        for cache in self._caches:
            cache.suspend()
        awaited, self._awaited = self._awaited, {}
        for event in awaited.values():
            event.set()

    def _note_changed(self, changed: Iterable[str]) -> None:
        for endpoint_id in changed:
            for cache in self._caches:
                cache.invalidate(endpoint_id)
            if event := self._awaited.pop(endpoint_id, None):
                event.set()

    def _check_soon(self, endpoint_ids: Iterable[str]) -> None:
        for endpoint_id in endpoint_ids:
            if endpoint_id in self._served:
                _, account_id = self._served[endpoint_id]
                self._unchecked.put(endpoint_id, account_id)

    async def _check_all(self, clients: Clients) -> None:
        """Checks the clients of endpoints that have changed, until cancelled."""
        while True:
            endpoint_id = await self._unchecked.take()
            try:
                await self._check(endpoint_id, clients)
            except ControlPlaneUnavailable:
                self._check_soon([endpoint_id])
                await asyncio.sleep(_CONNECT_RETRY_DELAY)

    async def _check(self, endpoint_id: str, clients: Clients) -> None:
        """Drops the endpoint's clients if they are connected to another branch, or the endpoint is
        deleted or disabled. Otherwise drops or parks those that may not stay."""
        served = self.branch_of(endpoint_id)
        if not served:
            return
        row = await self._database.ask(partial(find_state, endpoint_id=endpoint_id))
        if row is None or row.disabled or row.branch_id != served:
            # Clients may have connected to another branch during the query. `drop` ends them too,
            # and they connect again.
            self._served.pop(endpoint_id, None)
            self._checked_by.pop(endpoint_id, None)
            if row is None:
                because = "the endpoint was deleted"
            else:
                moved = "the endpoint was moved to another branch; connect again"
                because = "the endpoint was disabled" if row.disabled else moved
            log.info("connections dropped", extra={"endpoint": endpoint_id, "because": because})
            clients.drop(endpoint_id, because)
            return
        # Before the compute stops: the worker waits a short time for its clients to be parked.
        clients.park(endpoint_id, why_compute_stops(row.unfinished))
        rules = parse_rules(row.access, is_protected=row.protected)
        if rules != self._checked_by.get(endpoint_id):
            self._checked_by[endpoint_id] = rules
            clients.enforce_rules(endpoint_id, rules)
        await end_outdated_sessions(self._database, endpoint_id, clients)


async def end_outdated_sessions(
    database: ControlDatabase, endpoint_id: str, clients: Clients
) -> None:
    """Ends sessions of the endpoint whose role was deleted, may not log in any more or got another
    password by the API. Raises ControlPlaneUnavailable."""
    # Only clients from before the query are checked. Those that come during it confirm their roles
    # by rows that were read after the change, which may be newer than the query's answer.
    unchecked = {client: client.identity for client in clients.of_endpoint(endpoint_id)}
    for _ in range(_MAX_LOOKS):
        if not unchecked:
            return
        names = sorted({client.role for client in unchecked})
        roles = await database.ask(partial(find_roles, endpoint_id=endpoint_id, names=names))
        connected = set(clients.of_endpoint(endpoint_id))
        asked, unchecked = unchecked, {}
        for client in asked.keys() & connected:
            if client.identity is asked[client]:
                _end_if_outdated(client, roles.get(client.role), endpoint_id)
            else:
                # It has confirmed its role during the query, by rows that may be older or newer.
                unchecked[client] = client.identity


def _end_if_outdated(client: Client, role: RoleState | None, endpoint_id: str) -> None:
    reason = _why_ended(client, role)
    # After a branch's reset its roles are others of the same names. A client that is being
    # connected goes on, if its password is also the new role's.
    if not reason or (role and _is_other_role(client, role) and client.confirm_again()):
        return
    fields = {"endpoint": endpoint_id, "role": client.role, "reason": reason}
    log.info("session ended", extra=fields)
    client.end_login(reason)


def _why_ended(client: Client, role: RoleState | None) -> str:
    """Returns why the session must end; "" if it may go on."""
    if client.identity.row is None:
        # SQL has created the role, and the rows did not have it when the client came.
        if role is None or role.compute_oid != client.identity.oid:
            return ""
        client.identity = replace(client.identity, row=role.id)
    identity = client.identity
    if role is None or _is_other_role(client, role):
        return "the role was deleted"
    if role.no_login:
        return "the role is no longer permitted to log in"
    if role.sessions_end_at is not None and (
        identity.sessions_end_at is None or role.sessions_end_at > identity.sessions_end_at
    ):
        return "the role's password was reset"
    return ""


def _is_other_role(client: Client, role: RoleState) -> bool:
    """True if the role is another one with the same name as the session's."""
    identity = client.identity
    if identity.row != role.id:
        return True
    return None not in (identity.oid, role.compute_oid) and identity.oid != role.compute_oid

"""Receives every change of an endpoint by the database's notifications (see the migration
`0003_notify_of_changes`), and passes it on to those that remember or await the endpoint's state."""

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import Protocol

import psycopg

from controlplane.models.connecting import CHANGES, find_state
from controlplane.proxy.access_rules import AccessRules, parse_rules
from controlplane.proxy.compute_states import is_left_for
from controlplane.proxy.control_database import ControlDatabase, bounded
from controlplane.proxy.directory import Clients
from controlplane.proxy.errors import ControlPlaneSilent
from controlplane.proxy.open_sessions import OpenSessions

log = logging.getLogger(__name__)

# Seconds after which a silent connection is tested. A server that hangs closes no connection.
_HEARTBEAT = 2.0
_CONNECT_AGAIN = 1.0


class Hearer(Protocol):
    """See `memory.Memory`."""

    def begin(self) -> None: ...
    def end(self) -> None: ...
    def forget(self, endpoint_id: str) -> None: ...


class Changes:
    def __init__(
        self, database: ControlDatabase, hearers: Sequence[Hearer], sessions: OpenSessions
    ) -> None:
        self._database = database
        self._sessions = sessions
        self._hearers = hearers
        self._awaited: dict[str, asyncio.Event] = {}
        # The branch that each endpoint's clients were last connected to. Kept even while changes
        # are not received, because clients from before a change may still be connected.
        self._served: dict[str, str] = {}
        # The rules that each endpoint's clients were last checked by. Later clients were checked
        # when they connected.
        self._held_to: dict[str, AccessRules | None] = {}
        # Set once changes have been received for the first time.
        self.are_heard = asyncio.Event()

    def next_of(self, endpoint_id: str) -> asyncio.Event:
        """Returns an event that is set with the endpoint's next change, or once changes may have
        been missed.

        The caller must get it before it reads the state, so that it misses no change right after.
        """
        return self._awaited.setdefault(endpoint_id, asyncio.Event())

    def let_in(self, endpoint_id: str, branch_id: str) -> None:
        """Notes that clients of the endpoint are connected to this branch: see `run`."""
        self._served[endpoint_id] = branch_id

    def branch_of(self, endpoint_id: str) -> str:
        """Returns the branch that the endpoint's clients were last connected to; "" if they were
        dropped."""
        return self._served.get(endpoint_id, "")

    async def run(self, clients: Clients) -> None:
        """Receives changes until cancelled. If the database does not answer, tries again.

        Ends the clients whose endpoint was deleted, disabled or reassigned since they connected,
        whose role may not be there any more, or whose address is no longer allowed.
        """
        while True:
            try:
                await self._listen(clients)
            except (psycopg.Error, ControlPlaneSilent, TimeoutError, OSError) as error:
                reason = str(error) or type(error).__name__
                log.warning("database silent, changes unheard", extra={"error": reason})
            await asyncio.sleep(_CONNECT_AGAIN)

    async def _listen(self, clients: Clients) -> None:
        connection = await self._database.connect()
        try:
            await bounded(connection, connection.execute(f"LISTEN {CHANGES}".encode()))
            self._begin()
            # Changes may have been missed until now.
            self._held_to.clear()
            for endpoint_id in list(self._served):
                await self._check(endpoint_id, clients)
            while True:
                async for notification in connection.notifies(timeout=_HEARTBEAT):
                    await self._take_in(notification.payload, clients)
                await bounded(connection, connection.execute("SELECT 1"))
        finally:
            self._end()
            await connection.close()

    def _begin(self) -> None:
        for hearer in self._hearers:
            hearer.begin()
        self.are_heard.set()

    def _end(self) -> None:
        for hearer in self._hearers:
            hearer.end()
        awaited, self._awaited = self._awaited, {}
        for event in awaited.values():
            event.set()

    async def _take_in(self, endpoint_id: str, clients: Clients) -> None:
        for hearer in self._hearers:
            hearer.forget(endpoint_id)
        if event := self._awaited.pop(endpoint_id, None):
            event.set()
        if endpoint_id in self._served:
            await self._check(endpoint_id, clients)

    async def _check(self, endpoint_id: str, clients: Clients) -> None:
        """Drops the endpoint's clients if they are connected to another branch, or the endpoint is
        deleted or disabled. Otherwise drops or parks those that may not stay."""
        served = self._served[endpoint_id]
        row = await self._database.ask(partial(find_state, endpoint_id=endpoint_id))
        if row is None or row.disabled or row.branch_id != served:
            # Clients may have connected to another branch during the query. `drop` ends them too,
            # and they connect again.
            self._served.pop(endpoint_id, None)
            self._held_to.pop(endpoint_id, None)
            log.info("connections dropped", extra={"endpoint": endpoint_id})
            clients.drop(endpoint_id)
            return
        if any(map(is_left_for, row.unfinished)):
            # Before the compute stops: the worker waits a short time for its clients to be parked.
            clients.park(endpoint_id)
        rules = parse_rules(row.access, is_protected=row.protected)
        if rules != self._held_to.get(endpoint_id):
            self._held_to[endpoint_id] = rules
            clients.hold_to(endpoint_id, rules)
        await self._sessions.check(endpoint_id, clients)

"""Hears of every change of an endpoint, by the database's notifications (see the migration
`0003_notify_of_changes`), and tells whoever keeps or awaits something of it."""

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

# How often a silent line is tried, in seconds: a server that hangs ends no connection.
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
        # The branch that each endpoint's clients were last let in to. Kept whatever we hear:
        # clients may be there who came before a change.
        self._served: dict[str, str] = {}
        # What its clients were last held to. Who came later was looked at on the way in.
        self._held_to: dict[str, AccessRules | None] = {}
        # Set once they were heard for the first time.
        self.are_heard = asyncio.Event()

    def next_of(self, endpoint_id: str) -> asyncio.Event:
        """Is set with the endpoint's next change, or once changes may have gone unheard.

        To be taken before the look at what may change: one right after it is not missed then.
        """
        return self._awaited.setdefault(endpoint_id, asyncio.Event())

    def let_in(self, endpoint_id: str, branch_id: str) -> None:
        """Clients of the endpoint are on this branch: see `run`."""
        self._served[endpoint_id] = branch_id

    def branch_of(self, endpoint_id: str) -> str:
        """The branch that the endpoint's clients were last let in to; "" if they were dropped."""
        return self._served.get(endpoint_id, "")

    async def run(self, clients: Clients) -> None:
        """Hear of changes until cancelled; where the database does not answer, try again.

        Those of the clients are ended whose endpoint was deleted, disabled or reassigned since
        they were let in, whose role may not be there any more, or who come from where they no
        longer may.
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
            # What changed while nothing was heard.
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
        """Drop the endpoint's clients unless they are where they should be, and those who may not
        be there, or come from where they may not."""
        served = self._served[endpoint_id]
        row = await self._database.ask(partial(find_state, endpoint_id=endpoint_id))
        if row is None or row.disabled or row.branch_id != served:
            # Clients may have been let in elsewhere while we asked: `drop` ends them too, and
            # they come back.
            self._served.pop(endpoint_id, None)
            self._held_to.pop(endpoint_id, None)
            log.info("connections dropped", extra={"endpoint": endpoint_id})
            clients.drop(endpoint_id)
            return
        if any(map(is_left_for, row.unfinished)):
            # Before the compute stops: whoever stops it waits for them, as long as that is short.
            clients.park(endpoint_id)
        rules = parse_rules(row.access, is_protected=row.protected)
        if rules != self._held_to.get(endpoint_id):
            self._held_to[endpoint_id] = rules
            clients.hold_to(endpoint_id, rules)
        await self._sessions.check(endpoint_id, clients)

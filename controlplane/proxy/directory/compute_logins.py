"""Asks running computes whether a role may log in, and notices what SQL changes in their catalogs.
It keeps one session of the platform's in each compute that clients connect to.

Computes are untrusted and may hang. So each question has a time limit, questions after an
unanswered one fail at once for a while, and no question waits for another endpoint's.
"""

import asyncio
import logging
from functools import partial
from typing import Any, LiteralString, Self

import psycopg
from psycopg.abc import PQGen, PQGenConn
from psycopg.rows import class_row, scalar_row

from controlplane.compute.accounts import is_served_by
from controlplane.compute.catalog_reading import LOGIN, MARK
from controlplane.compute.session import Result, of_bounded_length, parameters, socket_dir
from controlplane.models.connecting import find_catalog_mark
from controlplane.operations.by_sql import take_in
from controlplane.proxy.directory.control_database import ControlDatabase, bounded
from controlplane.proxy.directory.interface import Clients
from controlplane.proxy.directory.role_logins import RoleLogin
from controlplane.proxy.directory.service_calls import ServiceCalls
from controlplane.proxy.wire.errors import LoginUnknown

log = logging.getLogger(__name__)

# Seconds.
LOOK_EVERY = 2.0
KEPT_UNUSED = 15.0
_SILENT_FOR = 1.0
_ANSWER_WITHIN = 2.0
_TAKEN_IN_WITHIN = 15.0
# Seconds between two synchronizations that unauthenticated clients can cause.
_TAKEN_IN_AGAIN = 1.0

# The most bytes of an answer, which is one row. The event loop of all clients reads it.
_LONGEST_ANSWER = 1 << 20


class _Connection(psycopg.AsyncConnection[Any]):
    """Accepts no answer that is longer than a genuine Postgres's."""

    @classmethod
    def _connect_gen(cls, conninfo: str = "") -> PQGenConn[Self]:
        return of_bounded_length(super()._connect_gen(conninfo), longest=_LONGEST_ANSWER)

    async def wait(
        self, gen: PQGen[Result], interval: float = 0.1, timeout: float | None = None
    ) -> Result:
        waited = of_bounded_length(gen, self.fileno(), longest=_LONGEST_ANSWER)
        return await super().wait(waited, interval, timeout)


class _Line:
    """The platform's session in one endpoint's compute."""

    def __init__(self, endpoint_id: str, branch_id: str, now: float) -> None:
        self.endpoint_id = endpoint_id
        self.branch_id = branch_id
        self.used_at = now
        self.silent_until = 0.0
        # The mark of the catalog that the rows agree with; None if it has to be read.
        self.mark: str | None = None
        self._connection: _Connection | None = None
        self._lock = asyncio.Lock()
        self._asking: set[asyncio.Task[Any]] = set()
        # Questions that have not been sent yet.
        self._queued: dict[tuple[object, ...], asyncio.Task[Any]] = {}

    async def ask(
        self,
        statement: LiteralString,
        values: tuple[object, ...],
        row_factory: Any,
        *,
        within: float,
    ) -> Any:
        """Returns the first row of the answer; None for no rows. Raises LoginUnknown.

        Callers that ask the same before the question is sent share its answer, which is as recent
        for all of them. If a caller is cancelled, the question still runs to its end, so that a
        client that disconnects does not cost the next one a new session.
        """
        loop = asyncio.get_running_loop()
        if loop.time() < self.silent_until:
            raise LoginUnknown
        same = (statement, values, within)
        asking = self._queued.get(same)
        if asking is None:
            answer = self._answer(statement, values, row_factory, loop.time() + within, same)
            asking = self._queued[same] = loop.create_task(answer)
            self._asking.add(asking)
            asking.add_done_callback(self._settle)
        return await asyncio.shield(asking)

    def _settle(self, asking: "asyncio.Task[Any]") -> None:
        self._asking.discard(asking)
        if not asking.cancelled():
            asking.exception()  # marks it as retrieved: every caller may have been cancelled

    async def _answer(
        self,
        statement: LiteralString,
        values: tuple[object, ...],
        row_factory: Any,
        deadline: float,
        same: tuple[object, ...],
    ) -> Any:
        loop = asyncio.get_running_loop()
        try:
            try:
                async with asyncio.timeout_at(deadline):
                    await self._lock.acquire()
            finally:
                # From here on the answer may be too old for a caller that asks the same.
                del self._queued[same]
            try:
                return await self._put(statement, values, row_factory, deadline)
            finally:
                self._lock.release()
        except (psycopg.Error, TimeoutError, OSError) as error:
            self.silent_until = loop.time() + (_SILENT_FOR if loop.time() >= deadline else 0)
            raise LoginUnknown from error

    async def _put(
        self,
        statement: LiteralString,
        values: tuple[object, ...],
        row_factory: Any,
        deadline: float,
    ) -> Any:
        is_new = self._connection is None
        try:
            if self._connection is None:
                self._connection = await self._connect(deadline)
            cursor = self._connection.cursor(row_factory=row_factory)
            executed = cursor.execute(statement, values, prepare=True)
            await bounded(self._connection, executed, deadline=deadline)
            return await cursor.fetchone()
        except BaseException as error:
            await self.close()
            # The compute may have been restarted since the session was started.
            if is_new or not isinstance(error, psycopg.OperationalError):
                raise
        if asyncio.get_running_loop().time() >= deadline:
            raise TimeoutError
        return await self._put(statement, values, row_factory, deadline)

    async def _connect(self, deadline: float) -> _Connection:
        place = socket_dir(self.endpoint_id)
        self.mark = None
        within = max(0.0, deadline - asyncio.get_running_loop().time())
        async with asyncio.timeout_at(deadline):
            connection = await _Connection.connect(
                **parameters(place, "postgres", bound=max(within, _ANSWER_WITHIN)),
                autocommit=True,
            )
        if not is_served_by(connection.fileno(), place):
            await connection.close()
            raise psycopg.OperationalError("the compute's socket leads elsewhere")
        return connection

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()


class ComputeLogins:
    """Must be used within one event loop."""

    def __init__(self, database: ControlDatabase) -> None:
        self._database = database
        self._calls = ServiceCalls()
        self._lines: dict[str, _Line] = {}
        self._taking_in: dict[str, asyncio.Task[bool]] = {}
        self._taken_in_at: dict[str, float] = {}

    async def ask(
        self, endpoint_id: str, branch_id: str, role: str, *, within: float
    ) -> RoleLogin | None:
        """Returns the role in the endpoint's running compute; None if it has no such role. Raises
        LoginUnknown if the compute does not answer within so many seconds."""
        line = self._line(endpoint_id, branch_id)
        found: RoleLogin | None = await line.ask(
            LOGIN, (role,), class_row(RoleLogin), within=within
        )
        return found

    def take_in_soon(self, endpoint_id: str) -> None:
        """Starts to update the rows from the compute's catalog, unless that was just done."""
        now = asyncio.get_running_loop().time()
        if now - self._taken_in_at.get(endpoint_id, -_TAKEN_IN_AGAIN) >= _TAKEN_IN_AGAIN:
            self._take_in(endpoint_id)

    async def take_in(self, endpoint_id: str) -> bool:
        """Updates the rows from the compute's catalog. Returns False if that failed. An update that
        is under way may have read the catalog too early, so it is awaited and another follows."""
        if under_way := self._taking_in.get(endpoint_id):
            await asyncio.shield(under_way)
        return await asyncio.shield(self._take_in(endpoint_id))

    def _take_in(self, endpoint_id: str) -> "asyncio.Task[bool]":
        task = self._taking_in.get(endpoint_id)
        if task is None:
            task = asyncio.create_task(self._call_take_in(endpoint_id))
            self._taking_in[endpoint_id] = task
            task.add_done_callback(lambda _: self._taking_in.pop(endpoint_id, None))
        return task

    async def _call_take_in(self, endpoint_id: str) -> bool:
        try:
            await self._calls.call(take_in, endpoint_id, within=_TAKEN_IN_WITHIN)
        except Exception as error:
            # An error of the compute or the database; the next look tries again.
            log.warning("catalog unread", extra={"endpoint": endpoint_id, "error": repr(error)})
            return False
        finally:
            self._taken_in_at[endpoint_id] = asyncio.get_running_loop().time()
        return True

    async def run(self, clients: Clients) -> None:
        """Looks regularly at the catalogs of computes with clients, until cancelled."""
        looks: set[asyncio.Task[None]] = set()
        try:
            while True:
                await asyncio.sleep(LOOK_EVERY)
                under_way = {task.get_name() for task in looks}
                for endpoint_id in self._lines.keys() - under_way:
                    look = partial(self._look, self._lines[endpoint_id], clients)
                    task = asyncio.create_task(look(), name=endpoint_id)
                    looks.add(task)
                    task.add_done_callback(looks.discard)
        finally:
            for task in looks:
                task.cancel()
            self._calls.close()
            for line in self._lines.values():
                await line.close()

    async def _look(self, line: _Line, clients: Clients) -> None:
        is_used = not all(client.is_parked for client in clients.of_endpoint(line.endpoint_id))
        now = asyncio.get_running_loop().time()
        if is_used:
            line.used_at = now
        try:
            mark = await line.ask(MARK, (), scalar_row, within=_ANSWER_WITHIN)
            if line.mark is None:
                ask = partial(find_catalog_mark, branch_id=line.branch_id)
                line.mark = await self._database.ask(ask)
            if mark != line.mark:
                await self.take_in(line.endpoint_id)
                line.mark = None
        except LoginUnknown:
            pass  # the compute is gone or hangs; the next question finds out
        except Exception as error:
            fields = {"endpoint": line.endpoint_id, "error": repr(error)}
            log.info("catalog not looked at", extra=fields)
        if now - line.used_at >= KEPT_UNUSED and self._lines.get(line.endpoint_id) is line:
            del self._lines[line.endpoint_id]
            self._taken_in_at.pop(line.endpoint_id, None)
            await line.close()

    def _line(self, endpoint_id: str, branch_id: str) -> _Line:
        now = asyncio.get_running_loop().time()
        line = self._lines.get(endpoint_id)
        if line is None or line.branch_id != branch_id:
            if line is not None:
                asyncio.create_task(line.close())  # noqa: RUF006 # it ends by itself
            line = self._lines[endpoint_id] = _Line(endpoint_id, branch_id, now)
        line.used_at = now
        return line

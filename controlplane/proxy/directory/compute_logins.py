"""Asks running computes whether a role may log in, and notices what SQL changes in their catalogs.
It keeps one session of the platform's in each compute that clients connect to.

Computes are untrusted and may hang. So each question has a time limit, questions after an
unanswered one fail at once for a while, and no question waits for another endpoint's.
"""

import asyncio
import logging
from dataclasses import dataclass
from functools import partial
from typing import Any, LiteralString, Self

import psycopg
from psycopg.abc import PQGen, PQGenConn
from psycopg.rows import class_row, scalar_row

from controlplane.compute.catalog.reading import LOGIN, MARK
from controlplane.compute.host.accounts import is_served_by
from controlplane.compute.processes.session import Result, of_bounded_length, parameters, socket_dir
from controlplane.models.connecting import find_catalog_mark
from controlplane.proxy.directory.control_database import (
    ControlDatabase,
    ServiceCalls,
    answer_by_deadline,
    start_unattended,
)
from controlplane.proxy.directory.host_calls import HostCalls
from controlplane.proxy.directory.interface import Clients
from controlplane.proxy.wire.errors import LoginUnknown

log = logging.getLogger(__name__)

# Seconds.
CHECK_INTERVAL = 2.0
UNUSED_TIMEOUT = 15.0
_RETRY_DELAY = 1.0
_ANSWER_TIMEOUT = 2.0
_SYNC_TIMEOUT = 15.0
# Seconds between two synchronizations that unauthenticated clients can cause.
_SYNC_INTERVAL = 1.0

# The most bytes of an answer, which is one row. The event loop of all clients reads it.
_MAX_ANSWER_BYTES = 1 << 20


# A statement, its values, and the seconds in which it must be answered.
Question = tuple[LiteralString, tuple[object, ...], float]


@dataclass(frozen=True, slots=True)
class RoleLogin:
    """A role in its compute's catalog."""

    oid: int
    can_login: bool
    has_expired: bool
    # A verifier, any other text that SQL has set, or a placeholder; None for no password.
    password: str | None


class _Connection(psycopg.AsyncConnection[Any]):
    """Accepts no answer that is longer than a genuine Postgres's."""

    @classmethod
    def _connect_gen(cls, conninfo: str = "") -> PQGenConn[Self]:
        return of_bounded_length(super()._connect_gen(conninfo), longest=_MAX_ANSWER_BYTES)

    async def wait(
        self, gen: PQGen[Result], interval: float = 0.1, timeout: float | None = None
    ) -> Result:
        waited = of_bounded_length(gen, self.fileno(), longest=_MAX_ANSWER_BYTES)
        return await super().wait(waited, interval, timeout)


class _CatalogSession:
    """The platform's session in one endpoint's compute."""

    def __init__(self, endpoint_id: str, branch_id: str, account_id: int, now: float) -> None:
        self.endpoint_id = endpoint_id
        self.branch_id = branch_id
        self.account_id = account_id
        self.used_at = now
        self.unavailable_until = 0.0
        # The mark of the catalog that the rows agree with; None if it has to be read.
        self.mark: str | None = None
        self._connection: _Connection | None = None
        self._lock = asyncio.Lock()
        self._asking: set[asyncio.Task[Any]] = set()
        # Questions that have not been sent yet.
        self._queued: dict[Question, asyncio.Task[Any]] = {}

    async def ask(
        self,
        statement: LiteralString,
        values: tuple[object, ...],
        row_factory: Any,
        *,
        timeout: float,
    ) -> Any:
        """Returns the first row of the answer; None for no rows. Raises LoginUnknown.

        Callers that ask the same before the question is sent share its answer, which is as recent
        for all of them. If a caller is cancelled, the question still runs to its end, so that a
        client that disconnects does not cost the next one a new session.
        """
        loop = asyncio.get_running_loop()
        if loop.time() < self.unavailable_until:
            raise LoginUnknown
        question = (statement, values, timeout)
        asking = self._queued.get(question)
        if asking is None:
            answer = self._answer(question, row_factory, loop.time() + timeout)
            asking = self._queued[question] = start_unattended(answer, self._asking)
        return await asyncio.shield(asking)

    async def _answer(self, question: Question, row_factory: Any, deadline: float) -> Any:
        """The question waits for others in the first half of its time. The rest is for the compute:
        that others ask much does not show that it hangs."""
        loop = asyncio.get_running_loop()
        statement, values, timeout = question
        try:
            async with asyncio.timeout_at(deadline - timeout / 2):
                await self._lock.acquire()
        except TimeoutError as error:
            raise LoginUnknown from error
        finally:
            # From here on the answer may be too old for a caller that asks the same.
            del self._queued[question]
        try:
            return await self._execute(statement, values, row_factory, deadline)
        except (psycopg.Error, TimeoutError, OSError) as error:
            self.unavailable_until = loop.time() + (_RETRY_DELAY if loop.time() >= deadline else 0)
            raise LoginUnknown from error
        finally:
            self._lock.release()

    async def _execute(
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
            await answer_by_deadline(self._connection, executed, deadline=deadline)
            return await cursor.fetchone()
        except BaseException as error:
            await self.close()
            # The compute may have been restarted since the session was started.
            if is_new or not isinstance(error, psycopg.OperationalError):
                raise
        if asyncio.get_running_loop().time() >= deadline:
            raise TimeoutError
        return await self._execute(statement, values, row_factory, deadline)

    async def _connect(self, deadline: float) -> _Connection:
        place = socket_dir(self.endpoint_id)
        self.mark = None
        timeout = max(0.0, deadline - asyncio.get_running_loop().time())
        async with asyncio.timeout_at(deadline):
            connection = await _Connection.connect(
                **parameters(place, "postgres", bound=max(timeout, _ANSWER_TIMEOUT)),
                autocommit=True,
            )
        if not is_served_by(connection.fileno(), place):
            await connection.close()
            raise psycopg.OperationalError("the compute's socket is not the endpoint's own")
        return connection

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()


class ComputeLogins:
    """Must be used within one event loop."""

    def __init__(self, database: ControlDatabase, host: HostCalls) -> None:
        self._database, self._host = database, host
        self._calls = ServiceCalls()
        self._sessions: dict[str, _CatalogSession] = {}
        self._synchronizing: dict[str, asyncio.Task[bool]] = {}
        self._synchronized_at: dict[str, float] = {}

    async def ask(
        self, endpoint_id: str, branch_id: str, account_id: int, role: str, *, timeout: float
    ) -> RoleLogin | None:
        """Returns the role in the endpoint's running compute; None if it has no such role. Raises
        LoginUnknown if the compute does not answer within so many seconds."""
        session = self._session(endpoint_id, branch_id, account_id)
        found: RoleLogin | None = await session.ask(
            LOGIN, (role,), class_row(RoleLogin), timeout=timeout
        )
        return found

    def synchronize_soon(self, endpoint_id: str, account_id: int) -> None:
        """Starts to update the rows from the compute's catalog, unless that was just done."""
        now = asyncio.get_running_loop().time()
        if now - self._synchronized_at.get(endpoint_id, -_SYNC_INTERVAL) >= _SYNC_INTERVAL:
            self._synchronize(endpoint_id, account_id)

    async def synchronize(self, endpoint_id: str, account_id: int) -> bool:
        """Updates the rows from the compute's catalog. Returns False if that failed. An update that
        is under way may have read the catalog too early, so it is awaited and another follows."""
        if under_way := self._synchronizing.get(endpoint_id):
            await asyncio.shield(under_way)
        return await asyncio.shield(self._synchronize(endpoint_id, account_id))

    def _synchronize(self, endpoint_id: str, account_id: int) -> "asyncio.Task[bool]":
        task = self._synchronizing.get(endpoint_id)
        if task is None:
            task = asyncio.create_task(self._call_synchronize(endpoint_id, account_id))
            self._synchronizing[endpoint_id] = task
            task.add_done_callback(lambda _: self._synchronizing.pop(endpoint_id, None))
        return task

    async def _call_synchronize(self, endpoint_id: str, account_id: int) -> bool:
        try:
            await self._calls.call(
                partial(self._host.call, account_id=str(account_id)),
                *("import_catalog", endpoint_id),
                timeout=_SYNC_TIMEOUT,
                account_id=str(account_id),
            )
        except Exception as error:
            # An error of the compute or the database; the next look tries again.
            log.warning(
                "cannot synchronize the catalog",
                extra={"endpoint": endpoint_id, "error": repr(error)},
            )
            return False
        finally:
            self._synchronized_at[endpoint_id] = asyncio.get_running_loop().time()
        return True

    async def run(self, clients: Clients) -> None:
        """Looks regularly at the catalogs of computes with clients, until cancelled."""
        checks: set[asyncio.Task[None]] = set()
        try:
            while True:
                await asyncio.sleep(CHECK_INTERVAL)
                under_way = {task.get_name() for task in checks}
                for endpoint_id in self._sessions.keys() - under_way:
                    check = partial(self._check_catalog, self._sessions[endpoint_id], clients)
                    task = asyncio.create_task(check(), name=endpoint_id)
                    checks.add(task)
                    task.add_done_callback(checks.discard)
        finally:
            for task in checks:
                task.cancel()
            self._calls.close()
            for session in self._sessions.values():
                await session.close()

    async def _check_catalog(self, session: _CatalogSession, clients: Clients) -> None:
        is_used = not all(client.is_parked for client in clients.of_endpoint(session.endpoint_id))
        now = asyncio.get_running_loop().time()
        if is_used:
            session.used_at = now
        try:
            mark = await session.ask(MARK, (), scalar_row, timeout=_ANSWER_TIMEOUT)
            if session.mark is None:
                ask = partial(find_catalog_mark, branch_id=session.branch_id)
                session.mark = await self._database.ask(ask)
            if mark != session.mark:
                await self.synchronize(session.endpoint_id, session.account_id)
                session.mark = None
        except LoginUnknown:
            pass  # the compute is gone or hangs; the next question finds out
        except Exception as error:
            fields = {"endpoint": session.endpoint_id, "error": repr(error)}
            log.info("cannot check the catalog", extra=fields)
        if (
            now - session.used_at >= UNUSED_TIMEOUT
            and self._sessions.get(session.endpoint_id) is session
        ):
            del self._sessions[session.endpoint_id]
            self._synchronized_at.pop(session.endpoint_id, None)
            await session.close()

    def _session(self, endpoint_id: str, branch_id: str, account_id: int) -> _CatalogSession:
        now = asyncio.get_running_loop().time()
        session = self._sessions.get(endpoint_id)
        if session is None or session.branch_id != branch_id:
            if session is not None:
                asyncio.create_task(session.close())  # noqa: RUF006 # it ends by itself
            session = _CatalogSession(endpoint_id, branch_id, account_id, now)
            self._sessions[endpoint_id] = session
        session.used_at = now
        return session

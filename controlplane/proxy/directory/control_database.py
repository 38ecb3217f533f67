"""The proxy's access to the metadata database, and to the blocking functions of the lower layers,
each in a thread. No call waits longer than a bound, however the server hangs. Used by the parts of
`database_directory`."""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Any, Self, TypeVar
from weakref import WeakValueDictionary

import psycopg
from django.db import InterfaceError, OperationalError, close_old_connections

from controlplane.database.connection_counts import PROXY_QUERY_CONNECTIONS
from controlplane.proxy.wire.errors import ControlPlaneUnavailable

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")
Connection = psycopg.AsyncConnection[Any]
Question = Callable[[Connection], Awaitable[Answer]]

# Seconds from the question to the answer, including a new connection.
ANSWER_TIMEOUT = 3.0
# Extra seconds before the caller goes on, in case shutting down the socket has had no effect.
_GRACE_SECONDS = 0.2
# How many times a question is asked again if this process itself stood still.
_MAX_STANDSTILLS = 3
# Threads, which are started as they are needed.
_MAX_CONCURRENT_CALLS = 64
# How many of these may be of one account: its calls may wait long for a lock or a compute. Several
# accounts together leave threads to the others too.
_MAX_CALLS_OF_ACCOUNT = 4
_CONNECT_TIMEOUT = 2  # seconds; libpq's minimum
# Seconds between two timers, and their total lateness that counts as a standstill. The timers of a
# busy loop are less late.
_TIMER_INTERVAL = 0.25
_MAX_LATENESS = 0.5


class StallDetector:
    """Detects that this process itself did not run while it waited, because it was stopped or had
    no core. Then the answer it waited for may have arrived unread, and a passed deadline does not
    show that anybody else was slow. Watches the running loop while the context is entered."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._lost = 0.0

    def __enter__(self) -> Self:
        self._expect()
        return self

    def __exit__(self, *_: object) -> None:
        self._next.cancel()

    def has_stalled(self) -> bool:
        return self._lost + self._lateness() > _MAX_LATENESS

    def _expect(self) -> None:
        self._due = self._loop.time() + _TIMER_INTERVAL
        self._next = self._loop.call_at(self._due, self._note)

    def _note(self) -> None:
        self._lost += self._lateness()
        self._expect()

    def _lateness(self) -> float:
        return max(0.0, self._loop.time() - self._due)


class ControlDatabase:
    """Must be used within one event loop. `is_unavailable` is True if the database failed to answer
    the last time."""

    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo
        self._idle: list[Connection] = []
        self._slots = asyncio.Semaphore(PROXY_QUERY_CONNECTIONS)
        self._asking: set[asyncio.Task[Any]] = set()
        self.is_unavailable = False

    async def ask(self, question: Question[Answer]) -> Answer:
        """Returns what `question` returns. `question` may be called again, so it must be
        idempotent.

        If the caller is cancelled, the question still runs to its end, which its bound limits.
        Cancelling a query takes another connection, and longer than the query itself. Raises
        ControlPlaneUnavailable.
        """
        for _ in range(_MAX_STANDSTILLS):
            with StallDetector() as standstill:
                try:
                    return await self._ask(question)
                except ControlPlaneUnavailable:
                    if not standstill.has_stalled():
                        raise
        return await self._ask(question)

    async def _ask(self, question: Question[Answer]) -> Answer:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + ANSWER_TIMEOUT
        asking = start_unattended(self._answer(question, deadline), self._asking)
        try:
            async with asyncio.timeout_at(deadline + 2 * _GRACE_SECONDS):
                answer = await asyncio.shield(asking)
        except (TimeoutError, psycopg.Error) as error:
            log.error(
                "database does not answer", extra={"error": str(error) or type(error).__name__}
            )
            self.is_unavailable = True
            raise ControlPlaneUnavailable from error
        self.is_unavailable = False
        return answer

    async def connect(self, *, deadline: float | None = None) -> Connection:
        """Opens a connection for the caller alone. Raises TimeoutError, psycopg.Error."""
        if deadline is None:
            deadline = asyncio.get_running_loop().time() + ANSWER_TIMEOUT
        try:
            async with asyncio.timeout_at(deadline):
                connection = await psycopg.AsyncConnection.connect(
                    self._conninfo, autocommit=True, connect_timeout=_CONNECT_TIMEOUT
                )
        except (TimeoutError, psycopg.Error):
            self.is_unavailable = True
            raise
        self.is_unavailable = False
        return connection

    async def close(self) -> None:
        """Waits for the questions under way. The caller must not ask any more."""
        await asyncio.gather(*self._asking, return_exceptions=True)
        await self._close_idle()

    async def _answer(self, question: Question[Answer], deadline: float) -> Answer:
        async with asyncio.timeout_at(deadline):
            await self._slots.acquire()
        try:
            try:
                return await self._execute(question, deadline)
            except psycopg.OperationalError:
                # The server may have been restarted, which breaks every older connection. If it
                # hangs instead, the deadline has passed by now.
                if asyncio.get_running_loop().time() >= deadline:
                    raise
                await self._close_idle()
                return await self._execute(question, deadline)
        finally:
            self._slots.release()

    async def _execute(self, question: Question[Answer], deadline: float) -> Answer:
        connection = self._idle.pop() if self._idle else await self.connect(deadline=deadline)
        try:
            answer = await answer_by_deadline(connection, question(connection), deadline=deadline)
        except BaseException:
            await connection.close()
            raise
        self._idle.append(connection)
        return answer

    async def _close_idle(self) -> None:
        while self._idle:
            await self._idle.pop().close()


def start_unattended(
    work: Coroutine[Any, Any, Answer], under_way: set[asyncio.Task[Any]]
) -> asyncio.Task[Answer]:
    """Starts a task that runs to its end even if every caller that waits for it, shielded, is
    cancelled. It is in `under_way` until then."""

    def forget(task: asyncio.Task[Answer]) -> None:
        under_way.discard(task)
        if not task.cancelled():
            task.exception()  # marks it as retrieved: every caller may have been cancelled

    task = asyncio.get_running_loop().create_task(work)
    under_way.add(task)
    task.add_done_callback(forget)
    return task


async def answer_by_deadline(
    connection: Connection, answer: Awaitable[Answer], *, deadline: float | None = None
) -> Answer:
    """Returns the connection's answer. At the deadline the connection's socket is shut down, as if
    the server had closed it: psycopg, when only cancelled, would go on waiting for the server.

    Raises psycopg.OperationalError, or TimeoutError if psycopg does not notice the shutdown.
    """
    loop = asyncio.get_running_loop()
    if deadline is None:
        deadline = loop.time() + ANSWER_TIMEOUT
    alarm = loop.call_at(deadline, _shut_down, connection)
    try:
        async with asyncio.timeout_at(deadline + _GRACE_SECONDS):
            return await answer
    finally:
        alarm.cancel()


def _shut_down(connection: Connection) -> None:
    with (
        contextlib.suppress(OSError, psycopg.Error),
        socket.socket(fileno=os.dup(connection.fileno())) as connected,
    ):
        connected.shutdown(socket.SHUT_RDWR)


class ServiceCalls:
    """Calls blocking functions of the lower layers."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_MAX_CONCURRENT_CALLS, thread_name_prefix="service")
        self._shares: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def call(
        self,
        function: Callable[..., Answer],
        *arguments: str,
        timeout: float,
        account_id: str = "",
    ) -> Answer:
        """Returns what the function returns, if it does so within `timeout` seconds. A call for an
        account first waits until others of the account have ended, if many are under way.

        No timeout of a database connection helps against a server that hangs on a unix socket, so
        the waiting is limited instead. A call that has not begun by then never does. One that has
        begun goes on in its thread, and returns its database connection once the server answers.

        Raises what the function raises; ControlPlaneUnavailable if the time limit has passed or the
        database fails.
        """
        loop = asyncio.get_running_loop()
        # With the context, so that log lines and operations of the call carry the client's id.
        run = partial(copy_context().run, _freeing, function, *arguments)
        share = None
        if account_id:
            new = asyncio.Semaphore(_MAX_CALLS_OF_ACCOUNT)
            share = self._shares.setdefault(account_id, new)
            await share.acquire()
        submitted = self._threads.submit(run)
        if share:
            # Not before the thread is free, even if nobody waits any more.
            submitted.add_done_callback(partial(_release, loop, share))
        called = asyncio.wrap_future(submitted)
        try:
            while True:
                with StallDetector() as standstill:
                    await asyncio.wait([called], timeout=timeout)
                    if called.done():
                        return called.result()
                    # After a standstill of this process, the result may be there unread.
                    if not standstill.has_stalled():
                        raise ControlPlaneUnavailable
        finally:
            called.cancel()

    def close(self) -> None:
        """Waits for no call, because one that hangs must not keep the proxy from exiting."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _release(loop: asyncio.AbstractEventLoop, share: asyncio.Semaphore, _: object) -> None:
    with contextlib.suppress(RuntimeError):  # the loop has ended
        loop.call_soon_threadsafe(share.release)


def _freeing(function: Callable[..., Answer], *arguments: str) -> Answer:
    """Calls the function, then returns this thread's database connection to the pool."""
    try:
        return function(*arguments)
    except (OperationalError, InterfaceError) as error:
        raise ControlPlaneUnavailable from error
    finally:
        close_old_connections()

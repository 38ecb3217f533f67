"""Serves `POST /sql`: the client is admitted like any other, and its statements run in a session in
its endpoint's compute."""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Protocol, TypeVar
from weakref import WeakValueDictionary

from controlplane.metrics import figures
from controlplane.proxy.authentication.scram import Verifier
from controlplane.proxy.directory.interface import ComputeAddress
from controlplane.proxy.limits.connection_limits import Admission
from controlplane.proxy.over_http.compute_session import ComputeSession, batch_messages
from controlplane.proxy.over_http.connection import ReadBody
from controlplane.proxy.over_http.request import (
    SMALL_BODY_BYTES,
    MemoryBudget,
    MemoryReservation,
    Request,
    RequestRefused,
    Response,
)
from controlplane.proxy.over_http.results import Results
from controlplane.proxy.over_http.session_pool import SessionKey, SessionPool
from controlplane.proxy.over_http.statements import (
    ARRAY_MODE,
    CONNECTION_STRING,
    DEFERRABLE,
    ISOLATION_LEVEL,
    NOTICES,
    POOL_OPT_IN,
    RAW_TEXT_OUTPUT,
    READ_ONLY,
    Batch,
    Sender,
    echoed,
    read_batch,
    read_sender,
)
from controlplane.proxy.peers.passing import LeadsElsewhere, PeerRequests
from controlplane.proxy.relaying import compute
from controlplane.proxy.relaying.compute import AdmittedClient
from controlplane.proxy.settings import ProxySettings
from controlplane.proxy.wire.destination import Destination
from controlplane.proxy.wire.readiness import Readiness

Converted = TypeVar("Converted")

_CONNECTED = figures.CONNECTED.labels("http")

# Converting more bytes may take seconds.
_MUCH_BYTES = 1 << 20

_PATH = "/sql"
_METHODS = "OPTIONS, POST"
_HEADERS = ", ".join(
    header.title()
    for header in (
        *("authorization", "content-type", CONNECTION_STRING, RAW_TEXT_OUTPUT, ARRAY_MODE),
        *(POOL_OPT_IN, ISOLATION_LEVEL, READ_ONLY, DEFERRABLE, NOTICES),
    )
)
_ALLOWED = Response(
    200,
    headers=[
        ("Allow", _METHODS),
        ("Access-Control-Allow-Methods", _METHODS),
        ("Access-Control-Allow-Headers", _HEADERS),
        ("Access-Control-Max-Age", "86400"),
    ],
)


class Caller(AdmittedClient, Protocol):
    """The connection that a request came by; see `session.Session`."""

    # Who has sent its last request.
    sender: Sender | None
    # Set while the client is admitted.
    admission: Admission | None
    # The client's requests to endpoints on other hosts.
    peer_requests: PeerRequests

    @property
    def domains(self) -> Sequence[str]: ...

    def abandon(self) -> None: ...

    async def admit(
        self, destination: Destination, role: str, password: bytes
    ) -> tuple[Destination, Verifier]: ...

    def running_compute(self) -> ComputeAddress | None: ...

    def count(self, admission: Admission) -> None: ...

    def dismiss(self) -> None: ...


@contextmanager
def _abandoned_on_disconnect(caller: Caller) -> Iterator[None]:
    """Abandons the caller if its client disconnects within the block."""
    caller.channel.watch(caller.abandon)
    try:
        yield
    finally:
        caller.channel.watch()


def _read(headers: Mapping[str, str], body: bytes) -> tuple[Batch, bytes]:
    """Returns the batch, and the batch as messages to Postgres. Raises RequestRefused."""
    batch = read_batch(headers, body)
    return batch, batch_messages(batch)


class Conversions:
    """Converts requests and answers between JSON and the Postgres protocol: small ones on the event
    loop, others in threads. For one process; must be used within its event loop.

    An account's conversions wait for each other, so that those of other accounts wait for only one
    of them.
    """

    def __init__(self) -> None:
        # For large requests and answers, and those so large that others must not wait for them. One
        # thread each, because they share a core with all relays of this process.
        self._large, self._very_large = (
            ThreadPoolExecutor(1, thread_name_prefix="converting") for _ in range(2)
        )
        self._turns: WeakValueDictionary[tuple[int, ThreadPoolExecutor], asyncio.Lock] = (
            WeakValueDictionary()
        )

    def close(self) -> None:
        for thread in (self._large, self._very_large):
            thread.shutdown(wait=False, cancel_futures=True)

    async def convert(
        self, account_id: int, size: int, function: Callable[[], Converted]
    ) -> Converted:
        """Returns what the function, which converts so many bytes for the account, returns. Raises
        what it raises."""
        if size <= SMALL_BODY_BYTES:
            return function()
        thread = self._large if size <= _MUCH_BYTES else self._very_large
        turn = self._turns.setdefault((account_id, thread), asyncio.Lock())
        await turn.acquire()
        converting = asyncio.get_running_loop().run_in_executor(thread, function)
        # Not before the thread is free, even if nobody waits any more.
        converting.add_done_callback(lambda _: turn.release())
        return await asyncio.shield(converting)


class Queries:
    """Shared by all requests of a proxy process."""

    def __init__(self, readiness: Readiness, settings: ProxySettings) -> None:
        self._readiness = readiness
        self._settings = settings
        self.memory = MemoryBudget()
        self._conversions = Conversions()
        self.pool = SessionPool(readiness.loop)

    def close(self) -> None:
        self.pool.drop()
        self._conversions.close()

    async def handle(
        self, caller: Caller, request: Request, body: ReadBody, memory: MemoryReservation
    ) -> Response:
        """Serves one request. Raises ProxyError, ConnectionLost."""
        if request.path != _PATH:
            raise RequestRefused(f"not found: use POST {_PATH}", status=404)
        if request.method == "OPTIONS":
            return _ALLOWED
        if request.method != "POST":
            raise RequestRefused(f"method not allowed: use POST {_PATH}", status=405)
        return await self._execute(caller, request, body, memory)

    async def _execute(
        self, caller: Caller, request: Request, body: ReadBody, memory: MemoryReservation
    ) -> Response:
        sender = read_sender(request.headers, caller.domains, caller.sender)
        caller.sender = sender
        try:
            destination, verifier = await caller.admit(
                sender.destination, sender.role, sender.password
            )
        except LeadsElsewhere as found:
            return await self._pass_on(caller, found, request, body, memory)
        _CONNECTED.inc()
        assert caller.admission is not None
        memory.account_id = account_id = caller.admission.account_id
        convert = functools.partial(self._conversions.convert, account_id)
        try:
            read = await body(memory)
            parsed = await convert(len(read), functools.partial(_read, request.headers, read))

            def run(session: ComputeSession, clean: bool) -> Awaitable[Results]:
                return session.run(*parsed, clean=clean, grow=memory.grow, convert=convert)

            results = await self._run(caller, destination, verifier, run)
            headers = echoed(request.headers) if results.is_batch else []
            answer = Response(200, results.body(), headers)
            with caller.counting() as sent:
                sent.bytes += len(answer.body)
            return answer
        finally:
            caller.dismiss()

    async def _pass_on(
        self,
        caller: Caller,
        found: LeadsElsewhere,
        request: Request,
        body: ReadBody,
        memory: MemoryReservation,
    ) -> Response:
        """Passes the request on to the host of its endpoint, and returns that host's answer."""
        figures.PASSED_ON.labels("http").inc()
        memory.account_id = found.admission.account_id
        with _abandoned_on_disconnect(caller):

            async def read_body() -> bytes:
                caller.count(found.admission)
                caller.channel.unwatch()
                read = await body(memory)
                caller.channel.watch(caller.abandon)
                return read

            try:
                answer = await caller.peer_requests.send(
                    found.host_id, _PATH, request.headers, body=read_body, grow=memory.grow
                )
            finally:
                caller.dismiss()
        return Response(*answer)

    async def _run(
        self,
        caller: Caller,
        destination: Destination,
        verifier: Verifier,
        run: Callable[[ComputeSession, bool], Awaitable[Results]],
    ) -> Results:
        key = SessionKey(
            destination.endpoint_id, verifier, frozenset(destination.parameters.items())
        )
        if destination.pooled:
            return await self._run_pooled(caller, destination, run)

        async def connect(address: ComputeAddress) -> ComputeSession:
            return await self.pool.take(key, address) or await self._open(address, destination)

        with _abandoned_on_disconnect(caller):
            places = await self.pool.enter(key, timeout=self._settings.wake_timeout)
        try:
            session = None
            if address := caller.running_compute():
                with _abandoned_on_disconnect(caller):
                    session = await self.pool.take(key, address)
            if session is None:
                session = await caller.connect_to_compute(destination, connect)
            try:
                with _abandoned_on_disconnect(caller):
                    return await run(session, True)
            finally:
                self.pool.give_back(key, session)
        finally:
            places.release()

    async def _run_pooled(
        self,
        caller: Caller,
        destination: Destination,
        run: Callable[[ComputeSession, bool], Awaitable[Results]],
    ) -> Results:
        """Runs the batch through the endpoint's PgBouncer, which keeps the sessions and limits
        their number."""
        connect = functools.partial(self._open, destination=destination)
        session = await caller.connect_to_compute(destination, connect)
        try:
            with _abandoned_on_disconnect(caller):
                return await run(session, False)
        finally:
            session.close()

    async def _open(self, address: ComputeAddress, destination: Destination) -> ComputeSession:
        connection = await compute.connect(
            address, destination.parameters, readiness=self._readiness
        )
        return ComputeSession(connection, self._readiness)

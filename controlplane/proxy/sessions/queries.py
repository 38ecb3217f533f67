"""Serves `POST /sql`: the client is admitted like any other, and its statements run in a session in
its endpoint's compute."""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakValueDictionary

from controlplane.metrics import figures
from controlplane.proxy.authentication.scram import Verifier
from controlplane.proxy.directory.interface import ComputeAddress
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
from controlplane.proxy.peers.passing import LeadsElsewhere
from controlplane.proxy.relaying import compute
from controlplane.proxy.sessions.admitting import admit, readmit
from controlplane.proxy.wire.destination import Destination
from controlplane.proxy.wire.readiness import Readiness

if TYPE_CHECKING:
    from controlplane.proxy.sessions.session import Session

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


async def _admit(client: "Session", sender: Sender) -> tuple[Destination, Verifier]:
    """Admits the client for one request: see `admitting.admit`. Returns the destination, and the
    verifier that the password fits."""
    destination, role, password = sender.destination, sender.role, sender.password
    passwords = client.proxy.passwords
    knows = functools.partial(passwords.knows, password=password)
    if admitted := readmit(client, destination, role, knows):
        return admitted
    prove = functools.partial(
        passwords.check,
        password=password,
        role=role,
        endpoint_id=destination.endpoint_id,
        address=client.client_address,
    )
    return await admit(client, destination, role, prove)


@contextmanager
def _abandoned_on_disconnect(client: "Session") -> Iterator[None]:
    """Abandons the client if its client disconnects within the block."""
    client.channel.watch(client.abandon)
    try:
        yield
    finally:
        client.channel.watch()


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

    def __init__(self, readiness: Readiness) -> None:
        self._readiness = readiness
        self.memory = MemoryBudget()
        self._conversions = Conversions()
        self.pool = SessionPool(readiness.loop)

    def close(self) -> None:
        self.pool.drop()
        self._conversions.close()

    async def handle(
        self, client: "Session", request: Request, body: ReadBody, memory: MemoryReservation
    ) -> Response:
        """Serves one request. Raises ProxyError, ConnectionLost."""
        if request.path != _PATH:
            raise RequestRefused(f"not found: use POST {_PATH}", status=404)
        if request.method == "OPTIONS":
            return _ALLOWED
        if request.method != "POST":
            raise RequestRefused(f"method not allowed: use POST {_PATH}", status=405)
        return await self._execute(client, request, body, memory)

    async def _execute(
        self, client: "Session", request: Request, body: ReadBody, memory: MemoryReservation
    ) -> Response:
        client.sender = sender = read_sender(request.headers, client.domains, client.sender)
        try:
            destination, verifier = await _admit(client, sender)
        except LeadsElsewhere as found:
            return await self._pass_on(client, found, request, body, memory)
        _CONNECTED.inc()
        assert client.admission is not None
        memory.account_id = account_id = client.admission.account_id
        convert = functools.partial(self._conversions.convert, account_id)
        try:
            read = await body(memory)
            parsed = await convert(len(read), functools.partial(_read, request.headers, read))

            def run(session: ComputeSession, clean: bool) -> Awaitable[Results]:
                return session.run(*parsed, clean=clean, grow=memory.grow, convert=convert)

            results = await self._run(client, destination, verifier, run)
            headers = echoed(request.headers) if results.is_batch else []
            answer = Response(200, results.body(), headers)
            with client.counting() as sent:
                sent.bytes += len(answer.body)
            return answer
        finally:
            client.proxy.sessions.dismiss(client)

    async def _pass_on(
        self,
        client: "Session",
        found: LeadsElsewhere,
        request: Request,
        body: ReadBody,
        memory: MemoryReservation,
    ) -> Response:
        """Passes the request on to the host of its endpoint, and returns that host's answer."""
        figures.PASSED_ON.labels("http").inc()
        memory.account_id = found.admission.account_id
        with _abandoned_on_disconnect(client):

            async def read_body() -> bytes:
                client.proxy.sessions.count(client, found.admission)
                client.note_authenticated()
                client.channel.unwatch()
                read = await body(memory)
                client.channel.watch(client.abandon)
                return read

            try:
                answer = await client.peer_requests.send(
                    found.host_id, _PATH, request.headers, body=read_body, grow=memory.grow
                )
            finally:
                client.proxy.sessions.dismiss(client)
        return Response(*answer)

    async def _run(
        self,
        client: "Session",
        destination: Destination,
        verifier: Verifier,
        run: Callable[[ComputeSession, bool], Awaitable[Results]],
    ) -> Results:
        key = SessionKey(
            destination.endpoint_id, verifier, frozenset(destination.parameters.items())
        )
        if destination.pooled:
            return await self._run_pooled(client, destination, run)

        async def connect(address: ComputeAddress) -> ComputeSession:
            return await self.pool.take(key, address) or await self._open(address, destination)

        with _abandoned_on_disconnect(client):
            places = await self.pool.enter(key, timeout=client.proxy.settings.wake_timeout)
        try:
            session = None
            if address := client.running_compute():
                with _abandoned_on_disconnect(client):
                    session = await self.pool.take(key, address)
            if session is None:
                session = await client.connect_to_compute(destination, connect)
            try:
                with _abandoned_on_disconnect(client):
                    return await run(session, True)
            finally:
                self.pool.give_back(key, session)
        finally:
            places.release()

    async def _run_pooled(
        self,
        client: "Session",
        destination: Destination,
        run: Callable[[ComputeSession, bool], Awaitable[Results]],
    ) -> Results:
        """Runs the batch through the endpoint's PgBouncer, which keeps the sessions and limits
        their number."""
        connect = functools.partial(self._open, destination=destination)
        session = await client.connect_to_compute(destination, connect)
        try:
            with _abandoned_on_disconnect(client):
                return await run(session, False)
        finally:
            session.close()

    async def _open(self, address: ComputeAddress, destination: Destination) -> ComputeSession:
        connection = await compute.connect(
            address, destination.parameters, readiness=self._readiness
        )
        return ComputeSession(connection, self._readiness)

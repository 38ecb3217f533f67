"""What the first proxy passes on: clients that speak the Postgres protocol, and HTTP requests."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field

import h11

from controlplane.proxy.directory.interface import Tally
from controlplane.proxy.limits.connection_limits import Admission
from controlplane.proxy.peers.header import ADMITTED
from controlplane.proxy.relaying.relay import Relay
from controlplane.proxy.wire import messages
from controlplane.proxy.wire.channel import WOULD_BLOCK, Channel, closed_on_failure
from controlplane.proxy.wire.errors import AdministratorShutdown, ConnectionLost, HostUnreachable
from controlplane.proxy.wire.readiness import Readiness

_ERROR = b"E"
# The second proxy's messages before it has admitted a client are short.
_MAX_MESSAGE_BYTES = 65_536

# Headers that concern one connection only, or that the first proxy sets itself.
_NOT_PASSED_ON = frozenset(
    (
        *("connection", "keep-alive", "proxy-connection", "te", "trailer", "upgrade", "expect"),
        *("transfer-encoding", "content-length", "content-type", "date"),
        "access-control-allow-origin",
    )
)
_MAX_HEAD_BYTES = 65_536
# Seconds in which a peer must have checked a password.
_ANSWER_TIMEOUT = 30.0


class LeadsElsewhere(Exception):
    """A client that has named its endpoint must be passed on to this host. Raised before the client
    has proved its identity."""

    def __init__(self, host_id: str, admission: Admission) -> None:
        super().__init__(host_id)
        self.host_id = host_id
        # What the client counts as, once the host has admitted it.
        self.admission = admission
        # See `header.PassedOn`.
        self.password: bytes | None = None


@dataclass(eq=False)
class PassedClient:
    """A client that speaks the Postgres protocol: from its start-up message, which the second proxy
    has received, until that has admitted it. From then on a relay passes the bytes on. Owns the
    channel to the second proxy."""

    _client: Channel
    _peer: Channel
    _host_id: str
    _readiness: Readiness
    # What the client has sent and the peer has not taken yet.
    _rest: bytes = field(default=b"", init=False)

    def close(self) -> None:
        self._peer.close()

    async def is_admitted(self) -> bool:
        """Passes bytes on until the second proxy has admitted the client. Returns False if it has
        refused the client, which has then got the reason.

        Raises ConnectionLost if the client has left, HostUnreachable if the second proxy has.
        """
        upward = self._readiness.loop.create_task(self._pass_upward())
        downward = self._readiness.loop.create_task(self._pass_downward())
        both = (upward, downward)
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)
        if not downward.cancelled():
            return downward.result()
        upward.result()
        raise AssertionError("the client's bytes are passed on without an end")

    @contextlib.contextmanager
    def relaying(self) -> Iterator[Relay]:
        """Passes bytes on from now on, at most until the end of the block. Returns the relay."""
        relay = Relay(
            self._client, self._peer, readiness=self._readiness, sent=Tally(), received=Tally()
        )
        to_client = self._peer.take_ahead()
        relay.start(to_client=to_client, to_compute=self._rest + self._client.take_ahead())
        try:
            yield relay
        finally:
            relay.close()

    async def _pass_upward(self) -> None:
        """Raises ConnectionLost at the client's end."""
        self._rest += self._client.take_ahead()
        while True:
            self._rest = self._rest or await self._client.read_some()
            try:
                # Nothing may be lost if this task is cancelled between two attempts.
                self._rest = self._rest[self._peer.send(self._rest) :]
            except WOULD_BLOCK:
                await self._peer.until_writable()
            except OSError:
                # The other task meets the same end, and may have a last message to pass on first.
                await asyncio.Event().wait()

    async def _pass_downward(self) -> bool:
        """Returns True once the peer has admitted the client, and False after the peer's error."""
        is_refused = False
        while True:
            try:
                message = await self._read_message()
            except ConnectionLost as error:
                if is_refused:
                    return False
                raise HostUnreachable(self._host_id) from error
            if message == ADMITTED:
                return True
            is_refused = message[:1] == _ERROR
            await self._client.write(message)

    async def _read_message(self) -> bytes:
        head = await self._peer.read(messages.HEADER_SIZE)
        size = int.from_bytes(head[1:], "big") - 4
        if not 0 <= size <= _MAX_MESSAGE_BYTES:
            raise HostUnreachable(self._host_id)
        return head + await self._peer.read(size)


# The status, the body, and the headers without those that concern the connection only.
PeerResponse = tuple[int, bytes, list[tuple[str, str]]]


@dataclass(slots=True)
class _Open:
    channel: Channel
    http: h11.Connection = field(
        default_factory=lambda: h11.Connection(
            h11.CLIENT, max_incomplete_event_size=_MAX_HEAD_BYTES
        )
    )

    async def send(self, *events: h11.Event) -> None:
        """Raises ConnectionLost."""
        await self.channel.write(b"".join(self.http.send(event) or b"" for event in events))

    async def next_event(self) -> h11.Event:
        """Raises ConnectionLost, also if the peer violates the protocol."""
        try:
            while (event := self.http.next_event()) is h11.NEED_DATA:
                await asyncio.sleep(0)  # even if the next bytes are at hand
                data = self.channel.take_ahead() or await self.channel.read_some()
                self.http.receive_data(data)
        except h11.RemoteProtocolError as error:
            raise ConnectionLost(str(error)) from error
        if not isinstance(event, h11.Event) or isinstance(event, h11.ConnectionClosed):
            raise ConnectionLost
        return event


class PeerRequests:
    """Passes requests on, each to the host of its endpoint: those of one client's HTTP connection,
    one at a time. `connect` opens a connection to a host, and raises HostUnreachable.

    A client sends requests for different endpoints over one connection. So the first proxy reads
    each request, and sends it to the second over a connection of its own, which it keeps for the
    client's next request. It sends the body only once the second proxy asks for it (`Expect:
    100-continue`), which that does when the client has authenticated. So nobody can fill the memory
    without a password.
    """

    def __init__(self, connect: Callable[[str], Awaitable[Channel]]) -> None:
        self._connect = connect
        self._open: dict[str, _Open] = {}

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].channel.close()

    async def send(
        self,
        host_id: str,
        target: str,
        headers: Mapping[str, str],
        *,
        body: Callable[[], Awaitable[bytes]],
        grow: Callable[[int], None],
    ) -> PeerResponse:
        """Sends a POST to the host and returns the answer. Calls `body` for the request's body once
        the client has authenticated, and `grow` with the number of each further bytes received.

        Raises HostUnreachable if the host has certainly not executed anything,
        AdministratorShutdown if that is unknown, and what the two functions raise.
        """
        used = self._open.pop(host_id, None)
        first = None
        if used is not None:
            # It may have been closed since the last request.
            with contextlib.suppress(ConnectionLost), closed_on_failure(used.channel):
                first = await self._begin(used, target, headers)
        if used is None or first is None:
            used = _Open(await self._connect(host_id))
            try:
                with closed_on_failure(used.channel):
                    first = await self._begin(used, target, headers)
            except ConnectionLost as error:
                raise HostUnreachable(host_id) from error
        with closed_on_failure(used.channel):
            answer = await self._finish(used, first, body, grow)
        self._keep(host_id, used)
        return answer

    async def _begin(
        self, used: _Open, target: str, headers: Mapping[str, str]
    ) -> h11.Response | h11.InformationalResponse:
        """Sends the request's head. Returns what the peer answers to that alone. Raises
        ConnectionLost."""
        kept = {name: value for name, value in headers.items() if name not in _NOT_PASSED_ON}
        all_ = {"host": "", **kept, "expect": "100-continue", "transfer-encoding": "chunked"}
        encoded = [(name.encode(), value.encode()) for name, value in all_.items()]
        try:
            async with asyncio.timeout(_ANSWER_TIMEOUT):
                await used.send(h11.Request(method="POST", target=target, headers=encoded))
                event = await used.next_event()
        except TimeoutError as error:
            raise ConnectionLost from error
        assert isinstance(event, h11.Response | h11.InformationalResponse)
        return event

    async def _finish(
        self,
        used: _Open,
        first: h11.Response | h11.InformationalResponse,
        body: Callable[[], Awaitable[bytes]],
        grow: Callable[[int], None],
    ) -> PeerResponse:
        if isinstance(first, h11.InformationalResponse):
            sent = await body()
        try:
            event: h11.Event = first
            if isinstance(first, h11.InformationalResponse):
                await used.send(h11.Data(data=sent), h11.EndOfMessage())
                event = await used.next_event()
            while isinstance(event, h11.InformationalResponse):
                event = await used.next_event()
            assert isinstance(event, h11.Response)
            parts: list[bytes] = []
            while isinstance(data := await used.next_event(), h11.Data):
                grow(len(data.data))
                parts.append(bytes(data.data))
        except ConnectionLost as error:
            raise AdministratorShutdown("the endpoint's host was lost") from error
        named = [(name.decode("ascii"), value.decode()) for name, value in event.headers]
        headers = [(name.title(), value) for name, value in named if name not in _NOT_PASSED_ON]
        return event.status_code, b"".join(parts), headers

    def _keep(self, host_id: str, used: _Open) -> None:
        if (used.http.our_state, used.http.their_state) == (h11.DONE, h11.DONE):
            used.http.start_next_cycle()
            self._open[host_id] = used
        else:
            used.channel.close()

"""Requests of SQL over HTTP that the first proxy passes on, each to the host of its endpoint.

A client sends requests for different endpoints over one connection. So the first proxy reads each
request, and sends it to the second over a connection of its own, which it keeps for the client's
next request. It sends the body only once the second proxy asks for it (`Expect: 100-continue`),
which that does when the client has authenticated. So nobody can fill the memory without a password.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import h11

from controlplane.proxy.wire.channel import Channel
from controlplane.proxy.wire.errors import AdministratorShutdown, ConnectionLost, HostUnreachable

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


@dataclass(frozen=True, slots=True)
class PeerResponse:
    status: int
    body: bytes
    # Without those that concern the connection only.
    headers: list[tuple[str, str]]


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
    """Of one client's HTTP connection; used by one request at a time. `connect` opens a connection
    to a host, and raises HostUnreachable."""

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
        if used is not None:
            try:
                first = await self._begin(used, target, headers)
            except ConnectionLost:
                # It has been closed since the last request.
                used.channel.close()
                used = None
            except BaseException:
                used.channel.close()
                raise
        if used is None:
            used = _Open(await self._connect(host_id))
            try:
                first = await self._begin(used, target, headers)
            except ConnectionLost as error:
                used.channel.close()
                raise HostUnreachable(host_id) from error
            except BaseException:
                used.channel.close()
                raise
        try:
            answer = await self._finish(used, first, body, grow)
        except BaseException:
            used.channel.close()
            raise
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
        return PeerResponse(event.status_code, b"".join(parts), headers)

    def _keep(self, host_id: str, used: _Open) -> None:
        if (used.http.our_state, used.http.their_state) == (h11.DONE, h11.DONE):
            used.http.start_next_cycle()
            self._open[host_id] = used
        else:
            used.channel.close()

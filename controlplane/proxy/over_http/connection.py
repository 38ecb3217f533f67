"""One connection that speaks HTTP/1.1. It reads requests one after the other and writes their
answers, until it ends or becomes a WebSocket. A handler gives the requests their meaning.

Requests whose end is ambiguous are refused. A reverse proxy that saw the end elsewhere could
mistake part of one client's request for another's. The API's server refuses the same; h11 alone
accepts some of it."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from email.utils import formatdate

import h11

from controlplane.metrics import figures
from controlplane.proxy.over_http import websocket
from controlplane.proxy.over_http.request import (
    MemoryBudget,
    MemoryReservation,
    Request,
    RequestRefused,
    RequestTooLarge,
    Response,
    StatementFailed,
    error_response,
)
from controlplane.proxy.wire.channel import Channel
from controlplane.proxy.wire.errors import ConnectionLost, ProxyError

# The same as Neon's.
MAX_REQUEST_BYTES = 64 * 1024 * 1024
# A connection string may be long, and the driver sends other headers.
_MAX_HEAD_BYTES = 32_768
# Each takes h11 some microseconds. Drivers and reverse proxies together send some dozens.
_MAX_HEADERS = 200
# Time limits in seconds: between two requests, for a request's head, and for bodies both ways. The
# last one is also that of each pause in a request's body. For the whole body it is extended by the
# body's size, at the slowest permitted rate in bytes a second, up to _MAX_BODY_TIMEOUT.
_IDLE_TIMEOUT = 75.0
_HEAD_TIMEOUT = 15.0
_BODY_TIMEOUT = 30.0
_MIN_BYTES_PER_SECOND = 16_384
_MAX_BODY_TIMEOUT = 600.0
# A body up to this size is sent in one write with its head.
_SMALL_BODY_BYTES = 65_536

# The end of every head, and of every chunked body.
END = b"\r\n\r\n"

_BARE_LINE_FEED = re.compile(rb"(?<!\r)\n")
_FOLDED = re.compile(rb"\n[ \t]")
# What h11 quotes in its errors, as Python writes it.
_QUOTED = re.compile(r":? (bytearray\()?b['\"].*", re.DOTALL)
_VERSIONS = (b"1.0", b"1.1")
# Headers with a single value each, beside Neon's own. Joined, two of them would mean something that
# neither says: the second connection string, with its password, would be the name of a database.
_SINGLE = {"authorization", "content-type", "sec-websocket-key", "sec-websocket-version"}


# Reads a request's body. Raises RequestTooLarge, RequestRefused, MemoryExhausted, ConnectionLost.
Body = Callable[[MemoryReservation], Awaitable[bytes]]
# The reservation is for the request and its response, and lasts until the client has read that.
Handler = Callable[[Request, Body, MemoryReservation], Awaitable[Response]]


class HttpConnection:
    def __init__(
        self, channel: Channel, memory: MemoryBudget, *, is_draining: Callable[[], bool]
    ) -> None:
        """Once `is_draining` returns True, the connection ends with its next answer."""
        self._channel = channel
        self._memory = memory
        self._is_draining = is_draining
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=_MAX_HEAD_BYTES)
        self._loop = asyncio.get_running_loop()
        # The body's length by the request's head, in bytes; None if the head does not give it.
        self._declared: int | None = None
        self._is_chunked = False
        # True if the connection must end with this request, because the request's end is in doubt.
        self._must_close = False
        # The bytes received of the request's head, or the last ones of its body.
        self._received = b""

    async def serve(self, handle: Handler) -> Request | None:
        """Answers requests until the connection is to end, then returns None. If the connection
        becomes a WebSocket, its channel carries the WebSocket's messages from then on, and the
        request for it is returned.

        Raises ConnectionLost.
        """
        try:
            while (request := await self._next_request()) is not None:
                if websocket.is_upgrade(request):
                    await self._upgrade(request)
                    return request
                with self._memory.reserve() as reservation:
                    await self._send(await self._answer(request, handle, reservation))
                if (self._http.our_state, self._http.their_state) != (h11.DONE, h11.DONE):
                    break
                self._http.start_next_cycle()
        except ProxyError as error:
            figures.REFUSALS.labels(error.reason).inc()
            await self._channel.write(self.final_message(error))
        except TimeoutError:
            pass  # The client is slow, or has nothing more to ask.
        return None

    def final_message(self, error: ProxyError) -> bytes:
        """Returns the answer for a client that still awaits one; b"" if it can get none."""
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return b""
        if self._http.our_state is h11.IDLE and not isinstance(error, RequestRefused):
            return b""  # The client has not sent a request's whole head.
        answer = error_response(error)
        return self._head(answer, closing=True) + self._end(answer)

    async def _answer(
        self, request: Request, handle: Handler, reservation: MemoryReservation
    ) -> Response:
        try:
            return await handle(request, self._read_body, reservation)
        except ProxyError as error:
            if not isinstance(error, StatementFailed):
                figures.REFUSALS.labels(error.reason).inc()
            return error_response(error)

    async def _next_request(self) -> Request | None:
        """Reads the next request's head. Returns None if the client sends no more requests. Raises
        RequestRefused, ConnectionLost, TimeoutError."""
        has_begun = False
        self._received, _ = self._http.trailing_data
        async with asyncio.timeout(_IDLE_TIMEOUT) as patience:
            while True:
                head, end, _ = self._received.partition(END)
                if len(head) + len(end) > _MAX_HEAD_BYTES:
                    problem = f"its head is longer than {_MAX_HEAD_BYTES} bytes"
                    raise RequestRefused(f"malformed HTTP request: {problem}", status=431)
                if head.count(b"\n") > _MAX_HEADERS:
                    raise RequestRefused(f"too many headers (max is {_MAX_HEADERS})", status=431)
                # A fast client's next bytes are often at hand: others have their turn first.
                await asyncio.sleep(0)
                event = self._next_event()
                if isinstance(event, h11.Request):
                    check_head(self._consumed(), event.http_version)
                    request = _request(event)
                    declared = request.headers.get("content-length")
                    self._declared = int(declared) if declared else None
                    self._is_chunked = "transfer-encoding" in request.headers
                    return request
                if event is not h11.NEED_DATA:
                    return None
                await self._read_more()
                if not has_begun:
                    has_begun = True
                    patience.reschedule(self._loop.time() + _HEAD_TIMEOUT)

    async def _read_body(self, reservation: MemoryReservation) -> bytes:
        if self._declared is not None and self._declared > MAX_REQUEST_BYTES:
            raise RequestTooLarge(MAX_REQUEST_BYTES)
        if self._http.they_are_waiting_for_100_continue:
            go_on = h11.InformationalResponse(status_code=100, headers=[])
            await self._channel.write(self._http.send(go_on) or b"")
        # In one piece, because a client can send a body of very many chunks.
        body = bytearray()
        began = self._loop.time()
        try:
            while True:
                await asyncio.sleep(0)  # as above, for others
                event = self._next_event()
                if isinstance(event, h11.EndOfMessage):
                    if self._is_chunked:
                        # Until the end is known to be correct, nothing after it may be read.
                        self._must_close = True
                        check_end_of_chunks(self._consumed(), event)
                        self._must_close = False
                    return bytes(body)
                if isinstance(event, h11.Data):
                    if len(body) + len(event.data) > MAX_REQUEST_BYTES:
                        raise RequestTooLarge(MAX_REQUEST_BYTES)
                    reservation.grow(len(event.data))
                    body += event.data
                    continue
                self._received = self._received[-len(END) :]
                whole_by, next_by = began + _time_for(len(body)), self._loop.time() + _BODY_TIMEOUT
                async with asyncio.timeout_at(min(whole_by, next_by)):
                    await self._read_more()
        except TimeoutError:
            raise RequestRefused("timeout while reading the request body", status=408) from None

    async def _read_more(self) -> None:
        data = self._channel.take_ahead() or await self._channel.read_some()
        self._received += data
        self._http.receive_data(data)

    def _consumed(self) -> bytes:
        """Returns the received bytes that h11 has parsed."""
        unread, _ = self._http.trailing_data
        return self._received[: len(self._received) - len(unread)]

    def _next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        try:
            return self._http.next_event()
        except h11.RemoteProtocolError as error:
            status = error.error_status_hint
            problem = _QUOTED.sub("", str(error))
            raise RequestRefused(f"malformed HTTP request: {problem}", status=status) from error

    async def _send(self, answer: Response) -> None:
        # If a body is left unread, the start of the next request is not known.
        closing = self._is_draining() or not self._request_is_complete()
        head = self._head(answer, closing=closing)
        end = self._end(answer)
        try:
            async with asyncio.timeout(_time_for(len(end))):
                if len(end) <= _SMALL_BODY_BYTES:
                    await self._channel.write(head + end)
                else:
                    await self._channel.write(head)
                    await self._channel.write(end)
        except TimeoutError as error:
            raise ConnectionLost("the client does not read its answer") from error

    def _request_is_complete(self) -> bool:
        """True if the request was read to its end. A request without a body is, by its head."""
        if self._must_close:
            return False
        if self._http.their_state is h11.SEND_BODY and not self._is_chunked:
            self._next_event()
        return self._http.their_state is not h11.SEND_BODY

    def _head(self, answer: Response, *, closing: bool) -> bytes:
        headers = [
            ("Date", formatdate(usegmt=True)),
            ("Access-Control-Allow-Origin", "*"),
            *answer.headers,
            ("Content-Length", str(len(answer.body))),
        ]
        if answer.body:
            headers.append(("Content-Type", "application/json"))
        if closing:
            headers.append(("Connection", "close"))
        response = h11.Response(status_code=answer.status, headers=headers)
        return self._http.send(response) or b""

    def _end(self, answer: Response) -> bytes:
        data = self._http.send(h11.Data(data=answer.body)) or b""
        return data + (self._http.send(h11.EndOfMessage()) or b"")

    async def _upgrade(self, request: Request) -> None:
        headers = websocket.accept(request)
        if self._is_chunked or not self._request_is_complete():
            raise RequestRefused("malformed WebSocket request: it has a body")
        # What follows is not HTTP.
        agreed = h11.InformationalResponse(status_code=101, headers=headers)
        await self._channel.write(self._http.send(agreed) or b"")
        behind, _ = self._http.trailing_data
        ahead = bytes(behind) + self._channel.take_ahead()
        self._channel.set_framing(websocket.WebSocketFraming(self._channel, ahead))


def _time_for(size: int) -> float:
    """Returns the seconds in which a body of this size must have passed."""
    return min(_BODY_TIMEOUT + size / _MIN_BYTES_PER_SECOND, _MAX_BODY_TIMEOUT)


def _request(event: h11.Request) -> Request:
    path, _, query = event.target.decode("ascii", errors="replace").partition("?")
    headers: dict[str, str] = {}
    for raw_name, raw_value in event.headers:
        name, value = raw_name.decode("ascii", errors="replace"), raw_value.decode(errors="replace")
        if name in headers and (name in _SINGLE or name.startswith(("neon-", "perch-"))):
            raise RequestRefused(f"malformed HTTP request: it has two headers {name}")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return Request(
        method=event.method.decode("ascii", errors="replace"),
        path=path,
        query=query,
        headers=headers,
        version=event.http_version.decode("ascii"),
    )


def check_head(head: bytes, version: bytes) -> None:
    """Checks the head, given as it was sent, with its end. Raises RequestRefused."""
    if version not in _VERSIONS:
        raise RequestRefused("malformed HTTP request: only HTTP/1.1 is supported", status=505)
    fields = [line.partition(b":")[::2] for line in head.lower().split(b"\r\n")]
    lengths = [value.strip(b" \t") for name, value in fields if name == b"content-length"]
    has_coding = any(name == b"transfer-encoding" for name, _ in fields)
    if _BARE_LINE_FEED.search(head):
        problem = "a line ends without a carriage return"
    elif _FOLDED.search(head):
        problem = "a header continues on the next line"
    elif len(lengths) > 1 or not all(length.isdigit() for length in lengths):
        problem = "Content-Length must be a single number"
    elif has_coding and lengths:
        problem = "it has both Content-Length and Transfer-Encoding"
    elif has_coding and version == b"1.0":
        problem = "HTTP/1.0 does not allow Transfer-Encoding"
    else:
        return
    raise RequestRefused(f"malformed HTTP request: {problem}")


def check_end_of_chunks(body: bytes, event: h11.EndOfMessage) -> None:
    """Checks the end of a chunked body: its last bytes as they were sent, and the event that h11
    made of them. Raises RequestRefused."""
    if list(event.headers):
        raise RequestRefused("malformed HTTP request: trailers are not supported")
    if not body.endswith(END):
        raise RequestRefused("malformed HTTP request: a line ends without a carriage return")

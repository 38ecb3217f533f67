"""One connection that speaks HTTP/1.1. It reads requests one after the other and writes their
answers, until it ends or becomes a WebSocket. A handler gives the requests their meaning.

Work for clients that have not authenticated is bounded: they get few answers and take turns."""

import asyncio
from collections.abc import Awaitable, Callable
from email.utils import formatdate
from functools import lru_cache

from controlplane.metrics import figures
from controlplane.proxy.limits.pending_clients import PendingTurns
from controlplane.proxy.over_http import websocket
from controlplane.proxy.over_http.framing import Body, PlainBody, parse_head, take_head
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
from controlplane.proxy.wire.errors import ConnectionLost, PasswordFailed, ProxyError

# The same as Neon's.
MAX_REQUEST_BYTES = 64 * 1024 * 1024
# Time limits in seconds: between two requests, for a request's head, and for bodies both ways. The
# last one is also that of each pause in a request's body. For the whole body it is extended by the
# body's size, at the slowest permitted rate in bytes a second, up to _MAX_BODY_TIMEOUT.
_IDLE_TIMEOUT = 75.0
_HEAD_TIMEOUT = 15.0
_BODY_TIMEOUT = 30.0
_MIN_BYTES_PER_SECOND = 16_384
_MAX_BODY_TIMEOUT = 600.0
# How many requests in a row may be answered for which the client has not authenticated, such as
# OPTIONS. The connection of a client that never has ends with its first refusal.
_MAX_UNPROVED = 10
# A body up to this size is sent in one write with its head.
_SMALL_BODY_BYTES = 65_536


# Reads a request's body. Raises RequestTooLarge, RequestRefused, MemoryExhausted, ConnectionLost.
ReadBody = Callable[[MemoryReservation], Awaitable[bytes]]
# The reservation is for the request and its response, and lasts until the client has read that.
Handler = Callable[[Request, ReadBody, MemoryReservation], Awaitable[Response]]


class HttpConnection:
    def __init__(
        self,
        channel: Channel,
        memory: MemoryBudget,
        *,
        is_draining: Callable[[], bool],
        turns: PendingTurns,
        pause: Callable[[], float],
    ) -> None:
        """Once `is_draining` returns True, the connection ends with its next answer. `pause`
        returns the seconds to wait before the next refusal."""
        self._channel = channel
        self._memory = memory
        self._is_draining = is_draining
        self._turns = turns
        self._pause = pause
        # Whether the client has ever authenticated, and how many requests it has sent since then.
        self._has_authenticated = False
        self._unproved = 0
        self._loop = asyncio.get_running_loop()
        # What has been received and not been taken yet.
        self._received = bytearray()
        # Of the last request whose head was received: its body, whether its response has none, and
        # whether the connection must end with it.
        self._body: Body = PlainBody(0)
        self._is_head = self._must_close = self._awaits_continue = False
        # True while a request, or a head that is refused, has no answer yet.
        self._awaits_answer = False

    async def serve(self, handle: Handler) -> Request | None:
        """Answers requests until the connection is to end, then returns None. If the connection
        becomes a WebSocket, its channel carries the WebSocket's messages from then on, and the
        request for it is returned.

        Raises ConnectionLost.
        """
        try:
            while not self._must_close:
                request = await self._next_request()
                if websocket.is_upgrade(request):
                    await self._upgrade(request)
                    return request
                self._unproved += 1
                with self._memory.reserve() as reservation:
                    await self._send(await self._answer(request, handle, reservation))
        except ProxyError as error:
            figures.REFUSALS.labels(error.reason).inc()
            await self._delay_refusal(error)
            await self._channel.write(self.final_message(error))
        except TimeoutError:
            pass  # The client is slow, or has nothing more to ask.
        return None

    def note_authenticated(self) -> None:
        """Notes that the client has authenticated for its present request."""
        self._has_authenticated, self._unproved = True, 0

    def final_message(self, error: ProxyError) -> bytes:
        """Returns the answer for a client that still awaits one; b"" if it can get none."""
        if not self._awaits_answer:
            return b""
        self._must_close = True
        return b"".join(self._written(error_response(error)))

    async def _answer(
        self, request: Request, handle: Handler, reservation: MemoryReservation
    ) -> Response:
        try:
            return await handle(request, self._read_body, reservation)
        except ProxyError as error:
            if not isinstance(error, StatementFailed):
                figures.REFUSALS.labels(error.reason).inc()
            await self._delay_refusal(error)
            self._must_close |= not self._has_authenticated
            return error_response(error)

    async def _delay_refusal(self, error: ProxyError) -> None:
        if not (self._has_authenticated or isinstance(error, PasswordFailed)):  # which was delayed
            await asyncio.sleep(self._pause())

    async def _next_request(self) -> Request:
        """Reads the next request's head. Raises RequestRefused, ConnectionLost, TimeoutError."""
        # A fast client's next request is often at hand: others have their turn first.
        if self._received:
            await asyncio.sleep(0)
        has_begun = False
        async with asyncio.timeout(_IDLE_TIMEOUT) as patience:
            while True:
                if not self._has_authenticated:
                    await self._turns.next()
                try:
                    if (head := take_head(self._received)) is not None:
                        request, self._body = parse_head(head)
                        break
                except RequestRefused:
                    self._awaits_answer, self._is_head = True, False
                    raise
                if self._received and not has_begun:
                    has_begun = True
                    patience.reschedule(self._loop.time() + _HEAD_TIMEOUT)
                await self._read_more()
        self._awaits_answer, self._is_head = True, request.method == "HEAD"
        self._must_close = request.version == "1.0" or "close" in request.tokens("connection")
        self._awaits_continue = request.version == "1.1" and "100-continue" in request.tokens(
            "expect"
        )
        return request

    async def _read_body(self, reservation: MemoryReservation) -> bytes:
        if self._body.declared > MAX_REQUEST_BYTES:
            raise RequestTooLarge(MAX_REQUEST_BYTES)
        if self._awaits_continue and not self._received:
            await self._channel.write(b"HTTP/1.1 100 \r\n\r\n")
        # In one piece, because a client can send a body of very many chunks.
        body = bytearray()
        began = self._loop.time()
        try:
            while not self._body.has_ended:
                if taken := self._body.take(self._received):
                    if len(body) + len(taken) > MAX_REQUEST_BYTES:
                        raise RequestTooLarge(MAX_REQUEST_BYTES)
                    reservation.grow(len(taken))
                    body += taken
                    if not self._body.has_ended:
                        await asyncio.sleep(0)  # as above, for others
                elif not self._body.has_ended:
                    whole_by = began + _time_for(len(body))
                    next_by = self._loop.time() + _BODY_TIMEOUT
                    async with asyncio.timeout_at(min(whole_by, next_by)):
                        await self._read_more()
        except TimeoutError:
            raise RequestRefused("timeout while reading the request body", status=408) from None
        return bytes(body)

    async def _read_more(self) -> None:
        self._received += await self._channel.next_ahead()

    async def _send(self, answer: Response) -> None:
        # If a body is left unread, the start of the next request is not known.
        is_last = self._is_draining() or self._unproved >= _MAX_UNPROVED
        self._must_close |= is_last or not self._body.has_ended
        first, rest = self._written(answer)
        self._awaits_answer = False
        first = self._channel.write_now(first)
        if not (first or rest):
            return
        try:
            async with asyncio.timeout(_time_for(len(rest))):
                await self._channel.write(first)
                await self._channel.write(rest)
        except TimeoutError as error:
            raise ConnectionLost("the client does not read its answer") from error

    def _written(self, answer: Response) -> tuple[bytes, bytes]:
        """Returns the answer in one part, or a large one in two."""
        body = answer.body
        head = [
            f"HTTP/1.1 {answer.status} ",
            f"Date: {_date(int(self._loop.time()))}",
            "Access-Control-Allow-Origin: *",
            *(f"{name}: {value}" for name, value in answer.headers),
            f"Content-Length: {len(body)}",
        ]
        if body:
            head.append("Content-Type: application/json")
        if self._must_close:
            head.append("Connection: close")
        written = "\r\n".join([*head, "\r\n"]).encode()
        if self._is_head:
            body = b""
        return (written + body, b"") if len(body) <= _SMALL_BODY_BYTES else (written, body)

    async def _upgrade(self, request: Request) -> None:
        headers = websocket.accept(request)
        if not self._body.has_ended:
            raise RequestRefused("malformed WebSocket request: it has a body")
        self._awaits_answer = False
        agreed = ["HTTP/1.1 101 ", *(f"{name}: {value}" for name, value in headers)]
        await self._channel.write("\r\n".join([*agreed, "\r\n"]).encode())
        # What follows is not HTTP.
        self._channel.unwatch()
        ahead = bytes(self._received) + self._channel.take_ahead()
        self._channel.set_framing(websocket.WebSocketFraming(self._channel, ahead))


def _time_for(size: int) -> float:
    """Returns the seconds in which a body of this size must have passed."""
    return min(_BODY_TIMEOUT + size / _MIN_BYTES_PER_SECOND, _MAX_BODY_TIMEOUT)


@lru_cache(maxsize=1)
def _date(_second: int) -> str:
    """Returns the date and time, made once in each second of the loop's clock."""
    return formatdate(usegmt=True)

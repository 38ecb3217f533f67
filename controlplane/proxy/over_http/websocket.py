"""A WebSocket whose binary messages carry the bytes of the Postgres protocol, split anywhere."""

import base64
import contextlib
import struct
import time
from collections.abc import Callable
from itertools import islice
from urllib.parse import parse_qs

from wsproto import ConnectionType
from wsproto.connection import Connection
from wsproto.events import BytesMessage, CloseConnection, Message, Ping, Pong, TextMessage
from wsproto.frame_protocol import CloseReason
from wsproto.utilities import LocalProtocolError, generate_accept_token

from controlplane.proxy.over_http.request import Request, RequestRefused
from controlplane.proxy.wire.channel import WOULD_BLOCK, Channel

_VERSION = "13"
_KEY_SIZE = 16
_CHUNK_BYTES = 16_384  # The most bytes of one read.
# How many frames are parsed before others have their turn. Each takes about 10 microseconds.
_MAX_FRAMES = 64
# How many frames without data, such as pings, a client may send, and how many more each second.
_MAX_EMPTY_FRAMES, _EMPTY_FRAMES_PER_SECOND = 100, 10
_BINARY_MESSAGE = 0x82
_MAX_REASON_LENGTH = 100


def is_upgrade(request: Request) -> bool:
    return "websocket" in request.tokens("upgrade") and "upgrade" in request.tokens("connection")


def accept(request: Request) -> list[tuple[str, str]]:
    """Returns the headers of the answer that opens the WebSocket. Raises RequestRefused."""
    key = request.headers.get("sec-websocket-key", "")
    if request.headers.get("sec-websocket-version") != _VERSION:
        raise RequestRefused(
            f"unsupported WebSocket version: this server supports version {_VERSION}", status=426
        )
    if request.method != "GET" or request.version != "1.1" or not _is_key(key):
        raise RequestRefused("malformed WebSocket request")
    token = generate_accept_token(key.encode(errors="replace"))
    return [
        ("Upgrade", "WebSocket"),
        ("Connection", "Upgrade"),
        ("Sec-WebSocket-Accept", token.decode()),
    ]


def _is_key(text: str) -> bool:
    """True if the text is sixteen bytes in base64 (RFC 6455, 4.1)."""
    try:
        return len(base64.b64decode(text, validate=True)) == _KEY_SIZE
    except ValueError:
        return False


def requested_host(request: Request) -> str | None:
    """Returns the host that the client wants to reach: the one in `?address=host:port`, which the
    driver sends to a proxy with an address of its own, else the one in the Host header."""
    address = parse_qs(request.query).get("address", [request.headers.get("host", "")])[0]
    return address.rpartition(":")[0] if ":" in address else address or None


class WebSocketFraming:
    """See `channel.Framing`.

    Each `send` becomes a message of its own. If the socket takes only a part of it, the rest must
    be sent next, because the message's length has been sent already.
    """

    def __init__(self, channel: Channel, ahead: bytes) -> None:
        """`ahead` are the bytes received after the request for the WebSocket."""
        self._receive: Callable[[int], bytes] = channel.receive
        self._send: Callable[[bytes | memoryview], int] = channel.send
        self._channel = channel
        self._protocol = Connection(ConnectionType.SERVER)
        # True while it may hold frames that have not been parsed.
        self._has_more = False
        self._began = time.monotonic()
        self._empty_frames = 0
        self._payload = b""
        # True once either side has ended the WebSocket.
        self._has_ended = False
        # Control frames and the head of a message, to be sent before its bytes.
        self._out = b""
        # How many bytes of the current message are still to be sent.
        self._unsent = 0
        # Control frames that must wait for the end of the current message.
        self._control = b""
        if ahead:
            self._protocol.receive_data(ahead)
            self._parse()

    def receive(self, size: int) -> bytes:
        if not self._payload and not self._has_ended:
            if not self._has_more:
                self._channel.withdraw_input()
                data = self._receive(_CHUNK_BYTES)
                if not data:
                    self._has_ended = True
                    return b""
                self._protocol.receive_data(data)
            self._parse()
        if not self._payload and not self._has_ended:
            raise BlockingIOError
        payload, self._payload = self._payload[:size], self._payload[size:]
        return payload

    def take_ahead(self) -> bytes:
        payload, self._payload = self._payload, b""
        # Nothing is left in the TLS layer, because each read takes a whole record.
        return payload

    def send(self, data: bytes | memoryview) -> int:
        if not self._unsent:
            self._out += self._take_control() + _head(len(data))
            self._unsent = len(data)
        waiting = len(self._out)
        sent = self._send(self._out + bytes(data) if waiting else data)
        self._out = self._out[sent:]
        of_data = max(0, sent - waiting)
        self._unsent -= of_data
        return of_data

    def end(self) -> None:
        self._close(CloseReason.NORMAL_CLOSURE)

    def _parse(self) -> None:
        parts: list[bytes] = []
        number = 0
        for event in islice(self._protocol.events(), _MAX_FRAMES):
            number += 1
            match event:
                case BytesMessage():
                    parts.append(bytes(event.data))
                case TextMessage():
                    self._close(CloseReason.UNSUPPORTED_DATA, "only binary messages are supported")
                case Ping():
                    # Only the last ping is answered, so that answers cannot pile up.
                    self._send_control(self._protocol.send(event.response()), instead=True)
                case CloseConnection():
                    self._close(event.code, event.reason or "")
            if isinstance(event, Ping | Pong) or (isinstance(event, Message) and not event.data):
                self._count_empty()
            if self._has_ended:
                break
        self._payload += b"".join(parts)
        had_more, self._has_more = self._has_more, number == _MAX_FRAMES
        if had_more or self._has_more or self._has_ended:
            # The socket need not become readable any more, even if this call returns data. It may
            # also have broken since the last read, which is reported only once.
            self._channel.announce_input()

    def _count_empty(self) -> None:
        self._empty_frames += 1
        seconds = time.monotonic() - self._began
        if self._empty_frames > _MAX_EMPTY_FRAMES + _EMPTY_FRAMES_PER_SECOND * seconds:
            self._close(CloseReason.POLICY_VIOLATION, "too many frames without data")

    def _close(self, code: int, reason: str = "") -> None:
        """Stops receiving, and tells the peer so if that is possible."""
        self._has_ended = True
        with contextlib.suppress(LocalProtocolError):
            closing = CloseConnection(code=code, reason=reason[:_MAX_REASON_LENGTH])
            self._send_control(self._protocol.send(closing))

    def _send_control(self, frame: bytes, *, instead: bool = False) -> None:
        """Sends a control frame, now or with the next message."""
        self._control = frame if instead else self._control + frame
        if self._unsent:
            return
        with contextlib.suppress(*WOULD_BLOCK, OSError):
            # Only what can be sent leaves `_control`, where the next answer to a ping replaces it.
            while self._out or self._control:
                self._out = self._out or self._take_control()
                self._out = self._out[self._send(self._out) :]

    def _take_control(self) -> bytes:
        control, self._control = self._control, b""
        return control


def _head(size: int) -> bytes:
    """Returns the head of a whole unmasked binary message."""
    if size < 126:
        return struct.pack("!BB", _BINARY_MESSAGE, size)
    if size < 65_536:
        return struct.pack("!BBH", _BINARY_MESSAGE, 126, size)
    return struct.pack("!BBQ", _BINARY_MESSAGE, 127, size)

"""A client of the tests' own that speaks the Postgres protocol over WebSocket."""

import contextlib
import socket
import ssl
import struct
from collections.abc import Iterator

from websockets.sync.client import ClientConnection, connect

from controlplane.proxy.wire import messages
from tests.proxy.conftest import ENDPOINT, PASSWORDS
from tests.proxy.running_proxy import RunningProxy

UPGRADE = (
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
)


@contextlib.contextmanager
def opened(
    proxy: RunningProxy,
    *,
    host: str = f"{ENDPOINT}.localhost",
    path: str = "/v2",
    tls: bool = False,
) -> Iterator[ClientConnection]:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connection = socket.create_connection(("127.0.0.1", proxy.port))
    with connect(
        f"{'wss' if tls else 'ws'}://{host}:{proxy.port}{path}",
        sock=connection,
        ssl=context if tls else None,
        max_size=None,
        compression=None,
        proxy=None,
    ) as opened:
        yield opened


def startup(**parameters: str) -> bytes:
    given = {"user": "alice", "database": "postgres", **parameters}
    return messages.startup_message({name.encode(): text.encode() for name, text in given.items()})


def password(text: str = PASSWORDS["alice"]) -> bytes:
    return messages.message(b"p", text.encode() + b"\0")


def query(text: str) -> bytes:
    return messages.message(b"Q", text.encode() + b"\0")


class Reader:
    """Reads Postgres's messages from WebSocket messages."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._buffer = b""

    def read(self) -> tuple[bytes, bytes]:
        while True:
            for kind, start, end in messages.complete_messages(self._buffer, limit=2**31):
                payload, self._buffer = self._buffer[start:end], self._buffer[end:]
                return kind, payload
            chunk = self._connection.recv(timeout=30)
            assert isinstance(chunk, bytes)
            self._buffer += chunk

    def until(self, *wanted: bytes) -> list[tuple[bytes, bytes]]:
        found = [self.read()]
        while found[-1][0] not in wanted:
            found.append(self.read())
        return found


def values(found: list[tuple[bytes, bytes]]) -> list[bytes]:
    """Return the first column of each row."""
    rows = [payload for kind, payload in found if kind == b"D"]
    return [row[6 : 6 + struct.unpack("!i", row[2:6])[0]] for row in rows]


def logged_in(connection: ClientConnection, **parameters: str) -> Reader:
    connection.send(startup(**parameters) + password())
    reader = Reader(connection)
    reader.until(b"Z")
    return reader


def frame(payload: bytes, *, opcode: int = 2, final: bool = True, masked: bool = True) -> bytes:
    """Return a client's frame, masked with zeros."""
    head = struct.pack("!B", opcode | (0x80 if final else 0))
    mask = 0x80 if masked else 0
    if len(payload) < 126:
        head += struct.pack("!B", mask | len(payload))
    else:
        head += struct.pack("!BH", mask | 126, len(payload))
    return head + (bytes(4) if masked else b"") + payload

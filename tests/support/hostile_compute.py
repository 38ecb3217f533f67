"""A process in place of a compute's Postgres, as an attacker in the compute could run it. It speaks
the protocol as far as the platform does, and answers as a test chooses."""

import socket
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# What is sent in answer to one statement, in pieces, before ReadyForQuery.
Answer = Callable[[], Iterable[bytes]]
TEXT, INT8, TIMESTAMP, TIMESTAMPTZ = 25, 20, 1114, 1184
BOOL, BYTEA, TEXT_ARRAY = 16, 17, 1009


def message(kind: bytes, payload: bytes) -> bytes:
    return kind + struct.pack("!I", len(payload) + 4) + payload


def rows(*values: tuple[bytes | None, ...], types: tuple[int, ...]) -> bytes:
    """Return the messages of these rows. Their columns have these types."""
    described = b"".join(b"c\0" + struct.pack("!IhIhih", 0, 0, one, -1, -1, 0) for one in types)
    answered = [message(b"T", struct.pack("!h", len(types)) + described)]
    for row in values:
        cells = (b"\xff" * 4 if one is None else struct.pack("!I", len(one)) + one for one in row)
        answered.append(message(b"D", struct.pack("!h", len(row)) + b"".join(cells)))
    return b"".join([*answered, message(b"C", b"SELECT 1\0")])


def without_end(piece: bytes) -> Answer:
    def repeated() -> Iterator[bytes]:
        yield rows(types=(TEXT,))[:-14]  # a description without an end
        while True:
            yield piece

    return repeated


def _serve(connection: socket.socket, greeting: Answer, answer: Answer) -> None:
    with connection, suppress(OSError, struct.error), connection.makefile("rb") as said:
        said.read(struct.unpack("!I", said.read(4))[0] - 4)
        connection.sendall(message(b"R", bytes(4)))
        for piece in greeting():
            connection.sendall(piece)
        connection.sendall(message(b"K", bytes(8)) + message(b"Z", b"I"))
        is_extended = False
        while kind := said.read(1):
            said.read(struct.unpack("!I", said.read(4))[0] - 4)
            is_extended = is_extended or kind == b"P"
            if kind not in b"QS":
                continue
            if is_extended:
                connection.sendall(message(b"1", b"") + message(b"2", b""))
            for piece in answer():
                connection.sendall(piece)
            connection.sendall(message(b"Z", b"I"))


@contextmanager
def hostile_compute(
    directory: Path, answer: Answer, *, greeting: Answer = lambda: ()
) -> Iterator[None]:
    """Listen in the directory in place of a compute of this process's account."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = directory / ".s.PGSQL.5432"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def accept() -> None:
            with suppress(OSError):
                while True:
                    made, _ = listener.accept()
                    threading.Thread(target=_serve, args=(made, greeting, answer)).start()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            path.unlink()

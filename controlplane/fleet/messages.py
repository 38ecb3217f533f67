"""The messages that two hosts' workers send each other over one connection, which their proxies
have authenticated. A message is an object in JSON, or some bytes of a file. A worker's
connections are made by `fleet.host_links`."""

import json
import os
import socket
import subprocess
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from controlplane.compute.host.patience import readable, remaining, report_progress
from controlplane.models import Host

# Bytes of the longest message, and of those of files.
MAX_MESSAGE_BYTES = 1 << 20
CHUNK_BYTES = 256 << 10
# Seconds between two looks whether the work was cancelled, and the longest silence of a peer that
# must not be silent.
_CANCEL_CHECK_INTERVAL, SILENCE_TIMEOUT = 0.5, 120.0
# Seconds that the other host gets to take the last message.
LAST_TIMEOUT = 5.0
# The most characters of a reason that the other host gives.
_MAX_REASON_LENGTH = 2000
_JSON, _BYTES = b"J", b"B"
_HEADER_BYTES = 5


class LinkBroken(Exception):
    """The connection to the other host's worker has ended, or it has sent what it must not."""


class MoveInterrupted(LinkBroken):
    """The other host cannot go on now; another attempt may succeed. The message is its reason."""


class MoveRefused(Exception):
    """The other host does not take part in the move; the message is its reason."""


class Link:
    """Owns the connection. Every wait ends when the work of this thread is cancelled or has had no
    progress for too long (`patience`)."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        # What was told and given, and is sent when there is enough of it or an answer is awaited.
        self._unsent = bytearray()
        # Objects that the other host has sent before they were awaited.
        self._early = deque[dict[str, Any]]()
        connection.settimeout(_CANCEL_CHECK_INTERVAL)

    def close(self) -> None:
        self._connection.close()

    def flush(self) -> None:
        """Send at once what was told and given. Raises LinkBroken."""
        unsent, self._unsent = memoryview(self._unsent), bytearray()
        deadline = time.monotonic() + SILENCE_TIMEOUT
        while unsent:
            remaining()
            try:
                unsent = unsent[self._connection.send(unsent) :]
            except TimeoutError:
                if time.monotonic() > deadline:
                    raise LinkBroken("the other host takes nothing any more") from None
            except OSError as error:
                raise LinkBroken(f"the connection to the other host has ended: {error}") from error

    def send(self, **message: Any) -> None:
        """Send an object. Raises LinkBroken."""
        self._send(_JSON, json.dumps(message).encode())

    def send_bytes(self, piece: bytes) -> None:
        """Send bytes of a file, at most MAX_MESSAGE_BYTES. Raises LinkBroken."""
        self._send(_BYTES, piece)

    def receive(self) -> dict[str, Any]:
        """Receive an object. Raises LinkBroken; and MoveInterrupted or MoveRefused if it says
        so."""
        self.flush()
        return self._early.popleft() if self._early else self._object()

    def heed(self) -> None:
        """Take what the other host has sent meanwhile: it may take no more of what this one sends.
        Raises what `receive` raises."""
        # What can be read may be of TLS alone.
        if self._is_readable(0) and (begun := self._some(_HEADER_BYTES)):
            self._early.append(self._object(begun))

    def send_last(self, **message: Any) -> None:
        """Send an object, and drop what comes until the other host has closed: with unread bytes,
        the end of the connection could cost it the object. Raises LinkBroken."""
        self.send(**message)
        self.flush()
        until = time.monotonic() + LAST_TIMEOUT
        with suppress(LinkBroken):
            while (left := until - time.monotonic()) > 0:
                if self._is_readable(left):
                    self._some(CHUNK_BYTES)

    def _object(self, begun: bytes = b"") -> dict[str, Any]:
        kind, content = self._receive(begun)
        if kind != _JSON:
            raise LinkBroken("the other host has sent bytes of a file")
        message = json.loads(content)
        if not isinstance(message, dict):
            raise LinkBroken("the other host has sent something else than an object")
        if "interrupted" in message:
            raise MoveInterrupted(str(message["interrupted"])[:_MAX_REASON_LENGTH])
        if "refused" in message:
            raise MoveRefused(str(message["refused"])[:_MAX_REASON_LENGTH])
        return message

    def receive_bytes(self) -> bytes:
        """Receive bytes of a file. Raises LinkBroken."""
        kind, content = self._receive()
        if kind != _BYTES:
            raise LinkBroken("the other host has sent no bytes of a file")
        return content

    def receive_into(self, file: int, at: int, length: int) -> None:
        """Receive that many bytes of a file and write them at `at`. Raises LinkBroken, OSError."""
        end = at + length
        while at < end:
            piece = self.receive_bytes()
            if not 0 < len(piece) <= end - at:
                raise LinkBroken("the other host has sent more bytes than it has announced")
            written = 0
            while written < len(piece):
                written += os.pwrite(file, piece[written:], at + written)
            at += len(piece)

    def _send(self, kind: bytes, content: bytes) -> None:
        self._unsent += kind + len(content).to_bytes(_HEADER_BYTES - 1, "big") + content
        if len(self._unsent) >= CHUNK_BYTES:
            self.flush()
        report_progress()

    def _receive(self, begun: bytes = b"") -> tuple[bytes, bytes]:
        self.flush()
        head = begun + self._read(_HEADER_BYTES - len(begun))
        size = int.from_bytes(head[1:], "big")
        if size > MAX_MESSAGE_BYTES:
            raise LinkBroken("the other host has sent a message that is too long")
        content = self._read(size)
        report_progress()
        return head[:1], content

    def _read(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            self._until_readable()
            found += self._some(size - len(found))
        return bytes(found)

    def _some(self, size: int) -> bytes:
        """At most `size` bytes; none if there are none yet. Raises LinkBroken."""
        try:
            part = self._connection.recv(size)
        except TimeoutError:
            return b""
        except OSError as error:
            raise LinkBroken(f"the connection to the other host has ended: {error}") from error
        if not part:
            raise LinkBroken("the other host has closed the connection")
        return part

    def _until_readable(self) -> None:
        while not self._is_readable(0):
            remaining()
            if self._is_readable(_CANCEL_CHECK_INTERVAL):
                return

    def _is_readable(self, timeout: float) -> bool:
        """Whether anything can be read within this time, in seconds."""
        pending = getattr(self._connection, "pending", None)
        if pending and pending():
            return True
        return bool(readable(self._connection, timeout=timeout))


@dataclass(frozen=True)
class HostLinks:
    """How this host's worker reaches the workers of other hosts."""

    # Opens a connection to the host's worker. Raises LinkBroken.
    connect: Callable[[Host], socket.socket]
    # Starts the process that carries the log of a receiver. Raises OSError.
    carry_log: Callable[[Host, str, socket.socket, int], "subprocess.Popen[bytes]"]


# The worker sets it when it begins.
links: HostLinks | None = None


def host_links() -> HostLinks:
    """Raises LinkBroken if this process is no worker."""
    if links is None:
        raise LinkBroken("only a worker connects to other hosts")
    return links

"""One connection's non-blocking socket, plain or TLS. Reads and writes are awaited while the
connection starts up, and are bare system calls for the relay afterwards.

asyncio's own streams and transports are not used on purpose: for every message they cost a copy, a
callback and, with TLS, a second step of the event loop.
"""

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import Callable, Iterator
from functools import partial
from typing import NoReturn, Protocol, cast

from controlplane.proxy.wire.errors import ConnectionLost
from controlplane.proxy.wire.readiness import Readiness, resolve
from controlplane.proxy.wire.tls import ClientTlsSocket

WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
# The most bytes that one read of a plain socket takes.
_PLAIN_CHUNK_BYTES = 65536
# The same for TLS. It is a whole record, so that a read leaves nothing in the TLS layer: no
# readiness event would report data there.
_TLS_CHUNK_BYTES = 16384
# libpq sends as many bytes at once while it has more.
_MORE_FOLLOWS_BYTES = 8192
# Bytes that the kernel is asked to hold for a local peer that much is sent to; it takes twice as
# much memory, as far as net.core.wmem_max allows. A compute has read the usual 208 KiB before the
# proxy runs again, and would wait: for 5 percent of the time of a COPY from a client, or a fifth if
# the client came through another host.
_LARGE_BUFFER_BYTES = 1_048_576
# How many bytes a client may send ahead while it waits for its compute.
_MAX_READ_AHEAD_BYTES = 16384
# How many reads in a row may find data at hand before others have their turn: a peer that sends as
# fast as it is read would keep the loop, and the timers, for itself.
_MAX_IMMEDIATE_READS = 16
# How many more bytes are read from a client that has been refused, and discarded.
_MAX_DRAINED_BYTES = 262144


def _do_nothing() -> None:
    pass


class Closable(Protocol):
    def close(self) -> None: ...


class Framing(Protocol):
    """A layer around every byte that passes, such as a WebSocket's frames. `receive` and `send`
    behave like a Channel's own, and use the ones that the Channel had before."""

    def receive(self, size: int) -> bytes: ...
    def send(self, data: bytes | memoryview) -> int: ...

    def take_ahead(self) -> bytes:
        """Returns what has been received and not been asked for."""

    def end(self) -> None:
        """Tells the peer that nothing more will come, as far as that can be sent at once."""


class Channel:
    """Owns its socket. `receive` and `send` make one attempt each. They may raise one of
    WOULD_BLOCK, or another OSError if the connection broke. `receive` returns b"" at the end."""

    __slots__ = (
        "_ahead",
        "_arrived",
        "_framing",
        "_immediate_reads",
        "_is_closed",
        "_is_local",
        "_is_watched",
        "_lost",
        "_readiness",
        "_socket",
        "chunk_size",
        "fileno",
        "receive",
        "receive_burst",
        "send",
    )

    receive: Callable[[int], bytes]
    # Like `receive`, for as much as may be at hand. The result is only valid within the callback.
    receive_burst: Callable[[], bytes | memoryview]
    send: Callable[[bytes | memoryview], int]

    def __init__(self, connection: socket.socket, readiness: Readiness) -> None:
        self._readiness = readiness
        self._ahead = b""
        self._immediate_reads = 0
        self._is_closed = self._is_watched = False
        self._lost = self._arrived = _do_nothing
        self._framing: Framing | None = None
        self._adopt(connection)
        readiness.adopt(self.fileno)

    @property
    def tls(self) -> ClientTlsSocket | None:
        return self._socket if isinstance(self._socket, ClientTlsSocket) else None

    def _adopt(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._is_local = connection.family == socket.AF_UNIX
        self.fileno = connection.fileno()
        if isinstance(connection, ssl.SSLSocket):
            self.chunk_size = _TLS_CHUNK_BYTES
            self.receive, self.send = connection.read, connection.write
            # With a buffer it returns the number of bytes.
            read = cast(Callable[[int, memoryview], int], connection.read)
            self.receive_burst = partial(self._receive_records, read)
        else:
            self.chunk_size = _PLAIN_CHUNK_BYTES
            self.receive = partial(os.read, self.fileno)
            self.receive_burst = partial(os.read, self.fileno, _PLAIN_CHUNK_BYTES)
            self.send = partial(os.write, self.fileno)

    def set_framing(self, framing: Framing) -> None:
        """Passes all bytes through the framing from now on. Must be called before anything is read
        ahead."""
        self._framing = framing
        self.receive, self.send = framing.receive, framing.send
        self.receive_burst = partial(framing.receive, self.chunk_size)

    def hold_more(self) -> None:
        """Lets the kernel hold more that the peer has not read yet, if the peer is on this machine
        and not too many connections do. To be called when the kernel holds as much as it may."""
        if self._is_local and self._readiness.take_large_buffer(self.fileno):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LARGE_BUFFER_BYTES)

    def announce_input(self) -> None:
        """Wakes up whatever waits for input, because the framing has ended it or holds more."""
        self._readiness.announce_input(self.fileno)

    def withdraw_input(self) -> None:
        self._readiness.withdraw_input(self.fileno)

    async def peek(self, most: int = 1) -> bytes:
        """Returns the first bytes, at least one, which `read` and `take_ahead` return again. On a
        plain connection they are left in the kernel. Raises ConnectionLost at the end."""
        if self.tls is not None:
            self._ahead = self._ahead or await self.read_some()
            return self._ahead[:most]
        while True:
            try:
                found = self._socket.recv(most, socket.MSG_PEEK)
            except BlockingIOError:
                await self._readable()
                continue
            except OSError as error:
                raise ConnectionLost from error
            if not found:
                raise ConnectionLost
            return found

    async def read(self, size: int) -> bytes:
        """Returns exactly `size` bytes, and never takes more from the kernel: what follows may
        belong to TLS or to the relay. Raises ConnectionLost if the connection ends before."""
        data, self._ahead = self._ahead[:size], self._ahead[size:]
        while len(data) < size:
            chunk = await self._receive(size - len(data))
            if not chunk:
                raise ConnectionLost
            data += chunk
        return data

    async def read_some(self) -> bytes:
        """Returns what has arrived, at least one byte. Raises ConnectionLost at the end."""
        chunk = await self._receive(self.chunk_size)
        if not chunk:
            raise ConnectionLost
        return chunk

    async def next_ahead(self) -> bytes:
        """Like `read_some`, but goes on to watch the connection, until `unwatch`. So the next call
        costs less: the loop knows the socket already. Raises ConnectionLost at the end."""
        while not (ahead := self.take_ahead()):
            arrived = self._readiness.loop.create_future()
            self._arrived = partial(resolve, arrived)
            self.watch(self._arrived)
            await arrived
            if not self._ahead:
                raise ConnectionLost
        return ahead

    def write_now(self, data: bytes) -> bytes:
        """Writes as much as the kernel takes at once. Returns the rest. Raises ConnectionLost."""
        try:
            return data[self.send(data) :]
        except WOULD_BLOCK:
            return data
        except OSError as error:
            raise ConnectionLost from error

    async def write(self, data: bytes) -> None:
        """Writes all of `data`. Raises ConnectionLost if the connection breaks."""
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[self.send(rest) :]
            except ssl.SSLWantReadError:
                # The TLS handshake is not finished yet.
                await self._readable()
            except WOULD_BLOCK:
                await self.until_writable()
            except OSError as error:
                raise ConnectionLost from error

    async def start_tls(
        self, context: ssl.SSLContext, *, server_side: bool = True
    ) -> ssl.SSLSocket:
        """Performs the TLS handshake, with the context of a `tls.TlsIdentity` or of
        `peer_tls.PeerTls`. Raises ConnectionLost if that fails."""
        try:
            tls = context.wrap_socket(
                self._socket, server_side=server_side, do_handshake_on_connect=False
            )
        except OSError as error:
            self.close()  # a socket that is broken already may have been closed
            raise ConnectionLost(str(error)) from error
        self._adopt(tls)
        while True:
            try:
                tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._readable()
            except ssl.SSLWantWriteError:
                await self.until_writable()
            except OSError as error:
                raise ConnectionLost(str(error)) from error
            else:
                return tls

    def leave_tls(self) -> None:
        """Goes on without TLS. The other side must do so behind the same byte, and nothing that it
        has sent before may be unread."""
        self._adopt(socket.socket(fileno=self._socket.detach()))

    def watch(self, lost: Callable[[], None] = _do_nothing) -> None:
        """Calls `lost` once when the peer disconnects, until the next `watch` or `unwatch`. Nothing
        but `next_ahead` may read in that time.

        What the peer sends is kept for `take_ahead`. Beyond a limit the rest is left in the kernel,
        and a disconnect is noticed only later.
        """
        self._lost = lost
        if not self._is_watched:
            self._is_watched = True
            self._readiness.add_reader(self.fileno, self._read_ahead)

    def unwatch(self) -> None:
        if self._is_watched:
            self._is_watched = False
            self._readiness.remove_reader(self.fileno)

    def _read_ahead(self) -> None:
        try:
            chunk = self.receive(self.chunk_size)
        except WOULD_BLOCK:
            return
        except OSError:
            chunk = b""
        self._ahead += chunk
        if not chunk or len(self._ahead) >= _MAX_READ_AHEAD_BYTES:
            self.unwatch()
        (self._arrived if chunk else self._lost)()

    def take_ahead(self) -> bytes:
        """Returns what has been read already and not been asked for."""
        ahead, self._ahead = self._ahead, b""
        if self._framing is not None:
            return ahead + self._framing.take_ahead()
        while self.tls is not None and self.tls.pending():
            ahead += self.receive(self.chunk_size)
        return ahead

    async def look_ahead(self) -> bytes:
        """Waits until there is something to read. Returns what `take_ahead` will return. Raises
        ConnectionLost at the end."""
        self._ahead = self.take_ahead()
        if not self._ahead:
            await self.read_ahead()
        return self._ahead

    async def read_ahead(self) -> None:
        """Waits for more bytes, and keeps them for `take_ahead`. Raises ConnectionLost at the
        end."""
        self._ahead += await self.read_some()

    async def finish(self, final_message: bytes, *, timeout: float) -> None:
        """Sends `final_message` and closes. Waits up to `timeout` seconds for the peer to close
        first, because unread input would make the kernel reset the connection and lose them."""
        self.unwatch()
        with contextlib.suppress(ConnectionLost, TimeoutError, ValueError):
            async with asyncio.timeout(timeout):
                await self.write(final_message)
                self.end_output()
                drained = 0
                while drained < _MAX_DRAINED_BYTES:
                    drained += len(await self.read_some())
        self.close()

    def end_output(self) -> None:
        """Tells the peer that nothing more will come."""
        if self._framing is not None:
            self._framing.end()
        with contextlib.suppress(OSError, ValueError):
            if self.tls is not None and self.tls.notifies_end:
                # Sends close_notify, then raises because the peer has not sent its own yet.
                self.tls.unwrap()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Closes the socket. May be called twice. No callback but that of `watch` may be registered
        for it any more."""
        self.unwatch()
        self.receive = self.send = _refuse
        self.receive_burst = partial(_refuse, None)
        # Not by the socket's own number, which it loses if the TLS layer closes it.
        if not self._is_closed:
            self._readiness.forget(self.fileno)
            self._is_closed = True
        self._socket.close()

    def _receive_records(self, read: Callable[[int, memoryview], int]) -> memoryview:
        """Reads several TLS records, if they are large and at hand. They are then written together,
        which wakes the receiver up once."""
        scratch = self._readiness.scratch
        size = last = read(_TLS_CHUNK_BYTES, scratch)
        while last >= _MORE_FOLLOWS_BYTES and size + _TLS_CHUNK_BYTES <= len(scratch):
            try:
                last = read(_TLS_CHUNK_BYTES, scratch[size:])
            except OSError:
                break  # if the connection is broken, the next attempt tells
            size += last
            if not last:
                self.announce_input()  # TLS's end need not be followed by TCP's
        return scratch[:size]

    async def _receive(self, size: int) -> bytes:
        self._immediate_reads += 1
        if self._immediate_reads > _MAX_IMMEDIATE_READS:
            self._immediate_reads = 0
            await asyncio.sleep(0)
        while True:
            try:
                return self.receive(size)
            except (BlockingIOError, ssl.SSLWantReadError):
                await self._readable()
            except ssl.SSLWantWriteError:
                await self.until_writable()
            except OSError as error:
                raise ConnectionLost from error

    async def _readable(self) -> None:
        self._immediate_reads = 0
        ready = self._readiness.loop.create_future()
        self._readiness.add_reader(self.fileno, partial(resolve, ready))
        try:
            await ready
        finally:
            self._readiness.remove_reader(self.fileno)

    async def until_writable(self) -> None:
        """Returns once `send` may be tried again."""
        ready = self._readiness.loop.create_future()
        self._readiness.add_writer(self.fileno, partial(resolve, ready))
        try:
            await ready
        finally:
            self._readiness.remove_writer(self.fileno)


def _refuse(_: object) -> NoReturn:
    raise ConnectionLost


@contextlib.contextmanager
def closed_on_failure(owned: Closable) -> Iterator[None]:
    """Closes what the block owns if the block fails."""
    try:
        yield
    except BaseException:
        owned.close()
        raise

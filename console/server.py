"""The console's gunicorn worker. It bounds how long a client may take to send a request and to
accept the answer, and how many connections the clients of one address may hold."""

import ctypes
import errno
import gc
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from ipaddress import IPv6Address
from typing import Any

import gevent
from gunicorn.http.errors import LimitRequestHeaders
from gunicorn.workers.ggevent import GeventWorker

from console.turns import PAUSE

# New objects between two garbage collections.
GC_THRESHOLD = 50_000
PR_SET_PDEATHSIG = 1
# Seconds within which a request's body must have arrived; an import has up to 9 MiB.
BODY_TIMEOUT = 120.0
# The most bytes of a body that an answer may leave unread, for gunicorn to read before the next
# request, and the seconds for which a client may go on to send a longer one.
MAX_UNREAD_BYTES, DRAIN_TIMEOUT = 65_536, 2.0
# The most bytes of a request's headers together, and characters of its content type, for whose
# parameters Django takes time that grows with the square of their number.
MAX_HEAD_BYTES, MAX_CONTENT_TYPE_LENGTH = 32 << 10, 512


def shut_down(client: Any, how: int) -> None:
    """Let the greenlet that reads from the client's socket find its end, after what has arrived.
    gevent's own shutdown() would raise EBADF in it at once, which gunicorn logs as an error."""
    with suppress(OSError):
        client._sock.shutdown(how)


def check_head(headers: Sequence[tuple[str, str]]) -> None:
    """Raise LimitRequestHeaders if Django would take long for the headers. gunicorn bounds each of
    them, and joins those of one name."""
    if sum(len(name) + len(value) for name, value in headers) > MAX_HEAD_BYTES:
        raise LimitRequestHeaders(f"more than {MAX_HEAD_BYTES} bytes")
    types = (value for name, value in headers if name.upper() == "CONTENT-TYPE")
    if any(len(value) > MAX_CONTENT_TYPE_LENGTH for value in types):
        raise LimitRequestHeaders("a content type is too long")


def is_unread(reader: Any) -> bool:
    """Whether too much of a body is left. Of a chunked one, which nothing reads, it always is."""
    return bool(getattr(reader, "length", sys.maxsize) > MAX_UNREAD_BYTES)


def drain(client: Any) -> None:
    """Receive some of the rest of a body before the connection is closed: a reset might keep the
    client from reading the answer."""
    shut_down(client, socket.SHUT_WR)
    with suppress(OSError), gevent.Timeout(DRAIN_TIMEOUT, False):
        while client.recv(MAX_UNREAD_BYTES):
            gevent.sleep(0.01)  # for others, however fast this client sends


def origin_of(address: Any) -> str:
    """Return what a connection's address is counted as: of IPv6, the /64, which one client may have
    whole; "" for a Unix socket."""
    host: str = address[0] if address else ""
    if ":" not in host:
        return host
    six = IPv6Address(host.partition("%")[0])
    return str(six.ipv4_mapped or IPv6Address(int(six) >> 64 << 64))


def make_room(connections: dict[Any, str], limit: int) -> None:
    """If three quarters of a worker's connections are taken, end one of the origin that has the
    most of them: the first one. `connections` has their origins."""
    if len(connections) > limit * 3 // 4:
        ((origin, _),) = Counter(connections.values()).most_common(1)
        first = next(client for client, its in connections.items() if its == origin)
        del connections[first]
        shut_down(first, socket.SHUT_RDWR)


class WholeBody:
    """Reads a request's body as `reader` does. Raises TimeoutError if it has not arrived after
    BODY_TIMEOUT seconds, and ConnectionResetError if it ends early: half a form is none."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        self._deadline = time.monotonic() + BODY_TIMEOUT

    def read(self, size: int) -> bytes:
        expected = min(size, getattr(self._reader, "length", 0))
        left = max(0.0, self._deadline - time.monotonic())
        with gevent.Timeout(left, TimeoutError("the request was not sent in time")):
            data: bytes = self._reader.read(size)
        gevent.sleep(PAUSE)  # for others, however fast this client sends
        if len(data) < expected:
            raise ConnectionResetError(errno.ECONNRESET, "the request is incomplete")
        return data


class ConsoleWorker(GeventWorker):  # type: ignore[misc] # gunicorn has no types
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # gunicorn would let a client of this machine set SCRIPT_NAME, PATH_INFO and the scheme.
        self.cfg.set("forwarder_headers", "")
        self.cfg.set("secure_scheme_headers", {})
        # The origins of all connections. The first is the one whose last request began or ended
        # the longest time ago.
        self.connections: dict[Any, str] = {}

    def handle(self, listener: Any, client: Any, addr: Any) -> None:
        make_room(self.connections, self.worker_connections)
        self.connections[client] = origin_of(addr)
        try:
            super().handle(listener, client, addr)
        finally:
            self.connections.pop(client, None)

    def handle_request(self, listener_name: Any, req: Any, sock: Any, addr: Any) -> None:
        check_head(req.headers)
        self._put_last(sock)
        reader, should_close = req.body.reader, req.should_close
        req.body.reader = WholeBody(reader)
        req.should_close = lambda: is_unread(reader) or should_close()
        # The longest that a client may take to accept a piece of the answer.
        sock.settimeout(self.cfg.timeout or None)
        try:
            super().handle_request(listener_name, req, sock, addr)
        except StopIteration:
            if is_unread(reader):
                drain(sock)
            raise
        except TimeoutError:
            raise StopIteration from None  # gunicorn closes the connection.
        finally:
            sock.settimeout(None)
            self._put_last(sock)

    def _put_last(self, client: Any) -> None:
        # It is absent if it was ended to make room.
        if client in self.connections:
            self.connections[client] = self.connections.pop(client)

    def init_process(self) -> None:
        # The kernel kills this process when its parent dies. Otherwise a worker that is still
        # loading, on a busy host for a minute, would hold the port, which the next parent needs.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        super().init_process()

    def load_wsgi(self) -> None:
        super().load_wsgi()
        # Objects that exist by now stay for the life of the process, so that collections can skip
        # them. Collections are rare, because reference counting frees what a page has made.
        gc.collect()
        gc.freeze()
        gc.set_threshold(GC_THRESHOLD)

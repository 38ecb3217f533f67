"""The API's gunicorn worker: a connection costs a greenlet, no thread, and the application gets
a request once the whole of it is here.

Greenlets, as a request waits most of its time for a database, another server or its client,
and thousands may do so side by side. Who sends or reads slowly holds a socket and a buffer, and
those only for so long. HTTP/1.1 without TLS: that is for the proxy in front.
"""

import io
import resource
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any

import gevent
from gevent.lock import BoundedSemaphore
from gevent.pool import Pool
from gevent.server import StreamServer
from gevent.socket import wait_read
from gunicorn import util
from gunicorn.http import RequestParser
from gunicorn.http.errors import NoMoreData, ParseException
from gunicorn.workers.ggevent import GeventWorker

# Bytes of a body. A longer one is read to its end, within reason, and not kept: with the rest
# of it on the wire, the connection could carry no other request. The application sees its
# announced length, and refuses it by that.
LONGEST_BODY, MOST_DRAINED, DRAINED_AT_ONCE = 1 << 20, 64 << 20, 1 << 16
# Bodies longer than this wait for one of so many places: strangers could otherwise fill the
# memory with ones that they never finish.
SHORT_BODY, LONG_BODIES = 1 << 14, 64
# Descriptors for all that is no client's connection.
SPARE_DESCRIPTORS = 256
# Seconds between two looks whether to stop.
LOOK_EVERY = 0.2

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class RequestTooSlow(ParseException):  # type: ignore[misc] # gunicorn has no types
    def __str__(self) -> str:
        return "it was not sent in time"


class BufferingWorker(GeventWorker):  # type: ignore[misc] # gunicorn has no types
    # Seconds: for a new connection's first byte, as for a head from its first byte on; for a
    # body; for a client to take a piece of its answer. Between requests it is `--keep-alive`.
    head_within = 10.0
    body_within = 30.0
    taken_within = 60.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Greenlets whose connection waits for a request to begin.
        self.idle: set[gevent.Greenlet] = set()
        self.long_bodies = BoundedSemaphore(LONG_BODIES)

    def load_wsgi(self) -> None:
        super().load_wsgi()
        self.wsgi: Application = release_before_sending(self.wsgi)

    def run(self) -> None:
        """Serve until told to stop; then let the requests under way end."""
        pool = Pool(reserve_descriptors(self.worker_connections))
        servers = [
            StreamServer(listener, handle=partial(self.handle, listener), spawn=pool)
            for listener in self.sockets
        ]
        for server in servers:
            if self.cfg.workers > 1:
                # One that takes many at once would take them from idle siblings.
                server.max_accept = 1
            server.start()
        while self.alive:
            self.notify()
            gevent.sleep(LOOK_EVERY)
        for server in servers:
            server.close()
        self.end_waits()
        gevent.killall(list(self.idle), block=False)
        with gevent.Timeout(self.cfg.graceful_timeout, False):
            while not pool.join(timeout=LOOK_EVERY):
                self.notify()
        pool.kill(timeout=1)

    def end_waits(self) -> None:
        """Have the requests that wait for something, and do no work, end at once. Called when
        the worker is to stop."""

    def handle(self, listener: Any, client: Any, addr: Any) -> None:
        """Serve the requests of one connection, one after the other."""
        client.settimeout(self.taken_within)
        parser = RequestParser(self.cfg, client, addr)
        request = None
        try:
            while self.alive and self._begins(client, parser):
                request = None
                request = self._head(parser)
                self._read_body(request, client)
                self.handle_request(listener.getsockname(), request, client, addr)
        except (StopIteration, NoMoreData):
            pass
        except OSError as error:
            self.log.debug("connection lost", extra={"error": str(error)})
        except Exception as error:
            self.handle_error(request, client, addr, error)
        finally:
            util.close(client)

    def handle_error(self, req: Any, client: Any, addr: Any, exc: BaseException) -> None:
        if isinstance(exc, RequestTooSlow):
            with suppress(OSError):
                util.write_error(client, 408, "Request Timeout", str(exc))
        else:
            super().handle_error(req, client, addr, exc)

    def _begins(self, client: Any, parser: RequestParser) -> bool:
        """Wait for a request's first byte; False where none comes in time."""
        if parser.unreader.buf.getbuffer().nbytes:
            return True
        greenlet = gevent.getcurrent()
        self.idle.add(greenlet)
        try:
            seconds = self.cfg.keepalive if parser.req_count else self.head_within
            wait_read(client.fileno(), timeout=seconds)
        except TimeoutError:
            return False
        finally:
            self.idle.discard(greenlet)
        return True

    def _head(self, parser: RequestParser) -> Any:
        with gevent.Timeout(self.head_within, RequestTooSlow):
            return next(parser)

    def _read_body(self, request: Any, client: Any) -> None:
        """Put the body, read whole, in place of the one that reads from the connection."""
        length = announced_length(request)
        if length == 0:
            return
        if request._expected_100_continue:
            client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
            request._expected_100_continue = False
        with gevent.Timeout(self.body_within, RequestTooSlow):
            if length is not None and length <= SHORT_BODY:
                body = whole_body(request)
            else:
                with self.long_bodies:
                    body = whole_body(request)
        if length is not None and len(body) < length <= LONGEST_BODY:
            # The client is gone. What came may look like a whole request, and is none.
            raise NoMoreData
        request.body = io.BytesIO(body)


def announced_length(request: Any) -> int | None:
    """In bytes; None for a body in chunks."""
    headers = dict(request.headers)
    if "TRANSFER-ENCODING" in headers:
        return None
    return int(headers.get("CONTENT-LENGTH", 0))


def whole_body(request: Any) -> bytes:
    """The body read to its end; b"" for one that is too long."""
    body: bytes = request.body.read(LONGEST_BODY + 1)
    if len(body) <= LONGEST_BODY:
        return body
    for _ in range(MOST_DRAINED // DRAINED_AT_ONCE):
        if not request.body.read(DRAINED_AT_ONCE):
            return b""
    request.force_close()
    return b""


def release_before_sending(application: Application) -> Application:
    """Close an answer that is whole before it is sent: what it holds, a database connection
    above all, must not wait for the client to take the answer."""

    def released(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        answer: Any = application(environ, start_response)
        if getattr(answer, "streaming", True):
            return answer  # type: ignore[no-any-return]
        pieces = list(answer)
        answer.close()
        return pieces

    return released


def reserve_descriptors(connections: int) -> int:
    """Raise this process's limit to what so many connections need; returns how many there may
    be, fewer where the host allows no more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + SPARE_DESCRIPTORS
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return max(1, wanted - SPARE_DESCRIPTORS)

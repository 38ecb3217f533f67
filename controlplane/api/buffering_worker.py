"""The API's gunicorn worker. A connection takes a greenlet instead of a thread, and the application
gets a request only once all of it has been received.

It uses greenlets because a request spends most of its time waiting for a database, another server
or its client, and thousands of requests may wait at the same time. A client that sends or reads
slowly holds only a socket and a buffer, and only for a limited time. The worker speaks HTTP/1.1
without TLS; TLS is left to a reverse proxy in front of it.
"""

import ctypes
import io
import resource
import select
import signal
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any

import gevent
from gevent.lock import BoundedSemaphore
from gevent.monkey import get_original
from gevent.pool import Pool
from gevent.server import StreamServer
from gevent.socket import wait_read
from gunicorn import util
from gunicorn.http import RequestParser
from gunicorn.http.errors import NoMoreData, ParseException
from gunicorn.workers.ggevent import GeventWorker

# Bytes. A body longer than LONGEST_BODY is read to its end, up to MOST_DRAINED, and discarded:
# otherwise the unread rest would prevent further requests on the connection. The application sees
# the announced length and refuses the request because of it.
LONGEST_BODY, MOST_DRAINED, DRAINED_AT_ONCE = 1 << 20, 64 << 20, 1 << 16
# Bodies of more than SHORT_BODY bytes wait for one of LONG_BODIES places. Otherwise untrusted
# clients could fill the memory with bodies that they never complete.
SHORT_BODY, LONG_BODIES = 1 << 14, 64
# File descriptors for everything except client connections.
SPARE_DESCRIPTORS = 256
# Seconds between two checks of whether the worker is to stop.
LOOK_EVERY = 0.2
# linux/prctl.h: PR_SET_PDEATHSIG
KILL_WITH_PARENT = 1

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class RequestTooSlow(ParseException):  # type: ignore[misc] # gunicorn has no types
    def __str__(self) -> str:
        return "it was not sent in time"


class BufferingWorker(GeventWorker):  # type: ignore[misc] # gunicorn has no types
    # Time limits in seconds. head_within: for the first byte on a new connection, and again for
    # the rest of a head after its first byte. body_within: for a body. taken_within: for the client
    # to accept a piece of the response. Between two requests, gunicorn's `--keep-alive` applies.
    head_within = 10.0
    body_within = 30.0
    taken_within = 60.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Greenlets of connections on which no request has begun, and the connections' descriptors.
        self.idle: dict[gevent.Greenlet, int] = {}
        self.long_bodies = BoundedSemaphore(LONG_BODIES)

    def init_process(self) -> None:
        # The kernel kills this process when its parent dies. Otherwise a worker that is still
        # loading, on a busy host for a minute, would hold the port, which the next parent needs.
        ctypes.CDLL(None).prctl(KILL_WITH_PARENT, signal.SIGKILL)
        super().init_process()

    def load_wsgi(self) -> None:
        super().load_wsgi()
        self.wsgi: Application = release_before_sending(self.wsgi)

    def run(self) -> None:
        """Serve until the worker is to stop, then wait for the requests under way to end, for at
        most gunicorn's graceful timeout."""
        pool = Pool(reserve_descriptors(self.worker_connections))
        servers = [
            StreamServer(listener, handle=partial(self.handle, listener), spawn=pool)
            for listener in self.sockets
        ]
        for server in servers:
            if self.cfg.workers > 1:
                # A worker that accepts many connections at once would take them from idle workers.
                server.max_accept = 1
            server.start()
        while self.alive:
            self.notify()
            gevent.sleep(LOOK_EVERY)
        for server in servers:
            server.close()
        self.end_waits()
        gevent.killall(self._silent(), block=False)
        with gevent.Timeout(self.cfg.graceful_timeout, False):
            while not pool.join(timeout=LOOK_EVERY):
                self.notify()
        pool.kill(timeout=1)

    def _silent(self) -> list[gevent.Greenlet]:
        """The greenlets of idle connections on which nothing has arrived. A request that has
        arrived is still to be served, although its greenlet has not noticed it yet."""
        # gevent's own poll would let other greenlets run.
        arrivals = get_original("select", "poll")()
        for descriptor in self.idle.values():
            arrivals.register(descriptor, select.POLLIN)
        arrived = {descriptor for descriptor, _ in arrivals.poll(0)}
        return [one for one, descriptor in self.idle.items() if descriptor not in arrived]

    def end_waits(self) -> None:
        """End the requests that only wait for something. Called when the worker is to stop."""

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
        """Wait for the first byte of a request; False if none comes in time."""
        if parser.unreader.buf.getbuffer().nbytes:
            return True
        greenlet = gevent.getcurrent()
        self.idle[greenlet] = client.fileno()
        try:
            seconds = self.cfg.keepalive if parser.req_count else self.head_within
            wait_read(client.fileno(), timeout=seconds)
        except TimeoutError:
            return False
        finally:
            self.idle.pop(greenlet, None)
        return True

    def _head(self, parser: RequestParser) -> Any:
        with gevent.Timeout(self.head_within, RequestTooSlow):
            return next(parser)

    def _read_body(self, request: Any, client: Any) -> None:
        """Read the whole body, and replace the request's body, which reads from the connection,
        with it. Raises RequestTooSlow after `body_within` seconds, and NoMoreData if the client
        closes the connection before the end."""
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
            # The client has closed the connection. The part of the body that was received could be
            # mistaken for a complete one.
            raise NoMoreData
        request.body = io.BytesIO(body)


def announced_length(request: Any) -> int | None:
    """The announced length of the body in bytes; None for a chunked body."""
    headers = dict(request.headers)
    if "TRANSFER-ENCODING" in headers:
        return None
    return int(headers.get("CONTENT-LENGTH", 0))


def whole_body(request: Any) -> bytes:
    """Read the body to its end and return it; return b"" if it has more than LONGEST_BODY bytes.

    If it has more than MOST_DRAINED bytes, the connection is closed after the response.
    """
    body: bytes = request.body.read(LONGEST_BODY + 1)
    if len(body) <= LONGEST_BODY:
        return body
    for _ in range(MOST_DRAINED // DRAINED_AT_ONCE):
        if not request.body.read(DRAINED_AT_ONCE):
            return b""
    request.force_close()
    return b""


def release_before_sending(application: Application) -> Application:
    """Wrap the application so that a response that does not stream is closed before it is sent.
    This releases what it holds, above all a database connection, without waiting for the client to
    read the response."""

    def released(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        answer: Any = application(environ, start_response)
        if getattr(answer, "streaming", True):
            return answer  # type: ignore[no-any-return]
        pieces = list(answer)
        answer.close()
        return pieces

    return released


def reserve_descriptors(connections: int) -> int:
    """Raise this process's limit of file descriptors to what so many connections need. Returns how
    many connections are possible, which is fewer if the host's limit is lower."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + SPARE_DESCRIPTORS
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return max(1, wanted - SPARE_DESCRIPTORS)

"""The API within gunicorn: its log, and its worker, which also answers in JSON when gunicorn itself
refuses a request before Django sees it.

A connection takes a greenlet instead of a thread, because most requests wait for the database, for
an operation or for their client, and thousands of them may wait at the same time. A connection that
has sent no whole head within gunicorn's `--keep-alive` is closed.
"""

import ctypes
import gc
import json
import logging.config
import signal
import socket
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import Any

import gevent
from gunicorn import util
from gunicorn.glogging import Logger
from gunicorn.http.errors import LimitRequestHeaders, LimitRequestLine, ParseException
from gunicorn.workers.ggevent import GeventWorker

from controlplane import logs
from controlplane.address_ranges import network_of
from controlplane.api.http.client_address import Network, client_of, signed_address
from controlplane.process_accounts import console_key

STATUS_OF = {
    LimitRequestLine: HTTPStatus.REQUEST_URI_TOO_LONG,
    LimitRequestHeaders: HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
}
# New objects between two garbage collections.
GC_THRESHOLD = 50_000
# Seconds that a client without a valid key may take to accept an answer, of up to 1.5 MB. Others
# have gunicorn's `--timeout` for each piece.
KEYLESS_TIMEOUT = 60.0
# Seconds between two checks of whether the worker is to stop.
STOP_POLL_INTERVAL = 0.2
# The most bytes of a body that an answer may leave unread, for gunicorn to read before the next
# request, and the seconds for which a client may go on to send a longer one.
MAX_UNREAD_BYTES, DRAIN_TIMEOUT = 65_536, 2.0
# The most bytes of a request's headers together, and characters of its content type, for whose
# parameters Django takes time that grows with the square of their number.
MAX_HEAD_BYTES, MAX_CONTENT_TYPE_LENGTH = 32 << 10, 512
# linux/prctl.h: PR_SET_PDEATHSIG
KILL_WITH_PARENT = 1

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def with_client_address(
    application: Application, proxies: Sequence[Network], secrets: Sequence[str]
) -> Application:
    """The WSGI application, with the client's address in REMOTE_ADDR instead of a reverse proxy's,
    or of the console's. `secrets` are the service's secret keys."""
    console_keys = [key for secret in secrets for key in (console_key(secret), secret)]

    def served(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        signed = environ.get("HTTP_PERCH_CLIENT_ADDRESS", "")
        environ["REMOTE_ADDR"] = (signed and signed_address(signed, console_keys)) or client_of(
            environ.get("REMOTE_ADDR", ""), environ.get("HTTP_X_FORWARDED_FOR", ""), proxies
        )
        return application(environ, start_response)

    return served


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


def make_room(awaited: dict[Any, str], limit: int) -> None:
    """If three quarters of a worker's connections are `awaited`, end the oldest one of the network
    that has the most of them."""
    if len(awaited) > limit * 3 // 4:
        ((network, _),) = Counter(awaited.values()).most_common(1)
        oldest = next(client for client, its in awaited.items() if its == network)
        del awaited[oldest]
        shut_down(oldest, socket.SHUT_RDWR)


class GunicornLogger(Logger):  # type: ignore[misc] # gunicorn has no types
    """Writes gunicorn's log lines, including those of its master process, to Perch's log. The
    application writes the access log, because it knows the account of each request."""

    def setup(self, cfg: Any) -> None:
        self.cfg = cfg
        self._access_log_enabled = False
        self.error_log.propagate = True
        logs.begin(logs.configuration("api"))


class JsonErrorsWorker(GeventWorker):  # type: ignore[misc] # gunicorn has no types
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # gunicorn would let a client of this machine set SCRIPT_NAME and PATH_INFO.
        self.cfg.set("forwarder_headers", "")
        self.clients: set[Any] = set()
        # The networks of those on whose clients this worker waits: for a whole request with a valid
        # key, or for an answer to be accepted. The oldest first. Without streams, which an account
        # may have only so many of.
        self.awaited: dict[Any, str] = {}

    def init_process(self) -> None:
        # The kernel kills this process when its parent dies. Otherwise a worker that is still
        # loading, on a busy host for a minute, would hold the port, which the next parent needs.
        ctypes.CDLL(None).prctl(KILL_WITH_PARENT, signal.SIGKILL)
        super().init_process()

    def load_wsgi(self) -> None:
        super().load_wsgi()
        from django.conf import settings

        from controlplane.events.refusals import refusals
        from controlplane.features import features
        from controlplane.metrics import sampling

        # Imported now, and not while a client waits.
        features()
        refusals.begin()
        sampling.begin_in_thread("api")
        watched = self._watched(self.wsgi)
        secrets = [settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS]
        self.wsgi: Application = with_client_address(watched, settings.TRUSTED_PROXIES, secrets)
        # Objects that exist by now stay for the life of the process, so later collections can skip
        # them. Collections are rare, because the thousands of objects of a long list are freed by
        # reference counting anyway.
        gc.collect()
        gc.freeze()
        gc.set_threshold(GC_THRESHOLD)

    def run(self) -> None:
        gevent.spawn(self._end_waits)
        super().run()

    def handle(self, listener: Any, client: Any, addr: Any) -> None:
        make_room(self.awaited, self.worker_connections)
        self.clients.add(client)
        self._await(client, addr[0])
        try:
            super().handle(listener, client, addr)
        finally:
            self.clients.discard(client)
            self.awaited.pop(client, None)

    def handle_request(self, listener_name: Any, req: Any, sock: Any, addr: Any) -> None:
        check_head(req.headers)
        reader, should_close = req.body.reader, req.should_close
        req.should_close = lambda: is_unread(reader) or should_close()
        sock.settimeout(min(self.cfg.timeout or KEYLESS_TIMEOUT, KEYLESS_TIMEOUT))
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
            self._await(sock, addr[0])

    def _watched(self, application: Application) -> Application:
        """The application, for which `awaited` is kept. Requests get "perch.admitted", to be called
        when they have been received with a valid key."""

        def served(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
            client = environ["gunicorn.socket"]
            environ["perch.admitted"] = partial(self._admit, client)
            answer = application(environ, start_response)
            if not getattr(answer, "streaming", False):
                self._await(client, environ["REMOTE_ADDR"])
            return answer

        return served

    def _admit(self, client: Any) -> None:
        self.awaited.pop(client, None)
        client.settimeout(self.cfg.timeout or None)

    def _await(self, client: Any, address: str) -> None:
        self.awaited.pop(client, None)  # so that it becomes the newest
        self.awaited[client] = network_of(address)

    def _end_waits(self) -> None:
        """Once the worker is to stop, end the requests that only wait for something, and the
        connections that await a request. gunicorn waits for the other requests to end."""
        # Imported here because gunicorn imports this module before gevent patches the standard
        # library. psycopg must be imported after the patching, so that its waits switch greenlets.
        from controlplane.api.http.listening import listener
        from controlplane.events.refusals import refusals

        while self.alive:
            gevent.sleep(STOP_POLL_INTERVAL)
        listener.stop()
        refusals.close()
        while True:
            for client in list(self.clients):
                shut_down(client, socket.SHUT_RD)
            gevent.sleep(STOP_POLL_INTERVAL)

    def handle_error(self, req: Any, client: Any, addr: Any, exc: BaseException) -> None:
        """Respond to a request that could not be parsed, or whose handling raised an exception."""
        request_id = str(uuid.uuid4())
        status, message = HTTPStatus.INTERNAL_SERVER_ERROR, "internal error"
        if isinstance(exc, ParseException):
            status = STATUS_OF.get(type(exc), HTTPStatus.BAD_REQUEST)
            message = f"invalid request: {exc}"
            # Log only the type of the error. Its message may contain the request line with the
            # query, and an API key.
            self._log(request_id, addr, status, error=type(exc).__name__)
        else:
            self._log(request_id, addr, status, exc_info=exc)
        from controlplane.metrics import figures

        figures.REQUESTS.labels("other", "none", status.value).inc()
        refusal = {"request_id": request_id, "code": "", "message": message, "errors": []}
        body = json.dumps(refusal)
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        try:
            util.write_nonblock(client, (head + body).encode("ascii"))
        except OSError as error:
            self.log.debug("answer not sent", extra={"error": str(error)})

    def _log(
        self,
        request_id: str,
        address: Any,
        status: HTTPStatus,
        *,
        error: str | None = None,
        exc_info: BaseException | None = None,
    ) -> None:
        client = address[0] if isinstance(address, tuple) else str(address)
        fields = {"status": status.value, "client": client, "error": error}
        with logs.context(request=request_id):
            level = logging.ERROR if exc_info else logging.INFO
            self.log.log(level, "answered", extra=fields, exc_info=exc_info)

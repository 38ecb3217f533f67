"""`manage.py metrics`: serves the figures of all of this host's processes, for Prometheus."""

import contextlib
import errno
import logging
import signal
import socket
import sys
import time
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from prometheus_client import CollectorRegistry, make_wsgi_app

from controlplane import durable
from controlplane.deployment.host_figures import HostFigures
from controlplane.metrics import sampling

log = logging.getLogger(__name__)

PATH = "/metrics"
# How many ports are tried if the operator has not named one.
MAX_PORTS = 100
# Seconds that a client may take for each part of its request and of the answer, and for all of it,
# with the time until there is an answer.
CLIENT_TIMEOUT, MAX_SECONDS = 10, 60
# From the first number of clients on, each further one ends the oldest; none is served beyond the
# second one, as when answers wait for the database.
MAX_CLIENTS, MAX_THREADS = 20, 40


class Command(BaseCommand):
    help = "Serves the figures of this host's processes, at PERCH_METRICS_LISTEN."
    requires_system_checks = ()

    def handle(self, *args: Any, **options: Any) -> None:
        if settings.METRICS_LISTEN == "off":
            raise CommandError("PERCH_METRICS_LISTEN is off: no figures are kept")
        server = listening_server()
        sampling.begin_in_thread("metrics")
        registry = CollectorRegistry()
        registry.register(HostFigures(settings.METRICS_DIR))
        server.set_app(only_metrics_path(make_wsgi_app(registry)))
        host, port = server.socket.getsockname()[:2]
        address = f"http://{address_text(host, port)}{PATH}"
        log.info("listening", extra={"address": address})
        try:
            durable.write(address_file(), f"{address}\n".encode(), 0o644)
        except OSError as error:
            # Such as a full disk, which the figures are to tell of.
            log.warning("address not written", extra={"error": str(error)})
        # SIGTERM raises SystemExit, so that the file is removed.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        try:
            with contextlib.suppress(KeyboardInterrupt):
                server.serve_forever()
        finally:
            forget(address)


def forget(address: str) -> None:
    """Remove the address, unless another process has written its own meanwhile."""
    with contextlib.suppress(FileNotFoundError):
        if address_file().read_text().strip() == address:
            address_file().unlink()


def address_file() -> Path:
    """Where the address is written. The file in the state directory is a link to it if this process
    has an account of its own, which cannot write there."""
    return Path(settings.METRICS_ADDRESS_FILE).resolve()


class Handler(WSGIRequestHandler):
    timeout = CLIENT_TIMEOUT

    def log_message(self, *values: Any) -> None:
        log.debug("answered", extra={"client": self.client_address[0]})


class Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def __init__(self, *values: Any) -> None:
        # When each client that is being served has come, by the monotonic clock; the oldest first.
        self._clients: dict[Any, float] = {}
        super().__init__(*values)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        return len(self._clients) < MAX_THREADS

    def process_request(self, request: Any, client_address: Any) -> None:
        self._clients[request] = time.monotonic()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._clients.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """After each client, and twice a second: let those go that take too long or are too many.
        Their threads then find the connection closed."""
        clients = list(self._clients.items())
        for number, (client, since) in enumerate(clients, start=1 + MAX_CLIENTS - len(clients)):
            if number <= 0 or time.monotonic() - since > MAX_SECONDS:
                with contextlib.suppress(OSError):
                    client.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        # As when a client closes its connection before it has read the answer.
        log.info("not answered", extra={"error": repr(sys.exc_info()[1])})


class Server6(Server):
    address_family = socket.AF_INET6


def listening_server() -> Server:
    """A server at the address in the settings; without one, at the first free port. Raises
    CommandError."""
    wanted = settings.METRICS_LISTEN
    host, port = parsed(wanted) if wanted else ("127.0.0.1", settings.METRICS_PORT)
    kind = Server6 if ":" in host else Server
    for number in range(port, port + (1 if wanted else MAX_PORTS)):
        try:
            return kind((host, number), Handler)
        except OSError as error:
            if wanted or error.errno != errno.EADDRINUSE:
                message = f"cannot listen on {address_text(host, number)}: {error.strerror}"
                raise CommandError(message) from error
    raise CommandError(f"no port from {port} to {number} is free")


def parsed(listen: str) -> tuple[str, int]:
    """The host and port of "127.0.0.1:9464" or "[::1]:9464". Raises CommandError."""
    host, _, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal():
        raise CommandError(
            f'PERCH_METRICS_LISTEN must be an address and a port, as "127.0.0.1:9464", or "off"; '
            f'got "{listen}"'
        )
    return host, int(port)


def address_text(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def only_metrics_path(application: Any) -> Any:
    """Answer 404 at every path but PATH."""

    def answering(environ: dict[str, Any], start_response: Any) -> Any:
        if environ["PATH_INFO"] == PATH:
            return application(environ, start_response)
        start_response("404 Not Found", [("Content-Type", "text/plain")])
        return [f"the figures are at {PATH}\n".encode()]

    return answering

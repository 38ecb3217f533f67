"""`manage.py proxy`: accepts Postgres clients, and wakes the endpoints that they connect to."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import uvloop
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import close_old_connections

from controlplane.compute.data import state_directory
from controlplane.compute.host import patience
from controlplane.compute.host.accounts import AccountUnusable
from controlplane.database.base import release_connection
from controlplane.database.secret_keys import OtherSecretKey
from controlplane.database.version import OtherVersion, conninfo, refuse_other_version
from controlplane.deployment.proxy_account import ProxyInputs, proxy_inputs, sockets_directory
from controlplane.deployment.supervision import MARK
from controlplane.features import features
from controlplane.metrics import sampling
from controlplane.models.connecting import ServedHost
from controlplane.operations.own_host import HostTaken, own_host
from controlplane.proxy.directory.database_directory import DatabaseDirectory
from controlplane.proxy.directory.host_calls import HostCalls
from controlplane.proxy.directory.usage_reports import ServedElsewhere
from controlplane.proxy.listeners import Handover, open_listeners
from controlplane.proxy.processes import DRAIN, EXIT_REFUSED, EXPECT_SUCCESSOR, run_processes
from controlplane.proxy.server import Proxy
from controlplane.proxy.settings import PlainConnections, ProxySettings, Siblings
from controlplane.proxy.wire.certificates import IssuingIdentity
from controlplane.proxy.wire.errors import ControlPlaneUnavailable
from controlplane.proxy.wire.tls import OperatorIdentity, TlsIdentity
from controlplane.services.hosts import publish_certificate_authority, publish_peer

log = logging.getLogger(__name__)

# Seconds after the start of the next proxy in which the worker has started too.
RESTART_TIMEOUT = 20.0
# Seconds. Python's own 5 ms would let one large request over HTTP delay all clients tenfold.
_SWITCH_INTERVAL = 0.0005


class Command(BaseCommand):
    help = "Routes Postgres clients to the endpoints of this host, and wakes the endpoints."

    def handle(self, *args: Any, **options: Any) -> None:
        count = settings.PROXY_PROCESSES
        if count < 1:
            raise CommandError(f"PERCH_PROXY_PROCESSES must be at least 1, and is {count}")
        # All processes that are forked below have them from the start.
        features()
        try:
            # The proxy's account could not make it.
            state_directory.identity()
            needed = proxy_inputs()
            chosen, identity = proxy_settings(needed.secret), tls_identity(needed)
            peer_address()
            directory = sockets_directory(settings.PROXY_PORT)
            handover = Handover(
                directory, linger_within=settings.PROXY_HANDOVER_TIMEOUT
            ).take_over()
            handover.listeners = open_listeners(chosen, handover.listeners)
        except (AccountUnusable, OSError, ValueError) as error:
            log.critical("cannot serve", extra={"error": str(error)})
            raise SystemExit(1) from error
        for pid in handover.counts.in_the_way(count):
            os.kill(pid, signal.SIGTERM)

        def run(_: int, ready: Callable[[], object]) -> None:
            counts = handover.counts
            siblings = Siblings(counts.claim(), directory, counts)
            own = replace(chosen, siblings=siblings)
            serve(own, identity, needed, handover.listeners, ready)

        lingers = partial(log_to_file, needed.host)
        run_processes(count, run, handover=handover, lingers=lingers)


def serve(
    chosen: ProxySettings,
    identity: TlsIdentity,
    needed: ProxyInputs,
    listeners: Sequence[socket.socket],
    ready: Callable[[], object],
) -> None:
    """Run one process of the proxy until a signal ends it, or another generation has taken its
    place and its clients have left."""
    # Without a host process, calls that wait for computes are made here.
    patience.before_waits = release_connection
    # After each system call the event loop waits this long for a thread that computes (`Queries`).
    sys.setswitchinterval(_SWITCH_INTERVAL)
    with contextlib.suppress(asyncio.CancelledError):
        uvloop.run(serve_when_ready(chosen, identity, needed, listeners, ready))


async def serve_when_ready(
    chosen: ProxySettings,
    identity: TlsIdentity,
    needed: ProxyInputs,
    listeners: Sequence[socket.socket],
    ready: Callable[[], object],
) -> None:
    """Serve as `serve` does. Clients that connect before the database has answered wait in the
    listeners' queues."""
    serving = asyncio.current_task()
    assert serving is not None
    host = needed.host
    directory = DatabaseDirectory(
        conninfo(),
        ServedHost(
            settings.HOST_NAME,
            settings.REGION,
            state_directory.identity(),
            state_directory.place(),
        ),
        host=host,
        problems=lambda: problems_of(identity),
    )
    proxy = Proxy(chosen, directory, identity, needed.peer)

    def expect_successor() -> None:
        # In a thread, as the host process may be busy.
        asyncio.get_running_loop().run_in_executor(None, log_to_file, host)
        directory.expect_restart(timeout=settings.PROXY_HANDOVER_TIMEOUT)

    def drain() -> None:
        directory.expect_restart(timeout=RESTART_TIMEOUT)
        proxy.drain()

    for number, handler in (
        (signal.SIGINT, serving.cancel),
        (signal.SIGTERM, serving.cancel),
        (EXPECT_SUCCESSOR, expect_successor),
        (DRAIN, drain),
    ):
        asyncio.get_running_loop().add_signal_handler(number, handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {EXPECT_SUCCESSOR, DRAIN})
    # The proxy cannot work without its directory: if that fails, both end.
    try:
        async with asyncio.TaskGroup() as tasks:
            knowing = tasks.create_task(directory.run(proxy))
            counting = tasks.create_task(proxy.keep_figures(sampling.begin("proxy")))
            try:
                await directory.ready()
                await asyncio.to_thread(publish_identity, identity, needed)
                await proxy.serve(listeners, started=ready)
            finally:
                counting.cancel()
                knowing.cancel()
    except* ServedElsewhere as errors:
        words = f'the host "{settings.HOST_NAME}" is served from elsewhere now'
        log.critical("host lost", extra={"error": words})
        raise SystemExit(EXIT_REFUSED) from errors


def problems_of(identity: TlsIdentity) -> list[dict[str, str]]:
    """The proxy's problems for /healthz."""
    problem = identity.problem()
    return [{"name": problem[0], "detail": problem[1]}] if problem else []


def publish_identity(identity: TlsIdentity, needed: ProxyInputs) -> None:
    """Publish the certificate authority that clients should trust, and what other hosts must know
    of this proxy. Raises SystemExit if this proxy must not serve: the database is of another
    version, encrypted with another key, or another state directory serves this host."""
    try:
        refuse_other_version(beside=True)
        needed.host.call("check_secret_key")
        host_id = own_host().id
        publish_certificate_authority(host_id, identity.authority_pem)
        name, port = peer_address()
        publish_peer(host_id, address=name, port=port, certificate=needed.peer.certificate)
    except (OtherVersion, OtherSecretKey, HostTaken) as error:
        log.critical("cannot serve", extra={"error": str(error)})
        raise SystemExit(EXIT_REFUSED) from error
    finally:
        close_old_connections()


def proxy_settings(secret: bytes) -> ProxySettings:
    return ProxySettings(
        domains=own_domains(),
        secret=secret,
        host_id=settings.HOST_NAME,
        host=settings.PROXY_HOST,
        port=settings.PROXY_PORT,
        http_port=settings.PROXY_HTTP_PORT or None,
        plain_connections=PlainConnections(settings.PROXY_PLAIN_CONNECTIONS),
        wake_timeout=settings.WAKE_TIMEOUT,
        load_balancers=settings.PROXY_LOAD_BALANCERS,
        drain_timeout=settings.PROXY_DRAIN_TIMEOUT,
    )


def own_domains() -> list[str]:
    """The domains of the endpoints' host names: the region's, and this host's own."""
    return list(dict.fromkeys([settings.REGION_HOST, settings.HOST_ADDRESS]))


def peer_address() -> tuple[str, int]:
    """The host name or address, and the port, at which other hosts reach this proxy. Raises
    OSError if the setting cannot be read."""
    given = str(settings.PEER_ADDRESS)
    try:
        parts = urlsplit(f"//{given if given.count(':') < 2 or ']' in given else f'[{given}]'}")
        return parts.hostname or settings.HOST_ADDRESS, parts.port or settings.PROXY_PORT
    except ValueError as error:
        raise OSError(f"PERCH_PEER_ADDRESS is not HOST or HOST:PORT: {given}") from error


def log_to_file(host: HostCalls) -> None:
    """Write to the log file itself if this process's output goes to the supervisor of `up`, which
    reads it only while the main process runs."""
    if MARK in os.environ:
        with contextlib.suppress(OSError, ControlPlaneUnavailable):
            output = host.call("open_log")
            for stream in (sys.stdout, sys.stderr):
                os.dup2(output, stream.fileno())
            os.close(output)


def tls_identity(needed: ProxyInputs) -> TlsIdentity:
    """The operator's certificate, or certificates issued by our own authority."""
    if needed.authority is None:
        certificate, key = Path(settings.TLS_CERTIFICATE), Path(settings.TLS_KEY)
        return OperatorIdentity(certificate, key, opened=needed.opened)
    return IssuingIdentity(needed.authority, *own_domains())

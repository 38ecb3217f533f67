"""`manage.py proxy`: accepts Postgres clients, and wakes the endpoints that they connect to."""

import asyncio
import contextlib
import hashlib
import logging
import signal
import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import uvloop
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import close_old_connections

from controlplane.database.secret_keys import OtherSecretKey, refuse_other_key
from controlplane.database.version import OtherVersion, conninfo, refuse_other_version
from controlplane.operations.own_region import RegionTaken, own_region
from controlplane.proxy.directory.database_directory import DatabaseDirectory
from controlplane.proxy.limits.shared_counts import SharedCounts
from controlplane.proxy.processes import REFUSED, run_processes
from controlplane.proxy.server import Proxy, open_listeners
from controlplane.proxy.settings import PlainConnections, ProxySettings, Siblings, own_directory
from controlplane.proxy.wire.certificates import IssuingIdentity, load_or_create_authority
from controlplane.proxy.wire.tls import OperatorIdentity, TlsIdentity
from controlplane.services.regions import publish_certificate_authority

log = logging.getLogger(__name__)


class Command(BaseCommand):
    help = (
        "Routes Postgres clients to the endpoints of this host's region, and wakes the endpoints."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        count = settings.PROXY_PROCESSES
        if count < 1:
            raise CommandError(f"PERCH_PROXY_PROCESSES must be at least 1, and is {count}")
        try:
            chosen, identity = proxy_settings(), tls_identity()
            listeners = open_listeners(chosen)
            groups = peer_groups(count)
        except OSError as error:
            log.critical("cannot serve", extra={"error": str(error)})
            raise SystemExit(1) from error
        children = [replace(chosen, siblings=group) for group in groups]
        run_processes(count, lambda number: serve(children[number], identity, listeners))


def serve(chosen: ProxySettings, identity: TlsIdentity, listeners: Sequence[socket.socket]) -> None:
    """Run one process of the proxy until a signal ends it."""
    with contextlib.suppress(asyncio.CancelledError):
        uvloop.run(serve_when_ready(chosen, identity, listeners))


async def serve_when_ready(
    chosen: ProxySettings, identity: TlsIdentity, listeners: Sequence[socket.socket]
) -> None:
    """Serve until cancelled. Clients that connect before the database has answered wait in the
    listeners' queues."""
    serving = asyncio.current_task()
    assert serving is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, serving.cancel)
    directory = DatabaseDirectory(conninfo(), settings.REGION)
    proxy = Proxy(chosen, directory, identity)
    # The proxy cannot work without its directory: if that fails, both end.
    async with asyncio.TaskGroup() as tasks:
        knowing = tasks.create_task(directory.run(proxy))
        try:
            await directory.ready()
            await asyncio.to_thread(introduce_itself, identity)
            await proxy.serve(listeners)
        finally:
            knowing.cancel()


def introduce_itself(identity: TlsIdentity) -> None:
    """Publish the certificate authority that clients should trust. Raises SystemExit if this proxy
    must not serve: the database is of another version, encrypted with another key, or the region is
    another host's, whose computes cannot be reached from here."""
    try:
        refuse_other_version()
        refuse_other_key()
        publish_certificate_authority(own_region().id, identity.authority_pem)
    except (OtherVersion, OtherSecretKey, RegionTaken) as error:
        log.critical("cannot serve", extra={"error": str(error)})
        raise SystemExit(REFUSED) from error
    finally:
        close_old_connections()


def proxy_settings() -> ProxySettings:
    return ProxySettings(
        region_host=settings.REGION_HOST,
        secret=hashlib.sha256(b"proxy:" + settings.SECRET_KEY.encode()).digest(),
        host=settings.PROXY_HOST,
        port=settings.PROXY_PORT,
        http_port=settings.PROXY_HTTP_PORT or None,
        plain_connections=PlainConnections(settings.PROXY_PLAIN_CONNECTIONS),
        wake_timeout=settings.WAKE_TIMEOUT,
        load_balancers=settings.PROXY_LOAD_BALANCERS,
    )


def peer_groups(count: int) -> list[Siblings | None]:
    """Each process's place among its siblings; None for a single process. Raises OSError."""
    if count == 1:
        return [None]
    # Named by port, as another proxy may serve the same state directory.
    directory = own_directory(settings.PROXY_SOCKET_DIR) / str(settings.PROXY_PORT)
    counts = SharedCounts(count)
    return [Siblings(number, count, own_directory(directory), counts) for number in range(count)]


def tls_identity() -> TlsIdentity:
    """The operator's certificate, or certificates issued by our own authority."""
    if settings.TLS_CERTIFICATE:
        return OperatorIdentity(Path(settings.TLS_CERTIFICATE), Path(settings.TLS_KEY))
    authority = load_or_create_authority(settings.STATE_DIR / "tls")
    return IssuingIdentity(authority, settings.REGION_HOST)

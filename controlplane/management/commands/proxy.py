"""`manage.py proxy`: lets Postgres clients in, and wakes what they connect to."""

import asyncio
import contextlib
import hashlib
import logging
import signal
from pathlib import Path
from typing import Any

import uvloop
from django.conf import settings
from django.core.management.base import BaseCommand
from django.db import connection
from psycopg.conninfo import make_conninfo

from controlplane.proxy.database_directory import DatabaseDirectory
from controlplane.proxy.server import Proxy, serve
from controlplane.proxy.settings import PlainConnections, ProxySettings
from controlplane.proxy.tls import TlsIdentity, load_identity, load_or_create_identity

log = logging.getLogger(__name__)


class Command(BaseCommand):
    help = "Routes Postgres clients to the endpoints of this host's region, and wakes them."

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            uvloop.run(run(proxy_settings(), tls_identity()))
        except OSError as error:
            log.critical("cannot serve", extra={"error": str(error)})
            raise SystemExit(1) from error


async def run(chosen: ProxySettings, identity: TlsIdentity) -> None:
    """Serve until a signal ends us."""
    directory = DatabaseDirectory(conninfo(), settings.REGION)
    listening: asyncio.Future[Proxy] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(serve(chosen, directory, identity, started=listening.set_result))
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, serving.cancel)
    first: list[asyncio.Future[Any]] = [listening, serving]
    await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
    if listening.done():
        knowing = asyncio.create_task(directory.run(listening.result().drop))
        # Without the directory the proxy is of no use: whichever ends first ends both.
        await asyncio.wait([serving, knowing], return_when=asyncio.FIRST_COMPLETED)
        serving.cancel()
        knowing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await knowing
    with contextlib.suppress(asyncio.CancelledError):
        await serving


def proxy_settings() -> ProxySettings:
    return ProxySettings(
        region_host=settings.REGION_HOST,
        secret=hashlib.sha256(b"proxy:" + settings.SECRET_KEY.encode()).digest(),
        host=settings.PROXY_HOST,
        port=settings.PROXY_PORT,
        plain_connections=PlainConnections(settings.PROXY_PLAIN_CONNECTIONS),
        wake_timeout=settings.WAKE_TIMEOUT,
    )


def tls_identity() -> TlsIdentity:
    """The operator's certificate, else one of our own making."""
    if settings.TLS_CERTIFICATE:
        return load_identity(Path(settings.TLS_CERTIFICATE), Path(settings.TLS_KEY))
    return load_or_create_identity(settings.STATE_DIR / "tls", settings.REGION_HOST)


def conninfo() -> str:
    """Django's database, as libpq writes it."""
    parameters = connection.get_connection_params()
    for ours in ("context", "cursor_factory", "pool", "prepare_threshold"):
        parameters.pop(ours, None)
    return make_conninfo(**parameters)

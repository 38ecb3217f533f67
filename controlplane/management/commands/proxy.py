"""`manage.py proxy`: lets Postgres clients in, and wakes what they connect to."""

import asyncio
import contextlib
import hashlib
import signal
from pathlib import Path
from typing import Any

import uvloop
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import connection
from psycopg.conninfo import make_conninfo

from controlplane.proxy.database_directory import DatabaseDirectory
from controlplane.proxy.server import Proxy
from controlplane.proxy.settings import PlainConnections, ProxySettings
from controlplane.proxy.tls import TlsIdentity, load_identity, load_or_create_identity


class Command(BaseCommand):
    help = "Routes Postgres clients to the endpoints of this host's region, and wakes them."

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            uvloop.run(run(proxy_settings(), tls_identity()))
        except OSError as error:
            raise CommandError(str(error)) from error


async def run(chosen: ProxySettings, identity: TlsIdentity) -> None:
    """Serve until a signal ends us."""
    directory = DatabaseDirectory(conninfo(), settings.REGION)
    proxy = Proxy(chosen, directory, identity)
    serving = asyncio.create_task(proxy.serve())
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, serving.cancel)
    knowing = asyncio.create_task(directory.run(proxy.drop))
    # Without the directory the proxy is of no use: whichever ends first ends both.
    await asyncio.wait([serving, knowing], return_when=asyncio.FIRST_COMPLETED)
    for task in (serving, knowing):
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


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

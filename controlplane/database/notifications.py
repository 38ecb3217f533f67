"""Receives the database's notifications, on a connection that is used for nothing else."""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import psycopg
from django.db import connection as default_connection

from controlplane.database.base import BoundedConnection

log = logging.getLogger(__name__)

# Seconds between two checks whether to stop, between two checks of the connection (a server that
# hangs does not close it), and between two attempts to connect.
STOP_CHECK_INTERVAL, CONNECTION_CHECK_INTERVAL, CONNECT_RETRY_DELAY = 0.2, 4.0, 1.0


class Handler(Protocol):
    """Receives the calls of `listen_to`, all in the same thread."""

    def begin(self) -> None:
        """From now on every notification is received."""

    def end(self) -> None:
        """From now on notifications may be missed."""

    def receive(self, channel: str, payload: str) -> None: ...


def listen_to(
    channels: Sequence[str],
    hearer: Handler,
    *,
    until: Callable[[], bool] = lambda: False,
    stop_check_interval: float = STOP_CHECK_INTERVAL,
) -> None:
    """Pass the notifications of the channels to the hearer until `until()` is true. If the database
    does not answer, connect again. Returns soon after `until()` has become true: normally within
    `stop_check_interval` seconds, later only while it waits for a silent database."""
    while not until():
        try:
            with _connect() as line:
                _listen(line, channels, hearer, until, stop_check_interval)
        except (psycopg.Error, OSError) as error:
            log.warning(
                "database does not answer, notifications not received", extra={"error": str(error)}
            )
            time.sleep(CONNECT_RETRY_DELAY)


def _connect() -> BoundedConnection:
    # Not from the pool, because this connection is never given back.
    parameters = default_connection.get_connection_params()
    return BoundedConnection.connect(**{**parameters, "autocommit": True})


def _listen(
    line: BoundedConnection,
    channels: Sequence[str],
    hearer: Handler,
    until: Callable[[], bool],
    stop_check_interval: float,
) -> None:
    for channel in channels:
        line.execute(psycopg.sql.SQL("LISTEN {}").format(psycopg.sql.Identifier(channel)))
    hearer.begin()
    try:
        tried = time.monotonic()
        while not until():
            for notification in line.notifies(timeout=stop_check_interval):
                hearer.receive(notification.channel, notification.payload)
            if time.monotonic() - tried > CONNECTION_CHECK_INTERVAL:
                line.execute("SELECT 1")
                tried = time.monotonic()
    finally:
        hearer.end()

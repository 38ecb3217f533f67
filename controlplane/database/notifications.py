"""Hears the database's notifications, on a connection that is used for nothing else."""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import psycopg
from django.db import connection as default_connection

from controlplane.database.base import BoundedConnection

log = logging.getLogger(__name__)

# Seconds between two looks whether to go on, two trials of a silent line (a server that hangs
# ends no connection), and two attempts to get one.
LOOK_EVERY, TRY_EVERY, CONNECT_AGAIN = 0.2, 2.0, 1.0


class Hearer(Protocol):
    """Whom `hear` tells; always in the same thread."""

    def begin(self) -> None:
        """From now on every notification is heard."""

    def end(self) -> None:
        """From now on notifications may go unheard."""

    def take_in(self, channel: str, payload: str) -> None: ...


def hear(channels: Sequence[str], hearer: Hearer, *, until: Callable[[], bool]) -> None:
    """Tell the hearer what comes in by the channels until `until()`; where the database does
    not answer, try again. Returns a second after that at most."""
    while not until():
        try:
            with _connect() as line:
                _listen(line, channels, hearer, until)
        except (psycopg.Error, OSError) as error:
            log.warning("database silent, notifications unheard", extra={"error": str(error)})
            time.sleep(CONNECT_AGAIN)


def _connect() -> BoundedConnection:
    # The pool's connections are for those who ask; this one never is free.
    parameters = default_connection.get_connection_params()
    return BoundedConnection.connect(**{**parameters, "autocommit": True})


def _listen(
    line: BoundedConnection, channels: Sequence[str], hearer: Hearer, until: Callable[[], bool]
) -> None:
    for channel in channels:
        line.execute(psycopg.sql.SQL("LISTEN {}").format(psycopg.sql.Identifier(channel)))
    hearer.begin()
    try:
        tried = time.monotonic()
        while not until():
            for notification in line.notifies(timeout=LOOK_EVERY):
                hearer.take_in(notification.channel, notification.payload)
            if time.monotonic() - tried > TRY_EVERY:
                line.execute("SELECT 1")
                tried = time.monotonic()
    finally:
        hearer.end()

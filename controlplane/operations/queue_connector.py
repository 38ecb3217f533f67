"""How the worker's lanes reach the queue: one round trip for each of their statements, which the
server has prepared.

Procrastinate's own way asks before each statement whether the connection is good, and puts a
transaction around it: four round trips, of which a client that waits for its compute feels each.
"""

import select
from typing import Any

from procrastinate import PsycopgConnector
from procrastinate.contrib.django.utils import connector_params
from psycopg import AsyncConnection
from psycopg_pool import AsyncConnectionPool


def queue_connector() -> PsycopgConnector:
    """To Django's database. Its statements are few, and each is whole by itself."""
    return PsycopgConnector(
        pool_factory=_pool,
        kwargs={**connector_params(), "prepare_threshold": 0},
        configure=_configure,
    )


def _pool(**arguments: Any) -> AsyncConnectionPool[AsyncConnection[Any]]:
    # Procrastinate passes the check that asks.
    return AsyncConnectionPool(**{**arguments, "check": _check})


async def _configure(connection: AsyncConnection[Any]) -> None:
    await connection.set_autocommit(True)


async def _check(connection: AsyncConnection[Any]) -> None:
    """Asks the server only where there is something to read: of a connection whose other end is
    gone, that would be its end. Raises psycopg.Error."""
    look = select.poll()
    look.register(connection.fileno(), select.POLLIN)
    if look.poll(0):
        await AsyncConnectionPool.check_connection(connection)

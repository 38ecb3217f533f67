"""Connects the worker's lanes to the queue, with one round trip for each statement, which the
server has prepared.

By default Procrastinate checks the connection before each statement and wraps the statement in a
transaction. That is four round trips, and a client that waits for its compute waits for each.
"""

import asyncio
import select
from collections.abc import Iterable
from typing import Any, TypeVar

from procrastinate import PsycopgConnector
from procrastinate.connector import Notify
from procrastinate.contrib.django.utils import connector_params
from procrastinate.exceptions import ConnectorException
from psycopg import AsyncConnection
from psycopg.abc import PQGen
from psycopg_pool import AsyncConnectionPool

from controlplane.database.connection_counts import QUEUE_CONNECTIONS

Result = TypeVar("Result")
LISTEN_RETRY_DELAY = 0.5


def queue_connector() -> PsycopgConnector:
    """Return a connector to Django's database. Its few statements each need no transaction."""
    return _Connector(
        pool_factory=_pool,
        min_size=QUEUE_CONNECTIONS,
        max_size=QUEUE_CONNECTIONS,
        kwargs={**connector_params(), "prepare_threshold": 0},
        configure=_configure,
    )


class _Connector(PsycopgConnector):
    async def listen_notify(self, on_notification: Notify, channels: Iterable[str]) -> None:
        """Listen until cancelled.

        Procrastinate's own listener ends if its connection broke and the database does not accept a
        new one at once, which its worker does not notice if there are no periodic tasks. Of jobs
        that came meanwhile, `queue.beat` notifies the lanes.
        """
        while True:
            try:
                await super().listen_notify(on_notification, channels)
            except ConnectorException:
                await asyncio.sleep(LISTEN_RETRY_DELAY)


class _Connection(AsyncConnection[Any]):
    """Waits without looking ten times a second whether the wait should end, which for the lanes'
    LISTEN connections was most of what an idle worker did. An answer, a notification and a
    cancellation end the wait at once."""

    async def wait(
        self, gen: PQGen[Result], interval: float = 60.0, timeout: float | None = None
    ) -> Result:
        return await super().wait(gen, interval, timeout)


def _pool(**arguments: Any) -> AsyncConnectionPool[AsyncConnection[Any]]:
    # Procrastinate passes its own check, which queries the server; replace it.
    own = {"check": _check, "connection_class": _Connection}
    return AsyncConnectionPool(**{**arguments, **own})


async def _configure(connection: AsyncConnection[Any]) -> None:
    await connection.set_autocommit(True)


async def _check(connection: AsyncConnection[Any]) -> None:
    """Check the connection without a round trip in most cases: query the server only if the
    connection has something to read, as it has when the other end is gone. Raises psycopg.Error."""
    look = select.poll()
    look.register(connection.fileno(), select.POLLIN)
    if look.poll(0):
        await AsyncConnectionPool.check_connection(connection)

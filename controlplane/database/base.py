"""Django's PostgreSQL backend with a limit on every wait. Django prescribes the names of this
module and of its class `DatabaseWrapper`.

A database that hangs (a stopped process, a network that drops packets) neither answers nor closes
the connection, so its client would wait forever. Therefore the client times out by itself, closes
the connection and raises OperationalError. A server that is not hanging cancels the statement
shortly before that (`statement_timeout`), so it does not continue work that no client waits for.
"""

import math
import select
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, TypeVar

import orjson
import psycopg
from django.db import Error
from django.db import connection as default_connection
from django.db.backends.postgresql import base
from django.db.backends.postgresql.schema import DatabaseSchemaEditor
from django.db.backends.utils import CursorDebugWrapper
from gevent.monkey import get_original
from psycopg.abc import PQGen
from psycopg.adapt import AdaptersMap
from psycopg.types.json import set_json_loads
from psycopg_pool import ConnectionPool

from controlplane import clock
from controlplane.encryption import hold_present_key

Result = TypeVar("Result")

# Seconds to wait for statements that are not the application's: those that set up a connection or
# check one from the pool. This is short, so that a request can check a second connection.
CHECK_TIMEOUT = 1.0
# Seconds by which the server cancels a statement before the client times out.
TIMEOUT_MARGIN = 0.5
# Seconds for which a connection that has answered counts as good, unless the server closed it.
CHECK_TTL = 1.0
# The operating system's poll, not gevent's: it is called with timeout 0 and never blocks.
_poll = get_original("select", "poll")


class BoundedConnection(psycopg.Connection[tuple[Any, ...]]):
    """Waits for an answer for at most `bound` seconds, then raises psycopg.OperationalError.

    A wait for notifications, which answer no statement, instead lasts as long as the caller tells
    `notifies`.
    """

    bound = CHECK_TIMEOUT
    # When the server last answered, by the monotonic clock.
    good_at = -math.inf

    def wait(
        self, gen: PQGen[Result], interval: float = 0.1, timeout: float | None = None
    ) -> Result:
        if timeout is not None:
            # Only what arrives, and the end, is to wake this process.
            return super().wait(gen, timeout, timeout)
        try:
            answer = super().wait(gen, interval, None if math.isinf(self.bound) else self.bound)
        except psycopg.errors._WaitTimeout as error:
            # An answer that still comes must not be read as the answer to a later statement.
            self.pgconn.finish()
            raise psycopg.OperationalError(f"no answer within {self.bound:g} seconds") from error
        self.good_at = time.monotonic()
        return answer


def check_good(connection: BoundedConnection) -> None:
    """Check that a connection from the pool is good, by a statement. None is sent if the connection
    has answered within the last CHECK_TTL seconds and its socket has nothing to read: if the server
    had closed it, the end of file would be readable. If `clock` is due to be set, the statement
    asks for the time. Raises psycopg.Error."""
    if clock.is_due():
        # Autocommit, so that no transaction stays open. psycopg changes it without a round trip.
        had_autocommit, connection.autocommit = connection.autocommit, True
        set_clock(connection)
        connection.autocommit = had_autocommit
        return
    if time.monotonic() - connection.good_at < CHECK_TTL:
        look = _poll()
        look.register(connection.fileno(), select.POLLIN)
        if not look.poll(0):
            return
    ConnectionPool.check_connection(connection)


def set_clock(connection: BoundedConnection, first: str = "") -> None:
    """Execute the statements `first`, if given, and set `clock` from the database's time, in one
    round trip. Raises psycopg.Error."""
    sent_at = clock.running_for()
    statements = "; ".join(filter(None, (first, "SELECT clock_timestamp()")))
    # A string with several statements cannot be prepared.
    cursor = connection.execute(statements.encode(), prepare=False)
    while cursor.nextset():
        pass
    answer = cursor.fetchone()
    assert answer is not None
    clock.adjust(answer[0], sent_at=sent_at, answered_at=clock.running_for())


READ_ADAPTERS = AdaptersMap(psycopg.adapters)
set_json_loads(orjson.loads, READ_ADAPTERS)


class ReadCursor(psycopg.Cursor[tuple[Any, ...]]):
    """Loads values with psycopg's own loaders, which are written in C, instead of Django's, which
    are written in Python. Times are in UTC, and JSON is parsed."""

    @property
    def adapters(self) -> AdaptersMap:
        return READ_ADAPTERS


# Less than a second, after which Postgres ends one of two transactions that wait for each other.
LOCK_TIMEOUT = 0.2


class SchemaEditor(DatabaseSchemaEditor):
    """Removes the limit on statements, because a migration of many rows may take long, and limits
    the wait for each lock, because requests wait behind it (`management.commands.migrate`)."""

    connection: "DatabaseWrapper"

    def __enter__(self) -> "SchemaEditor":
        self.connection.ensure_connection()
        self.connection.bound_statements(math.inf)
        self._bound_locks(LOCK_TIMEOUT)
        super().__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        try:
            super().__exit__(*raised)
        finally:
            # This fails if the connection is closed or its transaction has failed. Such a
            # connection is not used further.
            with suppress(Error):
                self.connection.bound_statements(self.connection.bound)
                self._bound_locks(0)

    def _bound_locks(self, seconds: float) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute(f"SET lock_timeout = {round(seconds * 1000)}")


class DatabaseWrapper(base.DatabaseWrapper):
    SchemaEditorClass = SchemaEditor

    @property
    def bound(self) -> float:
        """The limit for one statement in seconds; infinity if there is none."""
        return self.settings_dict["STATEMENT_TIMEOUT"] or math.inf

    def get_new_connection(self, conn_params: dict[str, Any]) -> BoundedConnection:
        connection: BoundedConnection
        if self.pool:
            connection = super().get_new_connection(conn_params)
        else:
            self.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
            connection = BoundedConnection.connect(**conn_params)
        connection.bound = self.bound
        return connection

    @property
    def pool(self) -> "ConnectionPool[BoundedConnection] | None":
        if options := self.settings_dict["OPTIONS"].get("pool"):
            # Not among the settings, which would import this module, and so much of Django.
            options["connection_class"] = BoundedConnection
        pool = super().pool
        if pool is not None:
            # Django passes psycopg's own check, which sends a statement each time.
            pool._check = check_good
        return pool  # type: ignore[no-any-return]

    @classmethod
    def pool_statistics(cls) -> dict[str, int]:
        """What psycopg-pool counts of this process's pool; {} before the first connection."""
        pool = cls._connection_pools.get("default")  # type: ignore[attr-defined] # not in the stubs
        return pool.get_stats() if pool else {}

    def read(self, sql: str, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """Execute a statement and return its rows. The server prepares the statement once for each
        connection, so there must be only few different texts, and they must contain no values.
        Raises django.db.Error."""
        self.ensure_connection()
        self.validate_no_broken_transaction()
        with self._log_statement(sql, values), self.wrap_database_errors:
            cursor = ReadCursor(self.connection)
            return cursor.execute(sql.encode(), values, prepare=True).fetchall()

    def _log_statement(self, sql: str, values: Mapping[str, Any]) -> AbstractContextManager[Any]:
        """Log the statement as Django logs its own, so that tests can count it."""
        if not self.queries_logged:
            return nullcontext()
        return CursorDebugWrapper(None, self).debug_sql(sql, values)

    def bound_statements(self, seconds: float) -> None:
        """Change the limit for one statement, in seconds, on the connection in use. Raises
        django.db.Error."""
        with self.cursor() as cursor:
            cursor.execute(statement_timeout(seconds))
        self.connection.bound = seconds

    def _configure_connection(self, connection: BoundedConnection) -> bool:
        super()._configure_connection(connection)  # type: ignore[misc] # not in django-stubs
        set_clock(connection, f"{statement_timeout(self.bound)}; {hold_present_key()}")
        return True

    def _close(self) -> None:
        if self.connection is not None:
            # While the connection is in the pool, only checks use it.
            self.connection.bound = CHECK_TIMEOUT
        super()._close()  # type: ignore[misc] # not in django-stubs


def release_connection() -> None:
    """Return this thread's connection to the pool, unless it is in a transaction. The next query
    takes one again."""
    if not default_connection.in_atomic_block:
        default_connection.close()


def statement_timeout(bound: float) -> str:
    """The statement that sets when the server cancels a statement. `bound` is the client's limit in
    seconds."""
    milliseconds = 0 if math.isinf(bound) else max(1, round((bound - TIMEOUT_MARGIN) * 1000))
    return f"SET statement_timeout = {milliseconds}"

"""Django's PostgreSQL with a bound on every wait. Django fixes this module's name, and its class's.

A database that hangs (a stopped process, a network that swallows packets) neither answers nor
closes: who waits for it would wait for ever. So the client gives up by itself, closes the
connection and raises OperationalError. A server that does answer ends the statement shortly
before, so that nothing goes on for nobody.
"""

import math
import select
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, TypeVar

import orjson
import psycopg
from django.db import Error
from django.db.backends.postgresql import base
from django.db.backends.postgresql.schema import DatabaseSchemaEditor
from django.db.backends.utils import CursorDebugWrapper
from gevent.monkey import get_original
from psycopg.abc import PQGen
from psycopg.adapt import AdaptersMap
from psycopg.types.json import set_json_loads
from psycopg_pool import ConnectionPool

from controlplane import clock

Result = TypeVar("Result")

# Seconds for what is no statement of the application's: to make a connection ready, to look
# whether one from the pool is still good. So short that a second look fits into a request.
LOOK_WITHIN = 1.0
# Seconds by which the server's end of a statement comes first.
SERVER_FIRST = 0.5
# Seconds in which a connection that has answered is taken for good, unless its other end is gone.
GOOD_FOR = 1.0
# The system's own, which looks and does not wait; gevent's goes its own way.
_poll = get_original("select", "poll")


class BoundedConnection(psycopg.Connection[tuple[Any, ...]]):
    """Waits for no answer longer than `bound` seconds; raises psycopg.OperationalError then.

    Only for notifications, which answer nothing, a wait lasts as long as `notifies` is told.
    """

    bound = LOOK_WITHIN
    # When it was last seen to be good, by the monotonic clock.
    good_at = -math.inf
    # What each wait for an answer is within; the API lets other requests compute meanwhile.
    around_waits: Callable[[], AbstractContextManager[object]] = nullcontext

    def wait(
        self, gen: PQGen[Result], interval: float = 0.1, timeout: float | None = None
    ) -> Result:
        if timeout is not None:
            return super().wait(gen, interval, timeout)
        try:
            with BoundedConnection.around_waits():
                answer = super().wait(gen, interval, None if math.isinf(self.bound) else self.bound)
        except psycopg.errors._WaitTimeout as error:
            # What may still come answers a question that nobody asks any more.
            self.pgconn.finish()
            raise psycopg.OperationalError(f"no answer within {self.bound:g} seconds") from error
        self.good_at = time.monotonic()
        return answer


def check_good(connection: BoundedConnection) -> None:
    """Asks the server, but for a connection that has answered a moment ago and has nothing to say:
    of one whose server ended, the end could be read. Where the time is due to be asked, that is
    the question. Raises psycopg.Error."""
    if clock.is_due():
        # So that no transaction is left open. The server is not asked for it.
        had_autocommit, connection.autocommit = connection.autocommit, True
        set_clock(connection)
        connection.autocommit = had_autocommit
        return
    if time.monotonic() - connection.good_at < GOOD_FOR:
        look = _poll()
        look.register(connection.fileno(), select.POLLIN)
        if not look.poll(0):
            return
    ConnectionPool.check_connection(connection)


def set_clock(connection: BoundedConnection, first: str = "") -> None:
    """Hear what time it is in the database, after the statement `first`, in one round trip. Raises
    psycopg.Error."""
    asked = clock.running_for()
    statements = "; ".join(filter(None, (first, "SELECT clock_timestamp()")))
    # Two statements cannot be prepared.
    cursor = connection.execute(statements.encode(), prepare=False)
    while cursor.nextset():
        pass
    answer = cursor.fetchone()
    assert answer is not None
    clock.take_in(answer[0], asked=asked, answered=clock.running_for())


READ_ADAPTERS = AdaptersMap(psycopg.adapters)
set_json_loads(orjson.loads, READ_ADAPTERS)


class ReadCursor(psycopg.Cursor[tuple[Any, ...]]):
    """Gives values as psycopg reads them, in C, past what Django's own loaders do in Python:
    times are UTC, JSON is read."""

    @property
    def adapters(self) -> AdaptersMap:
        return READ_ADAPTERS


class SchemaEditor(DatabaseSchemaEditor):
    """Without a bound: a migration of many rows takes its time."""

    connection: "DatabaseWrapper"

    def __enter__(self) -> "SchemaEditor":
        self.connection.ensure_connection()
        self.connection.bound_statements(math.inf)
        super().__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        try:
            super().__exit__(*raised)
        finally:
            # A connection that is closed, or in a transaction that failed, is of no more use.
            with suppress(Error):
                self.connection.bound_statements(self.connection.bound)


class DatabaseWrapper(base.DatabaseWrapper):
    SchemaEditorClass = SchemaEditor

    @property
    def bound(self) -> float:
        """Seconds for one statement; infinite without a bound."""
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
        pool = super().pool
        if pool is not None:
            # Django passes psycopg's own check, which asks the server each time.
            pool._check = check_good
        return pool  # type: ignore[no-any-return]

    def read(self, sql: str, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """The rows of a statement that the server prepares once for each connection, so that its
        text must be one of few, and hold no value. Raises django.db.Error."""
        self.ensure_connection()
        self.validate_no_broken_transaction()
        with self._noted(sql, values), self.wrap_database_errors:
            cursor = ReadCursor(self.connection)
            return cursor.execute(sql.encode(), values, prepare=True).fetchall()

    def _noted(self, sql: str, values: Mapping[str, Any]) -> AbstractContextManager[Any]:
        """As Django does it for its own statements, for those who count them."""
        if not self.queries_logged:
            return nullcontext()
        return CursorDebugWrapper(None, self).debug_sql(sql, values)

    def bound_statements(self, seconds: float) -> None:
        """Change the bound for the connection in use. Raises django.db.Error."""
        with self.cursor() as cursor:
            cursor.execute(statement_timeout(seconds))
        self.connection.bound = seconds

    def _configure_connection(self, connection: BoundedConnection) -> bool:
        super()._configure_connection(connection)  # type: ignore[misc] # not in django-stubs
        set_clock(connection, statement_timeout(self.bound))
        return True

    def _close(self) -> None:
        if self.connection is not None:
            # In the pool it is only looked at.
            self.connection.bound = LOOK_WITHIN
        super()._close()  # type: ignore[misc] # not in django-stubs


def statement_timeout(bound: float) -> str:
    """Sets the server's end of a statement; `bound` is the client's, in seconds."""
    milliseconds = 0 if math.isinf(bound) else max(1, round((bound - SERVER_FIRST) * 1000))
    return f"SET statement_timeout = {milliseconds}"

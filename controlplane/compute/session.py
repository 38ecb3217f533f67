"""The platform's own sessions in a compute. Everything that looks at or changes a compute's
databases connects through here.

A compute belongs to strangers: what they set, hold or leave unread must neither keep a session
waiting nor change what it sees. So every session is bounded from both sides, and every setting
that could bend its answers is pinned at its start, where nothing that a user sets for a role, a
database or the whole compute comes after it.
"""

import array
import fcntl
import termios
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Self, TypeVar

import psycopg
from django.conf import settings
from psycopg import capabilities
from psycopg.abc import PQGen, PQGenConn

from controlplane.compute.accounts import is_served_by
from controlplane.compute.binaries import postgres_version
from controlplane.compute.configuration import PLATFORM_ROLE
from controlplane.compute.door import port_of
from controlplane.compute.patience import UNBOUNDED, Cancelled, heed_cancel, remaining

Result = TypeVar("Result")
Wanted = TypeVar("Wanted")
Ready = TypeVar("Ready")
Session = psycopg.Connection[tuple[object, ...]]

# Seconds for one statement, where its session's opener names no other bound.
STATEMENT_BOUND = 30.0
# libpq and psycopg take nothing shorter.
SHORTEST_CONNECT = 2
# Seconds by which the server's own end of a statement comes first; the client's is for a server
# that does not answer at all.
SERVER_FIRST = 1.0
# Bytes of what a server says until one statement is done, and while a session begins. Whoever has
# broken out of a compute may answer in its place, and all that is said would fill our memory.
LONGEST_ANSWER = 64 << 20
LARGEST_NUMBER = 2**63 - 1
# Seconds for telling a server that a statement is not wanted any more.
TELL_BOUND = 1.0

# Sessions run as a superuser: only what is Postgres's own may be found by name. The first half
# keeps answers in the one form that the driver reads, the second keeps statements that may hold
# a password's verifier out of logs and views, the third keeps them from waiting for anybody.
PINNED = {
    "search_path": "pg_catalog",
    "role": "none",
    "default_transaction_read_only": "off",
    "default_transaction_isolation": "read committed",
    "default_transaction_deferrable": "off",
    "default_tablespace": "",
    "session_replication_role": "origin",
    "row_security": "on",
    "datestyle": "ISO",
    "intervalstyle": "postgres",
    "timezone": "UTC",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "standard_conforming_strings": "on",
    "lc_messages": "C",
    "client_min_messages": "warning",
    "local_preload_libraries": "",
    "session_preload_libraries": "",
    "jit": "off",
    # secrets
    "log_statement": "none",
    "log_duration": "off",
    "log_min_duration_statement": "-1",
    "log_min_duration_sample": "-1",
    "log_transaction_sample_rate": "0",
    "log_min_messages": "warning",
    "log_min_error_statement": "panic",
    "log_parameter_max_length": "0",
    "log_parameter_max_length_on_error": "0",
    "debug_print_parse": "off",
    "debug_print_rewritten": "off",
    "debug_print_plan": "off",
    "track_activities": "off",
    "pg_stat_statements.track": "none",
    # waiting
    "synchronous_commit": "local",
    "idle_session_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "lock_timeout": "10s",
    "deadlock_timeout": "1s",
    "temp_file_limit": "-1",
    "max_parallel_workers_per_gather": "0",
    "exit_on_error": "off",
}
# Known since these major versions.
PINNED_SINCE = {17: {"transaction_timeout": "0", "event_triggers": "off"}}


def socket_dir(endpoint_id: str) -> Path:
    """Where the endpoint's compute listens."""
    return Path(settings.SOCKET_DIR) / endpoint_id


class SessionTimedOut(psycopg.OperationalError):
    """The compute did not answer in time; the message says how long was waited."""


class NotPostgres(psycopg.OperationalError):
    """What answers in the compute's place says what no Postgres says; the message says what."""


class _BoundedConnection(psycopg.Connection[tuple[object, ...]]):
    """Waits for no answer longer than `bound` seconds, nor than the work under way may take."""

    bound = STATEMENT_BOUND

    @classmethod
    def _connect_gen(cls, conninfo: str = "") -> PQGenConn[Self]:
        return heeding(of_bounded_length(super()._connect_gen(conninfo)))

    def wait(
        self, gen: PQGen[Result], interval: float = 0.1, timeout: float | None = None
    ) -> Result:
        allowed = min(self.bound, remaining(), UNBOUNDED if timeout is None else timeout)
        try:
            return super().wait(heeding(of_bounded_length(gen, self.fileno())), interval, allowed)
        except psycopg.errors._WaitTimeout as error:
            raise SessionTimedOut(f"no answer within {allowed:.0f} seconds") from error


def heeding(gen: Generator[Wanted, Ready, Result]) -> Generator[Wanted, Ready, Result]:
    """The same wait of the driver, which wakes some times a second, and ends with the work that
    waits. Raises Cancelled."""
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            heed_cancel()
            wanted = gen.send(ready)
    except StopIteration as ended:
        result: Result = ended.value
        return result


def of_bounded_length(
    gen: Generator[Wanted, Ready, Result],
    descriptor: int | None = None,
    *,
    longest: int | None = None,
) -> Generator[Wanted, Ready, Result]:
    """The same wait of the driver, which ends when more than about `longest` bytes, LONGEST_ANSWER
    unless told, have come in from the descriptor. While a connection is made the driver says which
    descriptor that is. Raises NotPostgres."""
    count, unread, most = 0, array.array("i", [0]), longest or LONGEST_ANSWER
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            source = wanted[0] if descriptor is None and isinstance(wanted, tuple) else descriptor
            if source is not None:
                fcntl.ioctl(source, termios.FIONREAD, unread)
                count += unread[0]
            if count > most:
                raise NotPostgres(f"an answer of more than {most >> 20} MiB")
            wanted = gen.send(ready)
    except StopIteration as ended:
        result: Result = ended.value
        return result


@contextmanager
def session(
    socket_dir: Path,
    dbname: str = "postgres",
    *,
    bound: float = STATEMENT_BOUND,
    client_encoding: str = "UTF8",
) -> Iterator[Session]:
    """A session in the compute that listens in `socket_dir`, in autocommit, closed at the end.

    Connecting and every statement may each take `bound` seconds, and less where the work under
    way has less left; the server ends a statement that takes longer. `SQL_ASCII` as the
    encoding has nothing converted: text comes as bytes, and a database whose encoding knows no
    conversion lets us in. Raises psycopg.OperationalError, SessionTimedOut among them; what is
    run in it raises psycopg.Error.
    """
    connection = _BoundedConnection.connect(
        **parameters(socket_dir, dbname, bound=bound),
        autocommit=True,
        connect_timeout=max(SHORTEST_CONNECT, round(min(bound, remaining()))),
        client_encoding=client_encoding,
    )
    connection.bound = bound
    if not is_served_by(connection.fileno(), socket_dir):
        connection.close()
        raise psycopg.OperationalError("the compute's socket leads elsewhere")
    try:
        yield connection
    except Cancelled:
        # It would go on with its statement for as long as that takes.
        if capabilities.has_cancel_safe():
            with suppress(psycopg.Error):
                connection.cancel_safe(timeout=TELL_BOUND)
        raise
    finally:
        # Not `with connection`: leaving that after a timeout would wait for a rollback.
        connection.close()


def parameters(socket_dir: Path, dbname: str, *, bound: float) -> dict[str, Any]:
    """What libpq needs for a session of the platform's, pinned; the caller sees by `is_served_by`
    where it leads, and waits no longer than `bound` seconds for a statement."""
    return {
        "host": str(socket_dir),
        "port": port_of(socket_dir),
        "user": PLATFORM_ROLE,
        "dbname": dbname,
        "application_name": "perch",
        "options": pinned_options(bound),
    }


def values_of(row: tuple[object, ...] | None, *kinds: type | tuple[type, ...]) -> tuple[Any, ...]:
    """The values of a row that must be there, each of its kind, and no number larger than Postgres
    has them, no moment without a zone. Raises NotPostgres."""
    if row is None or len(row) != len(kinds) or not all(map(isinstance, row, kinds)):
        raise NotPostgres("an answer of other columns than were asked for")
    if any(isinstance(value, int) and abs(value) > LARGEST_NUMBER for value in row):
        raise NotPostgres("a number that is too large")
    if any(isinstance(value, datetime) and value.tzinfo is None for value in row):
        raise NotPostgres("a moment without its zone")
    return row


def name_of(sent: object) -> str:
    """A name as `namesend` gives it. The catalog keeps names as the bytes that came, in the
    encoding of whichever database they came through: ours are UTF-8, a user's may not be."""
    assert isinstance(sent, bytes)
    return sent.decode(errors="surrogateescape")


def is_utf8(name: str) -> bool:
    """Whether a name that `name_of` gave can be said; otherwise using it raises UnicodeError."""
    return not any("\ud800" <= character <= "\udfff" for character in name)


def pinned_options(bound: float) -> str:
    """What pins a session, as libpq's `options`, with `bound` seconds for a statement."""
    milliseconds = max(1, round((bound - SERVER_FIRST) * 1000))
    settings: dict[str, Any] = {**PINNED, "statement_timeout": milliseconds}
    major = int(postgres_version().split(".")[0])
    for since, pinned in PINNED_SINCE.items():
        if major >= since:
            settings |= pinned
    return " ".join(f"-c {name}={_escaped(str(value))}" for name, value in settings.items())


def _escaped(value: str) -> str:
    """As the server splits its options: at blanks that no backslash escapes."""
    return value.replace("\\", "\\\\").replace(" ", "\\ ")

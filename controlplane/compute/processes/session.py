"""The platform's own sessions in a compute. All code that reads or changes a compute's databases
connects through this module.

A compute is untrusted: nothing that clients set, hold or leave unread may keep a session waiting or
change what it sees. So client and server both limit every session's time. Every setting that could
change a session's answers is pinned when the session starts, which overrides all that a user sets
for a role, a database or the whole compute.
"""

import array
import fcntl
import termios
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import quote

import psycopg
from django.conf import settings
from psycopg import capabilities
from psycopg.abc import Buffer, PQGen, PQGenConn
from psycopg.adapt import AdaptersMap
from psycopg.conninfo import conninfo_to_dict
from psycopg.types.string import TextLoader

from controlplane import clock
from controlplane.compute.host.accounts import is_served_by
from controlplane.compute.host.binaries import major_at
from controlplane.compute.host.listener_socket import port_of
from controlplane.compute.host.patience import UNBOUNDED, Cancelled, check_cancelled, remaining
from controlplane.compute.settings.configuration import PLATFORM_ROLE

Result = TypeVar("Result")
Wanted = TypeVar("Wanted")
Ready = TypeVar("Ready")
Session = psycopg.Connection[tuple[object, ...]]

# Seconds for one statement, if the caller of `session` names no other bound.
STATEMENT_TIMEOUT = 30.0
# Seconds: libpq and psycopg accept no shorter timeout for connecting.
MIN_CONNECT_TIMEOUT = 2
# Seconds by which the server's timeout for a statement comes before the client's, which is for a
# server that does not answer at all.
TIMEOUT_MARGIN = 1.0
# Bytes that a server may send during one statement, or while a session starts. An attacker who has
# taken over a compute may answer in its place, and the whole answer would be held in our memory.
MAX_ANSWER_BYTES = 64 << 20
# No number that a compute reports is larger, so that Postgres's bigint holds a hundred of them. It
# would be 72 PB, as a size or as a position in the log.
MAX_INTEGER = 2**56
# Characters of a text that a compute reports, and bytes of a name. Postgres's own are shorter.
MAX_TEXT_LENGTH, MAX_NAME_LENGTH = 10_000, 255
# Seconds for telling a server to cancel a statement.
CANCEL_TIMEOUT = 1.0

# Sessions run as a superuser, so names may only resolve to Postgres's own objects. The first part
# also keeps answers in the format that the driver reads, and all text in the database's own
# encoding for Postgres's programs: what they quote by one encoding must not be read by another, in
# which a part of a letter may be a backslash. The second part keeps statements, which may hold a
# password's verifier, out of logs and views. The third limits waiting for others.
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
    "quote_all_identifiers": "off",
    "array_nulls": "on",
    "transform_null_equals": "off",
    "backslash_quote": "safe_encoding",
    "client_encoding": "SQL_ASCII",
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
# Pinned since these major versions, which introduced them.
PINNED_SINCE = {17: {"transaction_timeout": "0", "event_triggers": "off"}}
ELSEWHERE = "the compute's socket leads elsewhere"
# How the names of those begin that only superusers may set.
OF_SUPERUSERS = (
    *("log_", "session_", "pg_stat_", "lc_messages", "track_activities"),
    *("temp_file_limit", "deadlock_timeout", "event_triggers"),
)


def socket_dir(endpoint_id: str) -> Path:
    """The directory in which the endpoint's compute listens."""
    return Path(settings.SOCKET_DIR) / endpoint_id


class SessionTimedOut(psycopg.OperationalError):
    """The compute did not answer in time; the message says how long the session waited."""


class NotPostgres(psycopg.OperationalError):
    """The answer is one that no Postgres gives; the message says what is wrong."""


class NotUtf8(psycopg.DataError):
    """An answer has a text that is not UTF-8, such as a name: see `name_of`."""


class _TextLoader(TextLoader):
    def load(self, data: Buffer) -> bytes | str:
        try:
            return super().load(data)
        except UnicodeDecodeError as error:
            raise NotUtf8("a name or a text that is not valid UTF-8") from error


_ADAPTERS = AdaptersMap(psycopg.adapters)
for _kind in (0, "text", "varchar", "bpchar", "name"):
    _ADAPTERS.register_loader(_kind, _TextLoader)


class _BoundedConnection(psycopg.Connection[tuple[object, ...]]):
    """Waits for an answer at most `bound` seconds, and no longer than the work under way may. The
    database's name is quoted as in an address, and so may have any bytes."""

    bound = STATEMENT_TIMEOUT
    # See `session`. It reports the progress of a long statement, or raises.
    on_wait: Callable[[], object] | None = None

    @classmethod
    def _connect_gen(cls, conninfo: str = "") -> PQGenConn[Self]:
        given = conninfo_to_dict(conninfo)
        name = f"dbname={given.pop('dbname')}"
        others = (f"{key}={quote(str(value), safe='')}" for key, value in given.items())
        address = "postgresql://?" + "&".join((name, *others))
        return heeding(of_bounded_length(super()._connect_gen(address)))

    def wait(
        self, gen: PQGen[Result], interval: float = 0.1, timeout: float | None = None
    ) -> Result:
        left = UNBOUNDED if self.on_wait else remaining()
        allowed = min(self.bound, left, UNBOUNDED if timeout is None else timeout)
        bounded = of_bounded_length(gen, self.fileno())
        try:
            return super().wait(heeding(bounded, self.on_wait), interval, allowed)
        except psycopg.errors._WaitTimeout as error:
            raise SessionTimedOut(f"no answer within {allowed:.0f} seconds") from error


def heeding(
    gen: Generator[Wanted, Ready, Result], look: Callable[[], object] | None = None
) -> Generator[Wanted, Ready, Result]:
    """Wrap a wait of the driver, so that it ends when the work is cancelled, or `look` raises. The
    driver wakes it several times a second. Raises Cancelled."""
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            check_cancelled()
            if look:
                look()
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
    """Wrap a wait of the driver, so that it ends once more than about `longest` bytes have come in
    from the descriptor; the default is MAX_ANSWER_BYTES. Without a descriptor, while connecting,
    the driver's own requests name it. Raises NotPostgres."""
    count, unread, most = 0, array.array("i", [0]), longest or MAX_ANSWER_BYTES
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
    bound: float = STATEMENT_TIMEOUT,
    client_encoding: str = "UTF8",
    watch: Callable[[int], Callable[[], object]] | None = None,
    **others: str,
) -> Iterator[Session]:
    """A session in autocommit in the compute that listens in `socket_dir`; closed at the end.

    Connecting and each statement may take `bound` seconds, or less if the work under way has less
    left; the server ends a statement that takes longer. With the encoding `SQL_ASCII` nothing is
    converted: text arrives as bytes, and databases whose encoding has no conversion can be entered.
    `watch` gets the process id of the server, and returns what is called several times a second
    during each wait, in place of the bound of the work under way. `others` replaces parameters: a
    role that is not the platform's needs its own `options` too. Raises psycopg.OperationalError,
    which includes SessionTimedOut; statements raise psycopg.Error.
    """
    # A link may lead to a socket whose server refuses the session, which would look like an answer.
    if (socket_dir / f".s.PGSQL.{port_of(socket_dir)}").is_symlink():
        raise psycopg.OperationalError(ELSEWHERE)
    name = quote(dbname, safe="", errors="surrogateescape")
    try:
        connection = _BoundedConnection.connect(
            **parameters(socket_dir, name, bound=bound)
            | {"client_encoding": client_encoding}
            | others,
            autocommit=True,
            # Code of clients that the session evaluates could replace a prepared statement.
            prepare_threshold=None,
            context=_ADAPTERS,
            connect_timeout=max(MIN_CONNECT_TIMEOUT, round(min(bound, remaining()))),
        )
    except UnicodeDecodeError as error:
        # The driver cannot say why, as it reads the name for that.
        raise psycopg.OperationalError("the database cannot be entered") from error
    connection.bound = bound
    connection.on_wait = watch(connection.info.backend_pid) if watch else None
    if not is_served_by(connection.fileno(), socket_dir):
        connection.close()
        raise psycopg.OperationalError(ELSEWHERE)
    try:
        yield connection
    except Cancelled:
        # The server would otherwise go on with the statement.
        if capabilities.has_cancel_safe():
            with suppress(psycopg.Error):
                connection.cancel_safe(timeout=CANCEL_TIMEOUT)
        raise
    finally:
        # Not `with connection`: after a timeout, that would wait for a rollback.
        connection.close()


def parameters(socket_dir: Path, dbname: str, *, bound: float) -> dict[str, Any]:
    """What libpq needs for a pinned session of the platform. The caller checks with `is_served_by`
    where the socket leads, and waits at most `bound` seconds for a statement."""
    return {
        "host": str(socket_dir),
        "port": port_of(socket_dir),
        "user": PLATFORM_ROLE,
        "dbname": dbname,
        "application_name": "perch",
        "client_encoding": "UTF8",
        "options": pinned_options(bound, major_at(socket_dir)),
    }


def values_of(row: tuple[object, ...] | None, *kinds: type | tuple[type, ...]) -> tuple[Any, ...]:
    """The row's values, after checks: the row exists, each value is of its kind, no number exceeds
    MAX_INTEGER, no text is longer than MAX_TEXT_LENGTH, and every moment is one that this host's
    clock can have shown. Raises NotPostgres."""
    if row is None or len(row) != len(kinds) or not all(map(isinstance, row, kinds)):
        raise NotPostgres("an answer with other columns than requested")
    if any(isinstance(value, int) and abs(value) > MAX_INTEGER for value in row):
        raise NotPostgres("a number that is too large")
    if any(isinstance(value, str) and len(value) > MAX_TEXT_LENGTH for value in row):
        raise NotPostgres("a text that is too long")
    if any(isinstance(value, datetime) and value.tzinfo is None for value in row):
        raise NotPostgres("a time without a time zone")
    if any(isinstance(value, datetime) and not clock.is_plausible(value) for value in row):
        raise NotPostgres("a time that no clock has shown")
    return row


def name_of(sent: object) -> str:
    """A name sent by `namesend`. The catalog stores a name as the bytes that came, in the encoding
    of the database through which it came: ours are UTF-8, a user's may not be. Raises
    NotPostgres."""
    assert isinstance(sent, bytes)
    if len(sent) > MAX_NAME_LENGTH:
        raise NotPostgres("a name that is too long")
    return sent.decode(errors="surrogateescape")


def is_utf8(name: str) -> bool:
    """True if a name from `name_of` is valid UTF-8; otherwise using it raises UnicodeError."""
    return not any("\ud800" <= character <= "\udfff" for character in name)


def pinned_options(bound: float, major: int, *, of_superuser: bool = True, **others: str) -> str:
    """The pinned settings as libpq's `options` for a Postgres of the major version, with `bound`
    seconds for a statement. Without `of_superuser`, a client's role may set them. `others` replaces
    settings and adds some."""
    milliseconds = max(1, round((bound - TIMEOUT_MARGIN) * 1000))
    settings: dict[str, Any] = {**PINNED, "statement_timeout": milliseconds}
    for since, pinned in PINNED_SINCE.items():
        if major >= since:
            settings |= pinned
    if not of_superuser:
        settings = {name: settings[name] for name in settings if not name.startswith(OF_SUPERUSERS)}
    settings |= others
    return " ".join(f"-c {name}={_escaped(str(value))}" for name, value in settings.items())


def _escaped(value: str) -> str:
    """Escape as the server expects: it splits its options at blanks without a backslash."""
    return value.replace("\\", "\\\\").replace(" ", "\\ ")

"""Observes a running compute: whether it answers, who uses it, how large its databases are and how
far its log has come. Nothing here changes the compute."""

import os
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import NoneType
from typing import Any

import psycopg

from controlplane import clock
from controlplane.compute.catalog.reading import read_mark
from controlplane.compute.data.branch_data import branch_dir, data_dir
from controlplane.compute.host import listener_socket
from controlplane.compute.host.log_lines import SECRETIVE
from controlplane.compute.host.tree import sizes_on_disk
from controlplane.compute.processes.session import (
    MAX_INTEGER,
    NotPostgres,
    Session,
    name_of,
    session,
    socket_dir,
    values_of,
)

# Seconds to wait for the answer of a compute that is looked at regularly.
LOOK_TIMEOUT = 2.0
# Seconds that a compute may take to show that it can serve clients.
ANSWER_TIMEOUT = 5.0
# How many times as long it may take on a busy host before it is stopped.
MAX_TIMEOUT_FACTOR = 10.0
# Of what a server says that it is, such as "15.20 (Debian 15.20-1)".
RELEASE = re.compile(rb"[0-9a-z.]{1,32}")
# Seconds for which a new session without a query counts as busy: its client may be about to ask.
NEW_SESSION_SECONDS = 5
# Seconds that connections under way may take to become sessions before a stop.
CONNECTING_TIMEOUT = 0.5

# Bytes of the databases that clients use.
DATABASES_SIZE = (
    "(SELECT sum(pg_database_size(oid))::bigint FROM pg_database"
    " WHERE datname NOT IN ('template0', 'template1', 'postgres'))"
)
# Bytes that clients can write beside them: in the platform's databases; in log that a replication
# slot keeps from being removed, except the platform's own slots, a temporary one for a copy and
# those of `slots`; and the directories of all databases, whose files are counted here already.
BESIDE_DATABASES = """
    (SELECT sum(pg_database_size(oid))::bigint FROM pg_database
        WHERE datname IN ('template0', 'template1', 'postgres')),
    coalesce((SELECT max(pg_current_wal_lsn() - restart_lsn)::bigint FROM pg_replication_slots s
        WHERE slot_name NOT IN ('perch_history', 'perch_region')
            AND NOT EXISTS (SELECT FROM pg_stat_activity a
                WHERE s.temporary AND a.pid = s.active_pid AND a.usename = current_user)), 0),
    (SELECT array_agg('base/' || oid) FROM pg_database)
"""
DATABASE = re.compile("base/[0-9]+")
# Bytes of a new branch beside the databases of clients, and some more.
PLATFORM_BYTES = 32 << 20
# Bytes of log that Postgres keeps whatever clients do: `max_wal_size` and `max_slot_wal_keep_size`,
# where the owner and the plan have not set others.
POSTGRES_LOG_BYTES = 3 << 30
# The last columns are clients' sessions by SESSIONS. A session that began within the given seconds
# and has asked nothing counts as busy.
ACTIVITY = """
SELECT CASE WHEN bool_or(is_busy) THEN now() ELSE max(state_change) END, bool_or(is_busy), count(*),
    count(*) FILTER (WHERE state = 'active'),
    count(*) FILTER (WHERE state = 'idle' OR is_client AND state IS NULL),
    count(*) FILTER (WHERE state LIKE 'idle in %%'),
    count(*) FILTER (WHERE state = 'active' AND backend_type = 'client backend')
FROM (
    SELECT backend_type, usename IS DISTINCT FROM current_user AS is_client,
        CASE WHEN usename IS DISTINCT FROM current_user THEN state END AS state,
        CASE WHEN usename IS DISTINCT FROM current_user THEN state_change END AS state_change,
        usename IS DISTINCT FROM current_user AND (state <> 'idle' OR (
            query_start IS NULL AND backend_start > now() - %s * interval '1 second'
        )) AS is_busy
    FROM pg_stat_activity WHERE backend_type IN ('client backend', 'walsender')
) AS sessions
"""
SESSIONS = (
    "connections_active",
    "connections_idle",
    "connections_idle_in_transaction",
    "active_queries",
)
# Postgres's own bound of processes.
MAX_BACKENDS = (1 << 18) - 1
# Changes when a table, an index or a sequence of the database is read, written, made or altered,
# empty or not, by whatever means: Postgres's own counters. What a statement's text says is neither
# needed nor trusted. The catalog's relations are left out, except those of large objects.
TABLES = """
SELECT concat_ws(' ', count(*), sum(c.xmin::text::bigint), sum(pg_stat_get_numscans(c.oid)
    + pg_stat_get_tuples_inserted(c.oid) + pg_stat_get_tuples_updated(c.oid)
    + pg_stat_get_tuples_deleted(c.oid)),
    sum(pg_stat_get_blocks_fetched(c.oid)) FILTER (WHERE relkind = 'S'))
FROM pg_class c WHERE c.oid >= 16384 OR c.relname LIKE 'pg\\_largeobject%'
"""
# The databases with clients, if heartbeats are looked for in so many.
CLIENTS_DATABASES = """
SELECT DISTINCT namesend(datname) FROM pg_stat_activity
WHERE datname IS NOT NULL AND usename IS DISTINCT FROM current_user LIMIT %s
"""
MAX_DATABASES = 8
# The clients' sessions, the busy and the most recently used ones first. Statements that may hold a
# password are not shown. Names and statements have the encoding of the session's database, of which
# none can be assumed, and any bytes are LATIN1.
SHOWN_SESSIONS = """
SELECT pid, namesend(usename) AS role, namesend(datname) AS database, application_name, state,
    backend_start, xact_start, state_change, CASE
        WHEN convert_from(textsend(query), 'LATIN1') !~* %s THEN substr(textsend(query), 1, %s)
    END AS last_statement
FROM pg_stat_activity
WHERE backend_type IN ('client backend', 'walsender') AND usename IS DISTINCT FROM current_user
ORDER BY state = 'idle', state_change DESC NULLS LAST LIMIT %s
"""
MAX_SESSIONS, MAX_STATEMENT_LENGTH = 100, 500
# The position that is flushed to disk: a crash cannot undo it, so nothing is counted twice.
WRITTEN = "current_setting('data_directory'), (pg_current_wal_flush_lsn() - '0/0'::pg_lsn)::bigint"


@dataclass(frozen=True)
class Written:
    """How far a branch's write-ahead log has come."""

    # Says which data it is (`data_of`): positions of different data cannot be compared.
    data: str
    # Bytes.
    position: int


@dataclass(frozen=True)
class Measures:
    # Bytes of the databases, and of what else counts; see `Branch`.
    logical_size: int
    auxiliary_size: int
    written: Written


# For each endpoint whose heartbeats are not activity: what TABLES said of its databases, and the
# last activity when that had changed.
_tables: dict[str, tuple[Mapping[str, bytes], datetime]] = {}
# For each active endpoint: its branch when that was last measured, and how many bytes of the disk
# the compute's files took, and how many inodes.
_on_disk: dict[str, tuple[str, tuple[int, int]]] = {}


class OtherBranch(Exception):
    """The endpoint's compute still runs, or already runs, on another branch."""


def answers(endpoint_id: str) -> bool:
    """True if the endpoint's Postgres runs a query."""
    try:
        with session(socket_dir(endpoint_id), bound=ANSWER_TIMEOUT) as connection:
            return connection.execute("SELECT 1").fetchone() == (1,)
    except psycopg.Error:
        return False


def is_silent(endpoint_id: str) -> bool:
    """True if the endpoint's Postgres, which should be running, gives no answer, although it had
    more time the more processes of the host wait for a processor or a disk."""
    load = os.getloadavg()[0] / len(os.sched_getaffinity(0))
    bound = ANSWER_TIMEOUT * min(max(1.0, load), MAX_TIMEOUT_FACTOR)
    try:
        with session(socket_dir(endpoint_id), bound=bound) as connection:
            connection.execute("SELECT 1")
    except psycopg.Error as error:
        return is_no_answer(error)
    return False


def is_no_answer(error: psycopg.Error) -> bool:
    """True if a session failed without any answer, not even a refusal."""
    return error.sqlstate is None and "FATAL:" not in str(error)


@dataclass(frozen=True, slots=True)
class Look:
    """What is seen of a running compute at one moment."""

    # When a client last did something; None if no client ever did.
    last_activity: datetime | None
    # See `catalog.reading.MARK`.
    catalog_mark: str
    # By SESSIONS.
    sessions: Mapping[str, int]
    # The release of Postgres, such as "18.6", as the compute says.
    release: str


def look(endpoint_id: str, heartbeats_since: datetime | None = None) -> Look:
    """Look at the running compute.

    Activity is a running query, an open transaction, or the moment when the last one ended. Idle
    connections and the platform's own sessions are none. A connection that is just being made
    counts, since its user is not known yet. So does a session that began a moment ago and has asked
    nothing: its proxy may be slow to send the first query. What ended after `heartbeats_since`
    counts only if a table was read or written since the last call. Raises psycopg.Error.
    """
    with session(socket_dir(endpoint_id), bound=LOOK_TIMEOUT) as connection:
        return look_through(connection, endpoint_id, heartbeats_since)


def look_through(
    connection: Session, endpoint_id: str, heartbeats_since: datetime | None = None
) -> Look:
    """Do the same through a session of the caller's."""
    mark = read_mark(connection)
    last, is_busy, _, sessions = _activity(connection)
    if not is_busy and heartbeats_since and last and last > heartbeats_since:
        last = _last_use_of_tables(connection, endpoint_id, last)
    release = RELEASE.match(connection.pgconn.parameter_status(b"server_version") or b"")
    said = release[0].decode() if release else ""
    return Look(last, mark, dict(zip(SESSIONS, sessions, strict=True)), said)


def _last_use_of_tables(connection: Session, endpoint_id: str, last: datetime) -> datetime:
    """The last activity that a call has found to read or write a table: `last`, unless nothing has
    changed since an earlier call, or nobody can tell."""
    found = connection.execute(CLIENTS_DATABASES, [MAX_DATABASES + 1]).fetchall()
    names = [name_of(*values_of(row, bytes)) for row in found]
    if len(names) > MAX_DATABASES:
        return last
    before, used_at = _tables.get(endpoint_id, ({}, last))
    now = {}
    for name in names:
        place = socket_dir(endpoint_id)
        with session(place, name, bound=LOOK_TIMEOUT, client_encoding="SQL_ASCII") as other:
            (now[name],) = values_of(other.execute(TABLES).fetchone(), bytes)
    if not now.items() <= before.items():
        used_at = last
    # A client that only sends heartbeats may be away at most looks.
    kept = [*({**now, **before} | now).items()][: 2 * MAX_DATABASES]
    _tables[endpoint_id] = dict(kept), used_at
    return used_at


def forget(endpoint_id: str) -> None:
    """Drop what is remembered of an endpoint that is no longer active."""
    _tables.pop(endpoint_id, None)
    _on_disk.pop(endpoint_id, None)


def read_sessions(endpoint_id: str) -> list[dict[str, Any]]:
    """The clients' sessions of the running compute, by the columns of SHOWN_SESSIONS. Raises
    psycopg.Error."""
    with session(socket_dir(endpoint_id), bound=LOOK_TIMEOUT) as connection:
        # A character has at most four bytes.
        bounds = SECRETIVE, 4 * MAX_STATEMENT_LENGTH, MAX_SESSIONS
        cursor = connection.execute(SHOWN_SESSIONS, bounds)
        names = [column.name for column in cursor.description or ()]
        times, texts = ((datetime, NoneType),) * 3, ((str, NoneType),) * 2
        kinds: Any = int, *((bytes, NoneType),) * 2, *texts, *times, (bytes, NoneType)
        rows = [values_of(row, *kinds) for row in cursor]
    return [dict(zip(names, map(_shown, row), strict=True)) for row in rows]


def _shown(value: object) -> object:
    if isinstance(value, bytes):
        return value.decode(errors="replace")[:MAX_STATEMENT_LENGTH]
    return clock.from_host(value) if isinstance(value, datetime) else value


def last_activity(endpoint_id: str, heartbeats_since: datetime | None = None) -> datetime | None:
    """The last activity, as `look` defines it, after new clients were refused.

    Connections made before that may still be in the listener's queue or authenticating, where they
    cannot be seen as clients. So this waits until each is a session, but not longer than
    CONNECTING_TIMEOUT seconds: a slower one has begun nothing. Raises psycopg.OperationalError."""
    place = socket_dir(endpoint_id)
    deadline = time.monotonic() + CONNECTING_TIMEOUT
    with session(place, bound=LOOK_TIMEOUT) as connection:
        while True:
            # In this order, since a connection made in between may only raise the second number.
            made = listener_socket.connections_to(listener_socket.SOCKET).count(place)
            _, _, seen, _ = _activity(connection)
            if made <= seen or time.monotonic() > deadline:
                return look_through(connection, endpoint_id, heartbeats_since).last_activity
            time.sleep(0.002)


def _activity(connection: Session) -> tuple[datetime | None, bool, int, Sequence[int]]:
    """The last activity, whether a session is busy, the number of all sessions, the platform's
    included, and the numbers of clients' sessions in the order of SESSIONS. No activity is later
    than now, whatever the compute says."""
    row = connection.execute(ACTIVITY, [NEW_SESSION_SECONDS]).fetchone()
    kinds: Any = (datetime, NoneType), (bool, NoneType), *(int,) * (1 + len(SESSIONS))
    last, is_busy, seen, *sessions = values_of(row, *kinds)
    if not all(0 <= count <= MAX_BACKENDS for count in (seen, *sessions)):
        raise NotPostgres("a number of sessions that Postgres cannot have")
    last = last and min(clock.from_host(last), clock.now())
    return last, bool(is_busy), seen, sessions


def measure(endpoint_id: str, branch_id: str) -> Measures:
    """Measure the endpoint's compute, which runs on the branch.

    Raises psycopg.OperationalError, OtherBranch, OSError.
    """
    with session(socket_dir(endpoint_id)) as connection:
        row = connection.execute(
            f"SELECT {DATABASES_SIZE}, {BESIDE_DATABASES}, {WRITTEN}"
        ).fetchone()
    said, of_platform, held, databases, data_directory, position = values_of(
        row, (int, NoneType), int, int, list, str, int
    )
    written = written_on(branch_id, data_directory, position)
    places = set(filter(DATABASE.fullmatch, map(str, databases)))
    beside, taken = _sizes_on_disk(endpoint_id, branch_id, [*places, "pg_wal"])
    beside += max(0, of_platform)
    # Whatever the compute says, all that it stores counts.
    of_databases = sum(taken[name] for name in places)
    size = max(0, said or 0, of_databases - max(0, of_platform))
    log = max(0, held, taken["pg_wal"] - POSTGRES_LOG_BYTES)
    auxiliary = max(0, beside - PLATFORM_BYTES) + log
    # Files of a hostile compute may claim to be larger than any disk.
    return Measures(min(size, MAX_INTEGER), min(auxiliary, MAX_INTEGER), written)


def least_size(endpoint_id: str, branch_id: str) -> int:
    """Bytes that `measure` would find at least, whatever the compute said. Raises OSError."""
    beside, taken = _sizes_on_disk(endpoint_id, branch_id, ["pg_wal"])
    log = max(0, taken["pg_wal"] - POSTGRES_LOG_BYTES)
    return min(max(0, beside - PLATFORM_BYTES) + log, MAX_INTEGER)


def _sizes_on_disk(
    endpoint_id: str, branch_id: str, measured: Sequence[str]
) -> tuple[int, Mapping[str, int]]:
    """The bytes of `sizes_on_disk` for all files of the compute. Notes their sum."""
    beside, taken, count = sizes_on_disk(data_dir(branch_id), measured=measured)
    for place in places_outside_of_data(endpoint_id, branch_id):
        with suppress(FileNotFoundError):
            more, _, files = sizes_on_disk(place, measured=())
            beside, count = beside + more, count + files
    _on_disk[endpoint_id] = branch_id, (beside + sum(taken.values()), count)
    return beside, taken


def last_sizes_on_disk() -> Mapping[str, tuple[int, int]]:
    """How many bytes and inodes each running compute's files took when it was last measured, by
    branch. Some that were not measured since their start are missing."""
    return dict(list(_on_disk.values()))


def places_outside_of_data(endpoint_id: str | None, branch_id: str) -> list[Path]:
    """The other directories, some of which may be missing, that the account of the branch's
    compute, if there is one, may write to."""
    return [branch_dir(branch_id) / "run", *([socket_dir(endpoint_id)] if endpoint_id else [])]


def written(endpoint_id: str, branch_id: str) -> Written:
    """How far the log of the endpoint's compute, which runs on the branch, has come.

    Raises psycopg.OperationalError, OtherBranch.
    """
    with session(socket_dir(endpoint_id), bound=LOOK_TIMEOUT) as connection:
        row = connection.execute(f"SELECT {WRITTEN}").fetchone()
    return written_on(branch_id, *values_of(row, str, int))


def written_on(branch_id: str, data_directory: str, position: int) -> Written:
    """The values of WRITTEN, if they are of this branch. Raises OtherBranch."""
    runs_on = Path(data_directory).parent.name
    if runs_on != branch_id:
        raise OtherBranch(f"the compute runs on the branch {runs_on}")
    return Written(data_of(branch_id), position)


def data_of(branch_id: str) -> str:
    """Identifies the branch's data among all that ever took its place; "" if it has none."""
    try:
        return str(data_dir(branch_id).stat().st_ino)
    except FileNotFoundError:
        return ""

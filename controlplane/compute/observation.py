"""What a running compute is seen to do and to hold: whether it answers, who uses it, how large its
databases are and how far its log has come. Nothing here changes it."""

import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import NoneType

import psycopg

from controlplane import clock
from controlplane.compute import door
from controlplane.compute.branch_data import data_dir
from controlplane.compute.catalog_reading import read_mark
from controlplane.compute.session import Session, session, socket_dir, values_of
from controlplane.compute.tree import tree_size

# Seconds that a look at a compute waits for its answer: it is looked at again soon.
LOOK_BOUND = 2.0
# Seconds that a compute which is to serve clients may take to show that it does.
ANSWER_BOUND = 5.0
# Seconds that a session which has asked nothing may be the client's that is just about to.
NEW = 5
# Seconds that whoever has made a connection is given to show itself before a stop.
ON_THE_WAY = 0.5

# Bytes of the databases that clients use.
DATABASES_SIZE = (
    "(SELECT sum(pg_database_size(oid))::bigint FROM pg_database"
    " WHERE datname NOT IN ('template0', 'template1', 'postgres'))"
)
# Bytes that clients can make beside them: in the databases that are the platform's (each a few
# megabytes as it comes), and of the log that a slot keeps from being removed. The platform's own
# slot, for a copy, is temporary.
BESIDE_DATABASES = """
    greatest(0, (SELECT sum(pg_database_size(oid))::bigint FROM pg_database
        WHERE datname IN ('template0', 'template1', 'postgres')) - 32 * 1024 * 1024)
    + coalesce((SELECT max(pg_current_wal_lsn() - restart_lsn)::bigint FROM pg_replication_slots s
        WHERE NOT EXISTS (SELECT FROM pg_stat_activity a
            WHERE s.temporary AND a.pid = s.active_pid AND a.usename = current_user)), 0)
"""
# Of the data directory: what queries, and the decoding of the log, write to files of their own.
TEMPORARY = ("base/pgsql_tmp", "pg_replslot")
# A session that was begun within so many seconds and has asked nothing is not idle.
ACTIVITY = """
SELECT CASE WHEN bool_or(is_busy) THEN now() ELSE max(state_change) END, count(*)
FROM (
    SELECT CASE WHEN usename IS DISTINCT FROM current_user THEN state_change END AS state_change,
        usename IS DISTINCT FROM current_user AND (state <> 'idle' OR (
            query_start IS NULL AND backend_start > now() - %s * interval '1 second'
        )) AS is_busy
    FROM pg_stat_activity WHERE backend_type IN ('client backend', 'walsender')
) AS sessions
"""
# What is on disk of the log: no crash takes it back, so nothing is counted twice.
WRITTEN = "current_setting('data_directory'), (pg_current_wal_flush_lsn() - '0/0'::pg_lsn)::bigint"


@dataclass(frozen=True)
class Written:
    """How far a branch's write-ahead log has come."""

    # See `data_of`: a position means nothing beside one of other data.
    data: str
    # Bytes.
    position: int


@dataclass(frozen=True)
class Measures:
    # Bytes of the databases, and what counts beside them; see `Branch`.
    logical_size: int
    auxiliary_size: int
    written: Written


class OtherBranch(Exception):
    """The endpoint's compute still runs, or runs by now, on another branch."""


def answers(endpoint_id: str) -> bool:
    """Whether the endpoint's Postgres runs a query."""
    try:
        with session(socket_dir(endpoint_id), bound=ANSWER_BOUND) as connection:
            return connection.execute("SELECT 1").fetchone() == (1,)
    except psycopg.Error:
        return False


def is_silent(endpoint_id: str) -> bool:
    """Whether the endpoint's Postgres, which is said to run, answers nobody."""
    try:
        with session(socket_dir(endpoint_id), bound=ANSWER_BOUND) as connection:
            connection.execute("SELECT 1")
    except psycopg.Error as error:
        return is_silence(error)
    return False


def is_silence(error: psycopg.Error) -> bool:
    """Whether a session failed for want of any answer, be it a refusal."""
    return error.sqlstate is None and "FATAL:" not in str(error)


@dataclass(frozen=True, slots=True)
class Look:
    """What a look at a running compute has found."""

    # When a client last did something; None if none ever did.
    last_activity: datetime | None
    # See `catalog_reading`.
    catalog_mark: str


def look(endpoint_id: str) -> Look:
    """Look at the running compute.

    Activity is a running query or an open transaction, and the end of the last one; an idle
    connection is none, nor are the platform's own. One that is just being made is activity:
    whose it is shows only later. So is one that has asked nothing since it was made a moment ago:
    its proxy may stand still, with the question in hand. Raises psycopg.OperationalError.
    """
    with session(socket_dir(endpoint_id), bound=LOOK_BOUND) as connection:
        mark = read_mark(connection)
        last, _ = _activity(connection)
    return Look(last, mark)


def last_activity(endpoint_id: str) -> datetime | None:
    """As `look` says, once whoever was on the way in when the door was shut is there: in the
    queue of connections, or not yet known to be a client, nobody could see it. One that stays on
    the way for long has begun nothing. Raises psycopg.OperationalError."""
    place = socket_dir(endpoint_id)
    deadline = time.monotonic() + ON_THE_WAY
    with session(place, bound=LOOK_BOUND) as connection:
        while True:
            # In this order: who comes in meanwhile is among the second number alone.
            made = door.connections_to(door.SOCKET).count(place)
            last, seen = _activity(connection)
            if made <= seen or time.monotonic() > deadline:
                return last
            time.sleep(0.002)


def _activity(connection: Session) -> tuple[datetime | None, int]:
    """The last activity, and how many sessions there are, whosever."""
    row = connection.execute(ACTIVITY, [NEW]).fetchone()
    last, seen = values_of(row, (datetime, NoneType), int)
    return last and clock.from_host(last), seen


def measure(endpoint_id: str, branch_id: str) -> Measures:
    """What the endpoint's compute holds, which runs on the branch.

    Raises psycopg.OperationalError, OtherBranch, TreeUntrusted, OSError.
    """
    with session(socket_dir(endpoint_id)) as connection:
        row = connection.execute(
            f"SELECT {DATABASES_SIZE}, {BESIDE_DATABASES}, {WRITTEN}"
        ).fetchone()
    size, beside, data_directory, position = values_of(row, (int, NoneType), int, str, int)
    written = _written(branch_id, data_directory, position)
    return Measures(size or 0, beside + _temporary(branch_id), written)


def _temporary(branch_id: str) -> int:
    """Bytes of the branch's temporary files."""
    size = 0
    for place in TEMPORARY:
        # The first is made for the first of them.
        with suppress(FileNotFoundError):
            size += tree_size(data_dir(branch_id) / place)
    return size


def written(endpoint_id: str, branch_id: str) -> Written:
    """How far the log of the endpoint's compute has come, which runs on the branch.

    Raises psycopg.OperationalError, OtherBranch.
    """
    with session(socket_dir(endpoint_id), bound=LOOK_BOUND) as connection:
        row = connection.execute(f"SELECT {WRITTEN}").fetchone()
    return _written(branch_id, *values_of(row, str, int))


def _written(branch_id: str, data_directory: str, position: int) -> Written:
    runs_on = Path(data_directory).parent.name
    if runs_on != branch_id:
        raise OtherBranch(f"the compute runs on the branch {runs_on}")
    return Written(data_of(branch_id), position)


def data_of(branch_id: str) -> str:
    """Tells the branch's data from any that took, or takes, its place; "" where it has none."""
    try:
        return str(data_dir(branch_id).stat().st_ino)
    except FileNotFoundError:
        return ""

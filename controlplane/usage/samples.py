"""Samples a running compute: what its sessions do, what its databases have read and written, and
what its processes use. A sample is taken in the session of a look, so it opens no connection of its
own. Neither of them counts as activity."""

import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from types import NoneType

import psycopg

from controlplane.compute import observation
from controlplane.compute.data.branch_data import data_dir
from controlplane.compute.host.progress import children_of
from controlplane.compute.observation import LOOK_TIMEOUT, WRITTEN, Look, OtherBranch
from controlplane.compute.processes.process import running_postmaster
from controlplane.compute.processes.session import Session, session, socket_dir, values_of

log = logging.getLogger(__name__)

# The first columns of STATEMENT: sums over the databases that clients use, since the statistics
# were last reset, as by a crash. It calls the functions behind `pg_stat_database`, because a new
# session would first have to read that view's definition.
DATABASES = ("cache_hits", "cache_misses", "rows_read", "rows_written", "deadlocks")
STATEMENT = f"""
SELECT sum(pg_stat_get_db_blocks_hit(oid))::bigint,
    sum(pg_stat_get_db_blocks_fetched(oid) - pg_stat_get_db_blocks_hit(oid))::bigint,
    sum(pg_stat_get_db_tuples_returned(oid))::bigint,
    sum(pg_stat_get_db_tuples_inserted(oid) + pg_stat_get_db_tuples_updated(oid)
        + pg_stat_get_db_tuples_deleted(oid))::bigint,
    sum(pg_stat_get_db_deadlocks(oid))::bigint, {WRITTEN}
FROM pg_database WHERE datname NOT IN ('template0', 'template1', 'postgres')
"""  # noqa: S608 # ours
MILLISECONDS_PER_TICK = 1000 // os.sysconf("SC_CLK_TCK")
# Fields of `_stat`: the ticks in user and kernel mode, the same of ended children, and the start.
OWN_TICKS, ALL_TICKS, STARTED = slice(11, 13), slice(11, 15), 19
BYTES_PER_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Sample:
    # The data and the process that the counters belong to. The counter `cpu_milliseconds` begins
    # anew with another process, all others with other data.
    data: str
    process: str
    # By the names of `models.usage`. Counters are totals.
    values: Mapping[str, int]


@dataclass(frozen=True)
class _Process:
    """A postmaster, which is the same process only if it also started at the same tick."""

    pid: int
    started: int


# The postmaster of each endpoint, as last found. Finding one takes some tenths of a millisecond.
_postmasters: dict[str, _Process] = {}


def look_and_sample(
    endpoint_id: str, branch_id: str, heartbeats_since: datetime | None
) -> tuple[Look, Sample | None]:
    """Look at the endpoint's compute as `observation.look` does, and sample it if it runs on the
    branch. The sample is None if that fails. Raises psycopg.OperationalError."""
    with session(socket_dir(endpoint_id), bound=LOOK_TIMEOUT) as connection:
        look = observation.look_through(connection, endpoint_id, heartbeats_since)
        try:
            return look, _sample(connection, look, endpoint_id, branch_id)
        except (psycopg.Error, OtherBranch, OSError) as error:
            fields = {"endpoint": endpoint_id, "error": repr(error)}
            log.info("no sample", extra=fields)
            return look, None


def forget_postmaster(endpoint_id: str) -> None:
    """Drop what is remembered of an endpoint that is no longer active."""
    _postmasters.pop(endpoint_id, None)


def _sample(connection: Session, look: Look, endpoint_id: str, branch_id: str) -> Sample:
    kinds = ((int, NoneType),) * len(DATABASES)
    row = values_of(connection.execute(STATEMENT).fetchone(), *kinds, str, int)
    *numbers, data_directory, position = row
    written = observation.written_on(branch_id, data_directory, position)
    counts = {name: max(0, number or 0) for name, number in zip(DATABASES, numbers, strict=True)}
    values = {**look.sessions, **counts, "log_bytes": written.position}
    process, milliseconds, memory = _used(endpoint_id, branch_id)
    values |= {"cpu_milliseconds": milliseconds, "memory_bytes": memory}
    return Sample(written.data, process, values)


def _used(endpoint_id: str, branch_id: str) -> tuple[str, int, int]:
    """Return which process runs on the branch, the milliseconds of processor time that it and its
    children have used, and their bytes of memory. Shared memory counts once. Raises OSError."""
    found = _postmasters.get(endpoint_id)
    if found is None or _started(found.pid) != found.started:
        postmaster = running_postmaster(data_dir(branch_id))
        if postmaster is None:
            raise ProcessLookupError(f"no Postgres runs on {branch_id}")
        found = _Process(postmaster.pid, int(_stat(postmaster.pid)[STARTED]))
        _postmasters[endpoint_id] = found
    # The postmaster counts the ticks of its ended children too.
    ticks = sum(map(int, _stat(found.pid)[ALL_TICKS]))
    private, shared = _pages(found.pid)
    for child in children_of(found.pid):
        with suppress(OSError):  # it has just ended
            ticks += sum(map(int, _stat(child)[OWN_TICKS]))
            child_private, child_shared = _pages(child)
            private, shared = private + child_private, max(shared, child_shared)
    process = f"{found.pid}:{found.started}"
    return process, ticks * MILLISECONDS_PER_TICK, (private + shared) * BYTES_PER_PAGE


def _started(pid: int) -> int | None:
    """Return when the process started, in ticks since the host's start; None if it has ended."""
    with suppress(OSError):
        return int(_stat(pid)[STARTED])
    return None


def _stat(pid: int) -> list[bytes]:
    """Return the fields of `stat` (proc(5)) after the program's name; the first is the state."""
    return _read(pid, "stat").rpartition(b")")[2].split()


def _pages(pid: int) -> tuple[int, int]:
    """Return the process's pages in memory: its own, and those that it may share."""
    _, resident, shared, *_ = map(int, _read(pid, "statm").split())
    return resident - shared, shared


def _read(pid: int, name: str) -> bytes:
    """Read a file of the process without buffering: many are read every minute."""
    descriptor = os.open(f"/proc/{pid}/{name}", os.O_RDONLY)
    try:
        return os.read(descriptor, 4096)
    finally:
        os.close(descriptor)

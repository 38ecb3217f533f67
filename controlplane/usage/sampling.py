"""Samples the active endpoints, once a minute each, in the session of a look of `idleness`, so that
a sample opens no connection of its own, and stores the samples (`models.usage`)."""

import logging
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from types import NoneType
from typing import Any

import psycopg
from django.conf import settings
from django.db import DataError, connection, transaction

from controlplane import clock
from controlplane.compute import observation
from controlplane.compute.data.branch_data import data_dir
from controlplane.compute.host.progress import children_of
from controlplane.compute.observation import LOOK_TIMEOUT, WRITTEN, Look, OtherBranch
from controlplane.compute.processes.process import running_postmaster
from controlplane.compute.processes.session import Session, session, socket_dir, values_of
from controlplane.models import Endpoint, EndpointSample, Host, LastSample
from controlplane.models.usage import COLUMNS, COUNTERS, FIELDS, GAUGES, MERGED
from controlplane.operations.locks import apart

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


# The most that a counter grows by between two samples, whatever a compute says: a row, which sums
# up those of five minutes, has room for thousands of them.
MAX_ADDED = 1 << 50
# Seconds of a row: of a new sample, and after MINUTE_RETENTION.
MINUTE_SECONDS, MERGED_SECONDS = 60, 300
# How long rows are kept: of a minute, and at all.
MINUTE_RETENTION, RETENTION = timedelta(hours=3), timedelta(days=14)

# An account's endpoints may be deleted and created again, so this also bounds an account's rows.
_sampled_of_account: dict[int, set[str]] = defaultdict(set)
_sampled_on: date | None = None
# The minute of each endpoint's last sample, and how often the endpoint had been started by then. An
# endpoint that was started since is sampled at once, so that each run has a sample.
_sampled: dict[str, tuple[datetime, int]] = {}

# Adds to a row that is there already.
ADDED = "ON CONFLICT (endpoint_id, at) DO UPDATE SET " + ", ".join(
    [f"{name} = greatest(s.{name}, excluded.{name})" for name in GAUGES]
    + [f"{name} = s.{name} + excluded.{name}" for name in COUNTERS]
)
# Samples of the same minute become one.
STORE = f"""
INSERT INTO controlplane_endpointsample AS s (endpoint_id, at, seconds, {COLUMNS})
VALUES (%(endpoint)s, %(at)s, {MINUTE_SECONDS}, {", ".join(f"%({name})s" for name in FIELDS)})
{ADDED}
"""  # noqa: S608 # ours
# The rows of minutes before a whole step become one of each step.
MERGE = f"""
WITH minutes AS (
    DELETE FROM controlplane_endpointsample
    WHERE seconds = {MINUTE_SECONDS} AND at < date_bin('{MERGED_SECONDS} s', %(before)s, 'epoch')
    RETURNING *)
INSERT INTO controlplane_endpointsample AS s (endpoint_id, at, seconds, {COLUMNS})
SELECT endpoint_id, date_bin('{MERGED_SECONDS} s', at, 'epoch'), {MERGED_SECONDS}, {MERGED}
FROM minutes GROUP BY 1, 2
{ADDED}, samples = s.samples + excluded.samples
"""  # noqa: S608 # ours


def to_sample(endpoints: Iterable[Endpoint], now: datetime) -> dict[str, str]:
    """Choose the endpoints to be sampled now. Return the ids of their branches by their own ids.
    The caller has read them with their projects."""
    global _sampled_on
    if _sampled_on != now.date():
        _sampled_on = now.date()
        _sampled_of_account.clear()
    chosen = {}
    for endpoint in endpoints:
        of_account = _sampled_of_account[endpoint.project.account_id]
        is_known = endpoint.id in of_account
        moment = now.replace(second=0, microsecond=0), endpoint.starts
        if moment == _sampled.get(endpoint.id):
            continue
        if is_known or len(of_account) < settings.SAMPLED_ENDPOINTS:
            of_account.add(endpoint.id)
            _sampled[endpoint.id] = moment
            chosen[endpoint.id] = endpoint.branch_id
    return chosen


def forget_inactive(active: Iterable[str]) -> None:
    """Forget the endpoints that are no longer active."""
    for endpoint_id in _sampled.keys() - set(active):
        del _sampled[endpoint_id]
        forget_postmaster(endpoint_id)


def note(taken: Sequence[tuple[Endpoint, Sample]], now: datetime) -> None:
    """Store the samples, which were taken at `now`. The endpoints were read with their branches.
    Only this host's worker writes the rows of its endpoints."""
    if not taken:
        return
    last = LastSample.objects.in_bulk([endpoint.id for endpoint, _ in taken])
    rows: list[dict[str, Any]] = []
    newest = []
    for endpoint, sample in taken:
        values = {
            **sample.values,
            "database_bytes": endpoint.branch.logical_size or 0,
            "wakes": endpoint.starts,
        }
        before = last.get(endpoint.id)
        if before is None:
            # This is the endpoint's first sample, so nothing can be subtracted.
            woken = endpoint.started_at and now - endpoint.started_at < timedelta(minutes=1)
            added = dict.fromkeys(COUNTERS, 0) | {"wakes": int(bool(woken))}
            totals = added
        else:
            added = _added(before, sample, values)
            totals = {name: before.totals[name] + added[name] for name in COUNTERS}
        at = now.replace(second=0, microsecond=0)
        rows.append({"endpoint": endpoint.id, "at": at, "samples": 1, **values, **added})
        newest.append(
            LastSample(
                endpoint=endpoint,
                sampled_at=now,
                data=sample.data,
                process=sample.process,
                values=values,
                totals=totals,
            )
        )
    try:
        _store(rows, newest)
    except DataError:
        # One of them is at fault.
        for row, one in zip(rows, newest, strict=True):
            with apart(one.endpoint_id):
                _store([row], [one])


def _store(rows: Sequence[Mapping[str, Any]], newest: Sequence[LastSample]) -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.executemany(STORE, rows)
        LastSample.objects.bulk_create(
            newest,
            update_conflicts=True,
            unique_fields=["endpoint"],
            update_fields=["sampled_at", "data", "process", "values", "totals"],
        )


def _added(last: LastSample, sample: Sample, counts: Mapping[str, int]) -> dict[str, int]:
    """Return what each counter has grown by since the last sample. For other data that is not
    known, and 0 is returned."""
    added = {}
    for name in COUNTERS:
        count = counts[name]
        base = last.values[name]
        if name == "cpu_milliseconds" and sample.process != last.process:
            base = 0
        elif name not in ("cpu_milliseconds", "wakes") and sample.data != last.data:
            base = count
        # A crash resets the statistics, but not the position in the log.
        elif count < base and name != "log_bytes":
            base = 0
        added[name] = min(max(0, count - base), MAX_ADDED)
    return added


def merge_samples(host: Host) -> None:
    """Merge the rows of minutes that are over for long, on all hosts."""
    with connection.cursor() as cursor:
        cursor.execute(MERGE, {"before": clock.now() - MINUTE_RETENTION})


def forget_samples(host: Host) -> None:
    """Delete metrics that are too old, and those of deleted endpoints, on all hosts. The
    endpoints of a deleted project come back if it is recovered."""
    EndpointSample.objects.filter(seconds=MERGED_SECONDS, at__lt=clock.now() - RETENTION).delete()
    gone = Endpoint.objects.filter(deleted_at__isnull=False, project__recoverable_until=None)
    for model in (EndpointSample, LastSample):
        model._default_manager.filter(endpoint__in=gone).delete()

"""Chooses the active endpoints that a look of `idleness` samples, once a minute each, and stores
their samples (`models.usage`)."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import DataError, connection, transaction

from controlplane import clock
from controlplane.models import Endpoint, EndpointSample, Host, LastSample
from controlplane.models.usage import COLUMNS, COUNTERS, FIELDS, GAUGES, MERGED
from controlplane.operations.locks import apart
from controlplane.usage.samples import Sample, forget_postmaster

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
            added = dict.fromkeys(COUNTERS, 0) | {"wakes": int(_has_just_woken(endpoint, now))}
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


def _has_just_woken(endpoint: Endpoint, now: datetime) -> bool:
    return endpoint.started_at is not None and now - endpoint.started_at < timedelta(minutes=1)


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

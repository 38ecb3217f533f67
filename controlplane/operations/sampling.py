"""Chooses the active endpoints that a look of `idleness` samples, once a minute each, and stores
their samples (`models.endpoint_metrics`)."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import date, datetime, timedelta

from django.conf import settings
from django.db import connection, transaction

from controlplane import clock
from controlplane.compute.samples import Sample, forget_postmaster
from controlplane.models import Endpoint, Host, PastMetrics, RecentMetrics
from controlplane.models.endpoint_metrics import PAST_SPAN, RECENT_SPAN
from controlplane.models.packed_samples import (
    COUNTERS,
    GAUGES,
    Numbers,
    State,
    appended,
    block_of,
    in_steps,
    minutes_of,
    steps_of,
)

# How long samples are kept: as they were taken, and then in steps of five minutes.
KEPT_RECENT, KEPT = timedelta(hours=3), timedelta(days=14)
# How long after the end of an hour its samples are packed: its last sample may be stored until
# then.
PACKED_AFTER = timedelta(minutes=2)
# The most rows that one round packs; the next round continues.
AT_ONCE = 1_000

# An account's endpoints may be deleted and created again, so this also bounds an account's rows.
_sampled_of_account: dict[int, set[str]] = defaultdict(set)
_sampled_on: date | None = None
# The minute of each endpoint's last sample, and how often the endpoint had been started by then. An
# endpoint that was started since is sampled at once, so that each run has a sample.
_sampled: dict[str, tuple[datetime, int]] = {}

# Deletes rows that are no longer needed. An endpoint's newest row stays, because the next sample
# needs its `state`; SPENT_SAMPLES removes only the samples from it.
SPENT = """
DELETE FROM controlplane_recentmetrics m WHERE start < %(old)s OR (is_packed AND start < %(spent)s
    AND EXISTS (SELECT FROM controlplane_recentmetrics later
        WHERE later.endpoint_id = m.endpoint_id AND later.start > m.start))
"""
SPENT_SAMPLES = """
UPDATE controlplane_recentmetrics SET samples = ''
WHERE is_packed AND start < %(spent)s AND samples <> ''
"""


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
    newest = (
        RecentMetrics.objects.filter(endpoint__in=[endpoint.id for endpoint, _ in taken])
        .order_by("endpoint_id", "-start")
        .distinct("endpoint_id")
    )
    last = {row.endpoint_id: row for row in newest}
    RecentMetrics.objects.bulk_create(
        [_with_sample(last.get(endpoint.id), endpoint, sample, now) for endpoint, sample in taken],
        update_conflicts=True,
        unique_fields=["endpoint", "start"],
        update_fields=["sampled_at", "data", "process", "state", "samples"],
    )


def _with_sample(
    last: RecentMetrics | None, endpoint: Endpoint, sample: Sample, now: datetime
) -> RecentMetrics:
    values = {
        **sample.values,
        "database_bytes": endpoint.branch.logical_size or 0,
        "wakes": endpoint.starts,
    }
    gauges = [values[name] for name in GAUGES]
    counts = [values[name] for name in COUNTERS]
    before = State.unpacked(bytes(last.state)) if last is not None else None
    if last is None or before is None:
        # This is the endpoint's first sample, so nothing can be subtracted.
        added = [int(name == "wakes" and _has_just_woken(endpoint, now)) for name in COUNTERS]
        totals = added
    else:
        added = _added(last, before, sample, counts)
        totals = [total + more for total, more in zip(before.totals, added, strict=True)]
    start = begin_of(now, RECENT_SPAN)
    earlier = bytes(last.samples) if last is not None and last.start == start else b""
    return RecentMetrics(
        endpoint=endpoint,
        start=start,
        sampled_at=now,
        data=sample.data,
        process=sample.process,
        state=State(gauges, counts, totals).packed(),
        samples=appended(earlier, 60 * now.hour + now.minute, [*gauges, *added]),
    )


def begin_of(at: datetime, span: timedelta) -> datetime:
    """Return the start of the row that contains this time (UTC)."""
    midnight = at.replace(hour=0, minute=0, second=0, microsecond=0)
    return at - (at - midnight) % span


def _has_just_woken(endpoint: Endpoint, now: datetime) -> bool:
    return endpoint.started_at is not None and now - endpoint.started_at < timedelta(minutes=1)


def _added(last: RecentMetrics, before: State, sample: Sample, counts: Sequence[int]) -> list[int]:
    """Return what each counter has grown by since the last sample, in the order of COUNTERS. For
    other data that is not known, and 0 is returned."""
    added = []
    for name, count, last_count in zip(COUNTERS, counts, before.counts, strict=True):
        base = last_count
        if name == "cpu_milliseconds" and sample.process != last.process:
            base = 0
        elif name not in ("cpu_milliseconds", "wakes") and sample.data != last.data:
            base = count
        # A crash resets the statistics, but not the position in the log.
        elif count < last_count and name != "log_bytes":
            base = 0
        added.append(max(0, count - base))
    return added


def pack_metrics(host: Host) -> None:
    """Add the samples of hours that are over to the rows of the past."""
    over = begin_of(clock.now() - PACKED_AFTER, timedelta(hours=1))
    with transaction.atomic():
        recent = list(
            RecentMetrics.objects.select_for_update(of=("self",))
            .filter(endpoint__project__host=host, is_packed=False, start__lt=over)
            .order_by("start", "id")[:AT_ONCE]
        )
        steps: dict[tuple[str, datetime], dict[int, Numbers]] = {}
        for start in {begin_of(row.start, PAST_SPAN) for row in recent}:
            there = PastMetrics.objects.filter(
                start=start, endpoint__in=[row.endpoint_id for row in recent]
            )
            steps |= {(row.endpoint_id, start): steps_of(bytes(row.block)) for row in there}
        for row in recent:
            start = begin_of(row.start, PAST_SPAN)
            new = in_steps(minutes_of(bytes(row.samples)), first=60 * start.hour)
            steps.setdefault((row.endpoint_id, start), {}).update(new)
        PastMetrics.objects.bulk_create(
            [
                PastMetrics(endpoint_id=endpoint_id, start=start, block=block_of(found))
                for (endpoint_id, start), found in steps.items()
            ],
            update_conflicts=True,
            unique_fields=["endpoint", "start"],
            update_fields=["block"],
        )
        RecentMetrics.objects.filter(id__in=[row.id for row in recent]).update(is_packed=True)


def forget_metrics(host: Host) -> None:
    """Delete metrics that are too old, and those of deleted endpoints, on all hosts. The
    endpoints of a deleted project come back if it is recovered."""
    now = clock.now()
    with connection.cursor() as cursor:
        when = {"old": now - KEPT, "spent": now - KEPT_RECENT}
        cursor.execute(SPENT, when)
        cursor.execute(SPENT_SAMPLES, when)
    PastMetrics.objects.filter(start__lt=now - KEPT - PAST_SPAN).delete()
    gone = {"endpoint__deleted_at__isnull": False, "endpoint__project__recoverable_until": None}
    for model in (RecentMetrics, PastMetrics):
        model.objects.filter(**gone).delete()

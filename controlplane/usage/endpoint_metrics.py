"""The metrics of endpoints: a series over a range of time, and the last sample
(`models.usage`)."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import connection
from django.db.models import Min

from controlplane import clock
from controlplane.events.types import EventType
from controlplane.models import Account, Endpoint, EndpointState, Event, LastSample
from controlplane.models.usage import FIELDS, GAUGES, MERGED
from controlplane.services.endpoints import ENDPOINTS, own_endpoint
from controlplane.services.errors import Invalid, Unprocessable
from controlplane.services.projects import find_project
from controlplane.usage.sampling import MERGED_SECONDS, MINUTE_RETENTION, RETENTION

# The most points of an answer: if the request names a step, and if it does not.
MAX_POINTS, DEFAULT_POINTS = 1_500, 400
# The steps among which the default is chosen, in seconds. With the last one, the longest range has
# at most DEFAULT_POINTS.
STEPS = (60, 300, 900, 3_600, 14_400)
# How much older than RETENTION `from` may be: a caller who wants everything computes `from` some
# time before the request is checked.
RETENTION_GRACE = timedelta(hours=1)
HOUR = timedelta(hours=1)
SERIES = f"""
SELECT date_bin(make_interval(secs => %(step)s), at, 'epoch') AS step, {MERGED}
FROM controlplane_endpointsample
WHERE endpoint_id = %(endpoint)s AND at >= %(since)s AND at < %(until)s GROUP BY step
"""  # noqa: S608 # ours


@dataclass(frozen=True)
class Current:
    """The last sample of an endpoint."""

    endpoint: Endpoint
    # None if there is no sample.
    sampled_at: datetime | None
    # Gauges, which are 0 while it is not active, and the counters' totals, by their names.
    values: Mapping[str, int]

    @property
    def is_active(self) -> bool:
        return self.endpoint.current_state == EndpointState.ACTIVE


def get_series(
    account: Account,
    project_id: str,
    endpoint_id: str,
    *,
    since: datetime | None,
    until: datetime | None,
    step: int | None,
) -> dict[str, Any]:
    """The endpoint's metrics, as `usage.metrics_fields.EndpointMetrics` has them, from `since` (by
    default an hour before the end) to `until` (by default now), in steps of `step` seconds. Samples
    that are only kept in steps of five minutes are not divided: the step is then at least five
    minutes. Raises NotFound, Invalid, Unprocessable."""
    endpoint = own_endpoint(account, project_id, endpoint_id)
    now, begin = clock.now(), "from" if since else "to"
    oldest = now - RETENTION - RETENTION_GRACE
    until = min(until or now, now)
    # There is no hour before the first of the calendar.
    since = since or max(until, oldest) - HOUR
    if since > now:
        raise Unprocessable("from is in the future", fields=["from"])
    if oldest <= since and until < since:
        raise Invalid("invalid request: to is before from", fields=["to"])
    if since < oldest:
        raise Unprocessable(
            f"{begin} is more than {RETENTION.days} days ago: older metrics are not kept",
            fields=[begin],
        )
    seconds = _step(step, since, until, is_coarse=since < now - MINUTE_RETENTION + HOUR)
    since, until = _floor(since, seconds), _floor(until, seconds) + timedelta(seconds=seconds)
    with connection.cursor() as cursor:
        cursor.execute(
            SERIES, {"endpoint": endpoint_id, "since": since, "until": until, "step": seconds}
        )
        points = {at: dict(zip(FIELDS, row, strict=True)) for at, *row in cursor.fetchall()}
    # Samples count a start in the next one that is taken, which is later if a run was too short for
    # one. Events say when it was, as far back as they are kept.
    events = Event.objects.filter(endpoint_id=endpoint.id)
    known = events.aggregate(since=Min("at"))["since"] or until
    for at in points:
        if at >= _floor(known, seconds):
            points[at]["wakes"] = 0
    starts = events.filter(type=EventType.ENDPOINT_ACTIVE, at__gte=since, at__lt=until)
    for at in starts.values_list("at", flat=True):
        points.setdefault(_floor(at, seconds), dict.fromkeys(FIELDS, 0))["wakes"] += 1
    return {
        "endpoint_id": endpoint.id,
        "from": since,
        "to": until,
        "step": seconds,
        # Only steps in which there are samples or starts.
        "points": [{"at": at, **in_seconds(points[at])} for at in sorted(points)],
    }


def in_seconds(values: Mapping[str, int]) -> dict[str, float]:
    """The values, which have the names of FIELDS, with the time of the processors in seconds."""
    milliseconds = values.get("cpu_milliseconds")
    seconds = {} if milliseconds is None else {"cpu_seconds": milliseconds / 1000}
    return {**values, **seconds}


def _step(wanted: int | None, since: datetime, until: datetime, *, is_coarse: bool) -> int:
    """The length of a step in seconds. Raises Unprocessable if there would be too many."""
    length = (until - since).total_seconds()
    if wanted is None:
        wanted = next(one for one in STEPS if length / one <= DEFAULT_POINTS)
    # A multiple of MERGED_SECONDS, so that all steps have the same number of samples.
    step = -(-wanted // MERGED_SECONDS) * MERGED_SECONDS if is_coarse else wanted
    if length / step > MAX_POINTS:
        raise Unprocessable(
            f"there would be {int(length / step)} points, and at most {MAX_POINTS:,} are "
            "returned: send a larger step or a shorter time",
            fields=["step"],
        )
    return step


def _floor(at: datetime, seconds: int) -> datetime:
    whole = int(at.timestamp())
    return datetime.fromtimestamp(whole - whole % seconds, UTC)


def current_metrics(account: Account, project_id: str) -> list[Current]:
    """The last samples of all endpoints of the project, oldest endpoint first. Raises NotFound."""
    project = find_project(account, project_id)
    endpoints = ENDPOINTS.rows({"project": project}, project=project.id)
    last = LastSample.objects.in_bulk([endpoint.id for endpoint in endpoints])
    return [_current(endpoint, last.get(endpoint.id)) for endpoint in endpoints]


def _current(endpoint: Endpoint, last: LastSample | None) -> Current:
    if last is None:
        return Current(endpoint, None, {"wakes": endpoint.starts})
    is_active = endpoint.current_state == EndpointState.ACTIVE
    gauges = {
        name: last.values[name] if is_active or name == "database_bytes" else 0 for name in GAUGES
    }
    return Current(endpoint, last.sampled_at, {**gauges, **last.totals, "wakes": endpoint.starts})

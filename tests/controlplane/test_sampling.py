"""What the samples of endpoints add up to, and how long they are kept."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client as DjangoClient

from controlplane import clock
from controlplane.compute.samples import Sample
from controlplane.events.changes import endpoint_entered
from controlplane.events.recording import record
from controlplane.models import (
    Account,
    Endpoint,
    EndpointState,
    Event,
    Host,
    PastMetrics,
    Project,
    RecentMetrics,
)
from controlplane.models.packed_samples import (
    COUNTERS,
    FIELDS,
    GAUGES,
    State,
    appended,
    block_of,
    in_steps,
    minutes_of,
    steps_of,
)
from controlplane.operations import sampling
from controlplane.operations.retention import forget_projects
from controlplane.operations.sampling import forget_metrics, note, pack_metrics, to_sample
from tests.controlplane.rows import make_project

NOW = datetime(2026, 11, 23, 12, 30, tzinfo=UTC)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
NOTHING = dict.fromkeys((*GAUGES, *COUNTERS), 0)


@pytest.fixture(autouse=True)
def no_samples() -> Iterator[None]:
    """The worker's memory is empty, as after its start."""
    sampling._sampled.clear()
    sampling._sampled_of_account.clear()
    yield
    sampling._sampled.clear()
    sampling._sampled_of_account.clear()


@pytest.fixture
def project(account: Account, host: Host) -> Project:
    return make_project(account, host)


@pytest.fixture
def endpoint(project: Project) -> Endpoint:
    return project.endpoints.select_related("branch", "project").get()


def sample(data: str = "1", process: str = "1:1", **values: int) -> Sample:
    return Sample(data, process, {**NOTHING, **values})


def last() -> RecentMetrics:
    return RecentMetrics.objects.order_by("-start")[0]


def total(name: str) -> int:
    return int(State.unpacked(bytes(last().state)).totals[COUNTERS.index(name)])


def test_counts_are_what_was_added_since_the_sample_before(endpoint: Endpoint) -> None:
    counted = ("rows_read", "log_bytes", "cpu_milliseconds")
    for at, taken, added in (
        # What was counted before the first sample is not known.
        (0, sample(rows_read=500, log_bytes=9000, cpu_milliseconds=70), (0, 0, 0)),
        (1, sample(rows_read=510, log_bytes=9100, cpu_milliseconds=75), (10, 100, 5)),
        # A crash: another process, and the statistics begin anew.
        (2, sample("1", "2:1", rows_read=3, log_bytes=9200, cpu_milliseconds=80), (3, 100, 80)),
        # Another branch, or other data of the branch.
        (3, sample("2", "3:1", rows_read=999, log_bytes=50, cpu_milliseconds=1), (0, 0, 1)),
        (4, sample("2", "3:1", rows_read=1000, log_bytes=60, cpu_milliseconds=2), (1, 10, 1)),
    ):
        before = tuple(map(total, counted)) if at else (0, 0, 0)
        note([(endpoint, taken)], NOW + at * MINUTE)
        assert tuple(map(total, counted)) == tuple(map(sum, zip(before, added, strict=True))), at
    assert len(minutes_of(bytes(last().samples))) == 5


def test_several_samples_of_a_minute_are_one(endpoint: Endpoint) -> None:
    note([(endpoint, sample(connections_idle=3, deadlocks=5))], NOW)
    note([(endpoint, sample(connections_idle=1, deadlocks=6))], NOW + 10 * timedelta(seconds=1))
    note([(endpoint, sample(connections_idle=2, deadlocks=8))], NOW + 20 * timedelta(seconds=1))
    ((minute, numbers),) = minutes_of(bytes(last().samples)).items()
    found = dict(zip(FIELDS, numbers, strict=True))
    assert (minute, found["samples"], found["connections_idle"], found["deadlocks"]) == (
        750,
        1,
        3,
        3,
    )


def test_a_block_has_all_but_the_last_digits() -> None:
    samples = b""
    for minute in (360, 361, 364, 365, 719):
        numbers = [(minute - 360) * 100_003 + place for place in range(len(FIELDS) - 1)]
        samples = appended(samples, minute, numbers)
    steps = steps_of(block_of(in_steps(minutes_of(samples), first=360)))
    assert list(steps) == [0, 1, 71]
    # Packing it again changes nothing.
    assert steps_of(block_of(steps)) == steps
    first = dict(zip(FIELDS, steps[0], strict=True))
    assert first["samples"] == 3
    for name in GAUGES:
        assert first[name] == pytest.approx(400_012, rel=0.005)
    for name in COUNTERS:
        assert first[name] == pytest.approx(500_015, rel=0.005)


def test_starts_and_minutes_decide_when_a_sample_is_due(endpoint: Endpoint) -> None:
    due = {endpoint.id: endpoint.branch_id}
    assert to_sample([endpoint], NOW) == due
    assert to_sample([endpoint], NOW + MINUTE / 2) == {}
    endpoint.starts += 1
    assert to_sample([endpoint], NOW + MINUTE / 2) == due
    assert to_sample([endpoint], NOW + MINUTE) == due


def test_only_so_many_endpoints_of_an_account_are_sampled_in_a_day(
    account: Account, host: Host, settings: Any
) -> None:
    settings.SAMPLED_ENDPOINTS = 2
    other = make_project(Account.objects.create(name="bob"), host)
    crowd = make_project(account, host, size=3)
    endpoints = Endpoint.objects.select_related("project").order_by("created_at", "id")
    chosen = to_sample(endpoints.filter(project__in=[crowd, other]), NOW)
    assert len(chosen) == 3
    # The same ones as long as the day lasts.
    assert to_sample(endpoints, NOW + MINUTE).keys() == chosen.keys()
    left = endpoints.exclude(id__in=chosen)
    assert to_sample(left, NOW + MINUTE) == {}
    assert len(to_sample(left, NOW + DAY)) == 1


def past_steps() -> int:
    return sum(len(steps_of(bytes(row.block))) for row in PastMetrics.objects.all())


def filled(endpoint: Endpoint, *ages: timedelta) -> None:
    """Add samples of so long ago, the oldest first."""
    now = clock.now()
    for number, age in enumerate(ages):
        note([(endpoint, sample(rows_written=number * 1000))], now - age)


def test_metrics_of_14_days_are_read(
    api: DjangoClient, project: Project, host: Host, endpoint: Endpoint
) -> None:
    filled(endpoint, 15 * DAY, 13 * DAY, 2 * DAY, 5 * HOUR, 3 * MINUTE, 2 * MINUTE)
    pack_metrics(host)
    pack_metrics(host)
    forget_metrics(host)
    since = (clock.now() - 14 * DAY).strftime("%Y-%m-%dT%H:%M:%SZ")
    path = f"/api/v2/projects/{project.id}/endpoints/{endpoint.id}/metrics?from={since}&step=3600"
    points = api.get(path).json()["metrics"]["points"]
    # Rounded to 8 significant bits, in the last hours exact.
    assert [point["rows_written"] for point in points[:3]] == [1000] * 3
    assert sum(point["rows_written"] for point in points) == 5000
    assert sum(point["samples"] for point in points) == 5


@pytest.mark.parametrize("step", [60, 300])
def test_a_start_counts_when_it_was(
    api: DjangoClient, project: Project, endpoint: Endpoint, step: int
) -> None:
    """Even if the run was too short for a sample, so that a later sample counts the start."""
    now = clock.now()
    note([(endpoint, sample())], now - 50 * MINUTE)
    ages = [*(40 * MINUTE - timedelta(seconds=n) for n in range(5)), 20 * MINUTE]
    for number, age in enumerate(ages, start=1):
        record(endpoint_entered(project, endpoint, EndpointState.ACTIVE))
        Event.objects.filter(id=Event.objects.latest("id").id).update(at=now - age)
        endpoint.starts = number
    note([(endpoint, sample())], now - 20 * MINUTE)
    path = f"/api/v2/projects/{project.id}/endpoints/{endpoint.id}/metrics?step={step}"

    def starts() -> list[tuple[int, int]]:
        points = api.get(path).json()["metrics"]["points"]
        return [(point["wakes"], point["samples"]) for point in points if point["wakes"]]

    # Some of the five may be in the step before.
    assert starts() in ([(5, 0), (1, 1)], *([(n, 0), (5 - n, 0), (1, 1)] for n in range(1, 5)))
    # Without the events, the sample's figure is all that is known.
    Event.objects.all().delete()
    assert starts() == [(6, 1)]


def test_the_last_row_is_kept_for_its_totals(host: Host, endpoint: Endpoint) -> None:
    filled(endpoint, 9 * HOUR, 8 * HOUR, 7 * HOUR)
    pack_metrics(host)
    forget_metrics(host)
    (row,) = RecentMetrics.objects.all()
    assert bytes(row.samples) == b""
    assert total("rows_written") == 2000
    filled(endpoint, timedelta())
    # The row of the present hour: the counts go on from the kept row's.
    assert RecentMetrics.objects.count() == 2
    assert past_steps() == 3


def test_old_metrics_and_those_of_deleted_endpoints_are_deleted(
    host: Host, endpoint: Endpoint
) -> None:
    filled(endpoint, 15 * DAY, 14 * DAY - HOUR, MINUTE)
    pack_metrics(host)
    forget_metrics(host)
    assert RecentMetrics.objects.count() == 1
    assert past_steps() == 1
    deleted_at = clock.now()
    Endpoint.objects.update(deleted_at=deleted_at)
    # As long as the project can be recovered, its endpoint comes back with its metrics.
    Project.objects.update(deleted_at=deleted_at, recoverable_until=deleted_at + DAY)
    forget_metrics(host)
    assert PastMetrics.objects.count() == 1
    Project.objects.update(recoverable_until=None)
    forget_metrics(host)
    assert (RecentMetrics.objects.count(), PastMetrics.objects.count()) == (0, 0)


def test_a_forgotten_project_takes_its_metrics_along(
    project: Project, host: Host, endpoint: Endpoint
) -> None:
    filled(endpoint, DAY, MINUTE)
    pack_metrics(host)
    forget_projects([project.id])
    assert (RecentMetrics.objects.count(), PastMetrics.objects.count()) == (0, 0)

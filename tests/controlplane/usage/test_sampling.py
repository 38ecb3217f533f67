"""What the samples of endpoints add up to, how long they are kept, and queries that fail."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from django.db import connection
from django.test import Client as DjangoClient

from controlplane import clock
from controlplane.compute.host.patience import remaining
from controlplane.events.changes import endpoint_entered
from controlplane.events.recording import record
from controlplane.models import (
    Account,
    Endpoint,
    EndpointSample,
    EndpointState,
    Event,
    Host,
    LastSample,
    Project,
)
from controlplane.models.usage import COUNTERS, GAUGES
from controlplane.operations.locks import noting_failures
from controlplane.operations.rounds.looks import MAX_CONCURRENT_LOOKS, look_at_each
from controlplane.usage import sampling
from controlplane.usage.sampling import Sample, forget_samples, merge_samples, note, to_sample
from tests.controlplane.rows import make_project
from tests.support.waiting import wait_for

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


def total(name: str) -> int:
    return int(LastSample.objects.get().totals[name])


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
    assert EndpointSample.objects.count() == 5


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


def filled(endpoint: Endpoint, *ages: timedelta) -> None:
    """Add samples of so long ago, the oldest first."""
    now = clock.now()
    for number, age in enumerate(ages):
        note([(endpoint, sample(rows_written=number * 1000))], now - age)


def test_metrics_of_14_days_are_read(
    api: DjangoClient, project: Project, host: Host, endpoint: Endpoint
) -> None:
    filled(endpoint, 15 * DAY, 13 * DAY, 2 * DAY, 5 * HOUR, 3 * MINUTE, 2 * MINUTE)
    merge_samples(host)
    merge_samples(host)
    forget_samples(host)
    since = (clock.now() - 14 * DAY).strftime("%Y-%m-%dT%H:%M:%SZ")
    path = f"/api/v2/projects/{project.id}/endpoints/{endpoint.id}/metrics?from={since}&step=3600"
    points = api.get(path).json()["metrics"]["points"]
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


def test_minutes_that_are_over_for_long_become_steps(host: Host, endpoint: Endpoint) -> None:
    begin = (clock.now() - 4 * HOUR).replace(minute=10, second=0, microsecond=0)
    for minute, idle, written in ((0, 3, 100), (1, 9, 150), (4, 2, 170), (5, 1, 1000)):
        taken = sample(connections_idle=idle, rows_written=written)
        note([(endpoint, taken)], begin + minute * MINUTE)
    filled(endpoint, MINUTE)
    merge_samples(host)
    steps = EndpointSample.objects.filter(seconds=300).order_by("at")
    assert list(steps.values_list("at", "samples", "connections_idle", "rows_written")) == [
        (begin, 3, 9, 70),
        (begin + 5 * MINUTE, 1, 1, 830),
    ]
    assert EndpointSample.objects.filter(seconds=60).count() == 1
    # A row of a minute that comes late, as after a change of the clock.
    note([(endpoint, sample(connections_idle=20, rows_written=2000))], begin + MINUTE)
    merge_samples(host)
    first = steps[0]
    assert (first.samples, first.connections_idle) == (4, 20)


def test_the_counts_go_on_after_all_rows_were_deleted(host: Host, endpoint: Endpoint) -> None:
    filled(endpoint, 17 * DAY, 16 * DAY, 15 * DAY)
    merge_samples(host)
    forget_samples(host)
    assert not EndpointSample.objects.exists()
    assert total("rows_written") == 2000
    note([(endpoint, sample(rows_written=2500))], clock.now())
    assert EndpointSample.objects.get().rows_written == 500


def test_old_metrics_and_those_of_deleted_endpoints_are_deleted(
    host: Host, endpoint: Endpoint
) -> None:
    filled(endpoint, 15 * DAY, 14 * DAY - HOUR, MINUTE)
    merge_samples(host)
    forget_samples(host)
    assert EndpointSample.objects.count() == 2
    deleted_at = clock.now()
    Endpoint.objects.update(deleted_at=deleted_at)
    # As long as the project can be recovered, its endpoint comes back with its metrics.
    Project.objects.update(deleted_at=deleted_at, recoverable_until=deleted_at + DAY)
    forget_samples(host)
    assert EndpointSample.objects.count() == 2
    Project.objects.update(recoverable_until=None)
    forget_samples(host)
    assert (EndpointSample.objects.count(), LastSample.objects.count()) == (0, 0)


ANYTHING = (
    psycopg.OperationalError("gone"),
    psycopg.DataError("can't parse timestamp with DateStyle 'German'"),
    UnicodeDecodeError("utf-8", b"\xe9", 0, 1, "invalid"),
    NotImplementedError(),
    KeyError("nobody thought of it"),
    RecursionError(),
    MemoryError(),
)


@pytest.mark.parametrize("error", ANYTHING, ids=lambda error: type(error).__name__)
def test_a_failed_query_is_unknown_and_the_others_have_answers(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    endpoints = [Endpoint(id=f"ep-{number}") for number in range(3 * MAX_CONCURRENT_LOOKS)]
    failing = {endpoint.id for endpoint in endpoints[::2]}

    def look(endpoint_id: str) -> Any:
        if endpoint_id in failing:
            raise error
        return endpoint_id.upper()

    with caplog.at_level("INFO", logger="controlplane.operations.rounds.looks"):
        found = {endpoint.id: seen for endpoint, seen in look_at_each(endpoints, look, at="size")}
    assert found == {e.id: e.id.upper() for e in endpoints if e.id not in failing}
    told = {record.__dict__["endpoint"]: record.__dict__["unknown"] for record in caplog.records}
    assert told == dict.fromkeys(failing, "size")


def test_a_look_whose_answers_come_slowly_is_given_up() -> None:
    def look(endpoint_id: str) -> str:
        for _ in range(100 if endpoint_id == "ep-slow" else 1):
            time.sleep(min(0.05, remaining()))
        return endpoint_id

    endpoints, began = [Endpoint(id="ep-slow"), Endpoint(id="ep-quick")], time.monotonic()
    assert [seen for _, seen in look_at_each(endpoints, look, at="size", timeout=0.3)] == [
        "ep-quick"
    ]
    assert time.monotonic() - began < 3


def test_a_look_that_lasts_is_not_waited_for_and_not_begun_twice() -> None:
    begun, end = Counter[str](), threading.Event()

    def look(endpoint_id: str) -> str:
        begun[endpoint_id] += 1
        if endpoint_id == "ep-0":
            end.wait(10)
        return endpoint_id

    def seen() -> set[str]:
        endpoints = [Endpoint(id=f"ep-{number}") for number in range(20)]
        return {seen for _, seen in look_at_each(endpoints, look, at="test", waiting=0.2)}

    others = {f"ep-{number}" for number in range(1, 20)}
    assert [seen(), seen()] == [others, others]
    assert begun["ep-0"] == 1
    end.set()
    wait_for(lambda: seen() == {"ep-0", *others}, "the result of the look that lasted")


@pytest.mark.django_db
def test_looks_give_their_connections_back() -> None:
    """Each look runs in a thread of its own, and may read rows."""
    used: list[Any] = []

    def look(_: str) -> None:
        Endpoint.objects.exists()
        used.append(connection.connection)

    assert len(list(look_at_each([Endpoint(id="ep-1")], look, at="size"))) == 1
    # Django closes a connection, or gives it back to its pool, by letting go of it.
    assert [one.closed for one in used] == [True]


def test_a_sample_that_cannot_be_stored_costs_no_other_its_own(
    account: Account, host: Host
) -> None:
    for _ in range(3):
        make_project(account, host)
    endpoints = list(Endpoint.objects.select_related("branch", "project"))
    counts = (2**40, 1, 2)
    samples = [sample(connections_active=count) for count in counts]
    with noting_failures() as failures:
        note(list(zip(endpoints, samples, strict=True)), NOW)
    assert len(failures) == 1
    assert set(EndpointSample.objects.values_list("endpoint_id", flat=True)) == {
        endpoint.id for endpoint in endpoints[1:]
    }


def test_counters_have_room_for_whatever_a_compute_says(endpoint: Endpoint, host: Host) -> None:
    begin = clock.now().replace(minute=0, second=0, microsecond=0) - 5 * HOUR
    for number in range(5):
        for count in (0, 2**62):
            note([(endpoint, sample(rows_read=count))], begin + number * MINUTE)
    EndpointSample.objects.update(rows_read=2**63 - 1)
    merge_samples(host)
    merge_samples(host)
    assert EndpointSample.objects.get().rows_read == 2**62

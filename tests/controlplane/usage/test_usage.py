"""The usage of branches is counted by whatever changes it, once, and can be read at any time."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client as DjangoClient
from django.utils import timezone

from controlplane.database.version import conninfo
from controlplane.models import Account, Branch, Endpoint, Host, Meter, Plan, Project, Span, Usage
from controlplane.models.consumed import next_period, period_of, previous_period
from controlplane.proxy.directory.control_database import ControlDatabase
from controlplane.proxy.directory.interface import Traffic
from controlplane.proxy.directory.usage_reports import TrafficReports
from controlplane.proxy.wire.errors import ControlPlaneUnavailable
from controlplane.services.branches import get_branch
from controlplane.services.projects import get_project
from controlplane.usage.rounds import forget_usage
from tests.controlplane.rows import make_host, make_project

HOUR = timedelta(hours=1)


@pytest.fixture
def project(account: Account, host: Host) -> Project:
    return make_project(account, host)


@pytest.fixture
def endpoint(project: Project) -> Endpoint:
    return project.endpoints.select_related("branch").get()


def ran(endpoint: Endpoint, since: datetime, until: datetime) -> None:
    endpoint.enter("active", now=since)  # type: ignore[arg-type]
    endpoint.enter("idle", now=until)  # type: ignore[arg-type]


def rows(span: Span, what: str = "active_seconds") -> dict[datetime, float]:
    return dict(
        Usage.objects.filter(span=span, **{f"{what}__gt": 0})
        .order_by("start")
        .values_list("start", what)
    )


def call(function: str, *values: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {function}({', '.join(['%s'] * len(values))})", values)


def test_time_is_counted_in_the_hours_in_which_it_passed(endpoint: Endpoint) -> None:
    noon = timezone.now().replace(hour=12, minute=0, second=0, microsecond=0) - timedelta(days=1)
    Endpoint.objects.filter(id=endpoint.id).update(autoscaling_limit_max_cu=2)
    ran(endpoint, noon + HOUR / 2, noon + 2.5 * HOUR)
    assert rows(Span.HOUR) == {noon: 1800, noon + HOUR: 3600, noon + 2 * HOUR: 1800}
    assert rows(Span.HOUR, "compute_seconds")[noon + HOUR] == 7200
    assert rows(Span.DAY) == {noon.replace(hour=0): 7200}
    assert rows(Span.MONTH) == {period_of(noon): 7200}


def test_a_running_compute_is_counted_for_readers_without_a_write(
    account: Account, project: Project, endpoint: Endpoint
) -> None:
    now = timezone.now()
    since = max(period_of(now), now - timedelta(days=3))
    endpoint.enter("active", now=since)  # type: ignore[arg-type]
    Endpoint.objects.filter(id=endpoint.id).update(last_active=since)
    expected = pytest.approx((now - since).total_seconds(), abs=5)
    assert get_project(account, project.id).consumed.active_seconds == expected
    branch = get_branch(account, project.id, endpoint.branch_id)
    assert branch.consumed.compute_seconds == expected
    assert get_project(account, project.id).consumed.last_active == since
    assert not Usage.objects.exists()


def test_only_the_period_counts(account: Account, project: Project, endpoint: Endpoint) -> None:
    now = timezone.now()
    start = period_of(now)
    ran(endpoint, start - 2 * HOUR, start - HOUR)
    assert get_project(account, project.id).consumed.active_seconds == 0
    endpoint.enter("active", now=start - HOUR)  # type: ignore[arg-type]
    seconds = get_project(account, project.id).consumed.active_seconds
    assert seconds == pytest.approx((now - start).total_seconds(), abs=5)


def test_a_new_size_counts_from_then_on(endpoint: Endpoint) -> None:
    endpoint.enter("active", now=timezone.now() - HOUR)  # type: ignore[arg-type]
    Endpoint.objects.filter(id=endpoint.id).update(autoscaling_limit_max_cu=4)
    assert sum(rows(Span.MONTH, "compute_seconds").values()) == pytest.approx(3600, abs=5)
    assert Meter.objects.get(branch=endpoint.branch_id).compute_units == 4


def test_a_reassigned_endpoint_runs_on_its_new_branch(endpoint: Endpoint) -> None:
    endpoint.enter("active", now=timezone.now() - HOUR)  # type: ignore[arg-type]
    other = Branch.objects.create(project=endpoint.project, name="other", current_state="ready")
    Endpoint.objects.filter(id=endpoint.id).update(branch=other)
    assert Meter.objects.get(branch=endpoint.branch_id).compute_units == 0
    assert Meter.objects.get(branch=other).compute_units == 1
    assert {row.branch_id for row in Usage.objects.all()} == {endpoint.branch_id}


@pytest.mark.parametrize("doomed", ["endpoint", "branch", "project"])
def test_deleted_resources_stop_counting_and_keep_their_usage(
    project: Project, endpoint: Endpoint, doomed: str
) -> None:
    endpoint.enter("active", now=timezone.now() - HOUR)  # type: ignore[arg-type]
    row = {"endpoint": endpoint, "branch": endpoint.branch, "project": project}[doomed]
    type(row).objects.filter(id=row.id).update(deleted_at=timezone.now())  # type: ignore[attr-defined]
    assert Meter.objects.get().compute_units == 0
    assert sum(rows(Span.HOUR).values()) == pytest.approx(3600, abs=5)


def test_stored_bytes_count_while_they_are_stored(
    account: Account, project: Project, endpoint: Endpoint
) -> None:
    branch = endpoint.branch
    Branch.objects.filter(id=branch.id).update(logical_size=1_000_000)
    Meter.objects.update(stored_since=timezone.now() - HOUR)
    consumed = get_project(account, project.id).consumed
    if period_of(timezone.now()) <= timezone.now() - HOUR:
        assert consumed.root_byte_hours == pytest.approx(1_000_000, rel=0.01)
    assert consumed.stored_bytes == 1_000_000
    Branch.objects.filter(id=branch.id).update(logical_size=3_000_000)
    stored = sum(rows(Span.HOUR, "storage_byte_hours").values())
    assert stored == pytest.approx(1_000_000, rel=0.01)
    project.deleted_at = timezone.now()
    project.save()
    assert Meter.objects.get().stored_bytes == 0
    project.deleted_at = None
    project.save()
    assert Meter.objects.get().stored_bytes == 3_000_000


def test_history_counts_beside_the_data(
    account: Account, project: Project, endpoint: Endpoint
) -> None:
    branch = endpoint.branch
    Branch.objects.filter(id=branch.id).update(logical_size=1_000_000, history_bytes=5_000_000)
    Meter.objects.update(stored_since=timezone.now() - HOUR)
    consumed = get_project(account, project.id).consumed
    assert (consumed.stored_bytes, consumed.history_bytes) == (1_000_000, 5_000_000)
    if period_of(timezone.now()) <= timezone.now() - HOUR:
        assert consumed.history_byte_hours == pytest.approx(5_000_000, rel=0.01)
        assert consumed.byte_hours == pytest.approx(6_000_000, rel=0.01)
    Branch.objects.filter(id=branch.id).update(history_bytes=0)
    for what, expected in (("history_byte_hours", 5_000_000), ("storage_byte_hours", 1_000_000)):
        assert sum(rows(Span.HOUR, what).values()) == pytest.approx(expected, rel=0.01)
    Branch.objects.filter(id=branch.id).update(history_bytes=7_000_000)
    project.deleted_at = timezone.now()
    project.save()
    assert Meter.objects.get().history_bytes == 0


def test_of_old_usage_only_days_and_months_are_kept(endpoint: Endpoint) -> None:
    now = timezone.now()
    ran(endpoint, now - timedelta(days=100), now)
    assert min(rows(Span.HOUR)) == pytest.approx(now - timedelta(days=8), abs=2 * HOUR)
    assert 62 <= len(rows(Span.DAY)) <= 63
    assert sum(rows(Span.MONTH).values()) == pytest.approx(100 * 86400, abs=5)


def test_old_rows_are_removed(endpoint: Endpoint, host: Host) -> None:
    now = timezone.now()
    ran(endpoint, now - timedelta(days=1), now)
    kept = Usage.objects.count()
    for span, age in ((Span.HOUR, 10), (Span.DAY, 70), (Span.MONTH, 500)):
        for row in Usage.objects.filter(span=span)[:1]:
            row.pk, row.start = None, row.start - timedelta(days=age)
            row.save()
    forget_usage(host)
    assert Usage.objects.count() == kept


class TestWritten:
    def test_written_bytes_are_counted_once(self, endpoint: Endpoint) -> None:
        branch = endpoint.branch_id
        for position in (100, 150, 150, 120, 160):
            call("perch_note_written", branch, "7", position)
        assert sum(rows(Span.HOUR, "written_bytes").values()) == 60

    def test_a_log_position_of_other_data_is_not_counted(self, endpoint: Endpoint) -> None:
        branch = endpoint.branch_id
        call("perch_note_written", branch, "7", 100)
        call("perch_note_written", branch, "8", 5_000_000)
        call("perch_note_written", branch, "8", 5_000_007)
        assert sum(rows(Span.MONTH, "written_bytes").values()) == 7


class TestTraffic:
    REPORTER = "6d6fb3c0-a5e1-4b6c-9a2d-4f0f7c528b60"

    def report(self, number: int, endpoint: str, branch: str, amount: int) -> None:
        call("perch_note_traffic", self.REPORTER, number, [endpoint], [branch], [amount])

    def test_a_repeated_report_counts_once(self, endpoint: Endpoint) -> None:
        for number in (1, 1, 2, 1):
            self.report(number, endpoint.id, "", 10)
        assert sum(rows(Span.DAY, "transferred_bytes").values()) == 20

    def test_traffic_counts_for_the_clients_branch(self, endpoint: Endpoint) -> None:
        other = Branch.objects.create(project=endpoint.project, name="other")
        self.report(1, endpoint.id, other.id, 10)
        assert Usage.objects.get(span=Span.HOUR).branch_id == other.id

    def test_traffic_of_an_unknown_endpoint_is_not_counted(self, endpoint: Endpoint) -> None:
        self.report(1, "ep-no-where-123456", "", 10)
        assert not Usage.objects.exists()


def test_periods() -> None:
    december = datetime(2026, 12, 31, 23, tzinfo=UTC)
    assert period_of(december) == datetime(2026, 12, 1, tzinfo=UTC)
    assert next_period(december) == datetime(2027, 1, 1, tzinfo=UTC)
    assert previous_period(datetime(2027, 1, 31, tzinfo=UTC)) == datetime(2026, 12, 1, tzinfo=UTC)


def test_the_api_returns_it(api: DjangoClient, project: Project, endpoint: Endpoint) -> None:
    endpoint.enter("active", now=timezone.now() - timedelta(seconds=30))  # type: ignore[arg-type]
    call("perch_note_written", endpoint.branch_id, "7", 0)
    call("perch_note_written", endpoint.branch_id, "7", 1000)
    Branch.objects.update(logical_size=5000)
    said = api.get(f"/api/v2/projects/{project.id}").json()["project"]
    # At the turn of a month, earlier usage belongs to the previous period.
    assert 0 <= said["active_time_seconds"] <= 60
    assert said["written_data_bytes"] == 1000
    assert said["synthetic_storage_size"] == 5000
    assert said["quota_reset_at"] == said["consumption_period_end"]
    assert said["compute_last_active_at"]
    (listed,) = api.get("/api/v2/projects").json()["projects"]
    assert listed["synthetic_storage_size"] == 5000
    path = f"/api/v2/projects/{project.id}/branches"
    (branch,) = api.get(path).json()["branches"]
    assert branch["written_data_bytes"] == 1000
    assert api.get(f"{path}/{branch['id']}").json()["branch"]["written_data_bytes"] == 1000


class LossyDatabase(ControlDatabase):
    """The service's own database. Loses its answers or the questions, as `loses` says."""

    loses = ""

    async def ask(self, question: Callable[[Any], Awaitable[Any]]) -> Any:
        if self.loses == "question":
            raise ControlPlaneUnavailable
        answer = await super().ask(question)
        if self.loses == "answer":
            raise ControlPlaneUnavailable
        return answer


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("loses", ["question", "answer"])
def test_a_report_whose_answer_is_lost_is_sent_again_unchanged(loses: str) -> None:
    account = Account.objects.create(name="carol", plan=Plan.UNLIMITED)
    endpoint = make_project(account, make_host("reports")).endpoints.get()
    database, traffic = LossyDatabase(conninfo()), Traffic()
    reports = TrafficReports(database, traffic)

    async def go() -> None:
        with traffic.counting(endpoint.id, endpoint.branch_id) as tally:
            tally.bytes += 10
            database.loses = loses
            for _ in range(2):
                with pytest.raises(ControlPlaneUnavailable):
                    await reports.report()
                tally.bytes += 1
            database.loses = ""
            await reports.report()
            tally.bytes += 5
        await reports.report()
        await database.close()

    asyncio.run(go())
    counted = Usage.objects.values_list("span", "transferred_bytes")
    assert dict(counted) == {"hour": 17, "day": 17, "month": 17}

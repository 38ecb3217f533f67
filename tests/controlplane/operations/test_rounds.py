"""Each round of the worker costs the same number of queries however many endpoints there are. Rows
have the host of their project, and say when a check is due."""

import asyncio
import uuid
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from controlplane.compute import compute
from controlplane.features import Round
from controlplane.history.retention import outdated
from controlplane.management.commands.worker import repeat
from controlplane.models import (
    Account,
    Action,
    Branch,
    Endpoint,
    EndpointState,
    HistoryChain,
    Host,
    Operation,
    Project,
)
from controlplane.operations.engine.scheduling import HostAway
from controlplane.operations.rounds import idleness, vitals
from controlplane.operations.rounds.availability import check_availability
from controlplane.operations.rounds.idleness import suspend_idle_endpoints
from controlplane.usage.rounds import hold_to_quotas
from tests.controlplane.rows import make_project

MANY = 300
HOUR = timedelta(hours=1)


def cost(call: Callable[[Host], None], host: Host) -> int:
    """Return how many queries the round makes."""
    with CaptureQueriesContext(connection) as captured:
        call(host)
    return len(captured)


def checked(project: Project, *, hours_ago: float, times: int = 1) -> None:
    """Record that all of the project's endpoints were checked `times` times, an hour apart, the
    last time so long ago, and that they were created before."""
    last = timezone.now() - hours_ago * HOUR
    endpoints = list(Endpoint.objects.filter(project=project).select_related("branch"))
    Endpoint.objects.filter(project=project).update(created_at=last - 100 * HOUR)
    Operation.objects.bulk_create(
        Operation(
            project=project,
            branch=endpoint.branch,
            endpoint=endpoint,
            action=Action.CHECK_AVAILABILITY,
            status="finished",
            chain=uuid.uuid4(),
            resources=[],
            created_at=last - number * HOUR + timedelta(microseconds=place),
            updated_at=last,
        )
        for place, endpoint in enumerate(endpoints)
        for number in range(times)
    )


def scheduled() -> int:
    return Operation.objects.filter(
        action=Action.CHECK_AVAILABILITY, status__in=("scheduling", "running")
    ).count()


class TestCheckAvailability:
    def test_many_endpoints_are_one_query(self, account: Account, host: Host) -> None:
        project = make_project(account, host, size=MANY)
        checked(project, hours_ago=3, times=2)
        queries = cost(check_availability, host)
        assert (queries, scheduled()) == (1, 0)

    @pytest.mark.parametrize(
        ("times", "hours_ago", "due"),
        [
            (1, 1.9, False),
            (1, 2.1, True),
            (2, 3.9, False),
            (2, 4.1, True),
            (4, 15.9, False),
            (4, 16.1, True),
            (9, 23.9, False),
            (9, 24.1, True),
        ],
    )
    def test_the_interval_doubles_up_to_a_day(
        self, account: Account, host: Host, times: int, hours_ago: float, due: bool
    ) -> None:
        checked(make_project(account, host), hours_ago=hours_ago, times=times)
        check_availability(host)
        assert scheduled() == due

    @pytest.mark.parametrize(("age", "due"), [(1.9, False), (2.1, True)])
    def test_the_first_check_comes_after_two_hours(
        self, account: Account, host: Host, age: float, due: bool
    ) -> None:
        project = make_project(account, host)
        Endpoint.objects.filter(project=project).update(created_at=timezone.now() - age * HOUR)
        check_availability(host)
        assert scheduled() == due

    def test_an_endpoint_that_was_used_is_checked_soon(self, account: Account, host: Host) -> None:
        project = make_project(account, host)
        checked(project, hours_ago=3, times=5)
        Endpoint.objects.filter(project=project).update(last_active=timezone.now() - HOUR)
        check_availability(host)
        assert scheduled() == 1

    def test_of_many_due_checks_a_few_run_at_a_time(self, account: Account, host: Host) -> None:
        """An account gets half of the host's share, the longest overdue first."""
        checked(make_project(account, host, size=6), hours_ago=30)
        for _ in range(3):
            check_availability(host)
        assert scheduled() == 2
        for name in ("bob", "charlie"):
            other = Account.objects.create(name=name)
            checked(make_project(other, host, size=6), hours_ago=40)
            check_availability(host)
            assert scheduled() == 4
        Operation.objects.filter(status="running").update(status="finished")
        check_availability(host)
        waiting = Operation.objects.filter(status="running").select_related("project__account")
        assert sorted(row.project.account.name for row in waiting) == [
            *("bob", "bob", "charlie", "charlie")
        ]


@pytest.fixture
def all_run(account: Account, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """A project whose endpoints are active, for the rounds about running computes."""
    project = make_project(account, host, size=MANY)
    Endpoint.objects.filter(project=project).update(current_state=EndpointState.ACTIVE)
    ids = set(Endpoint.objects.values_list("id", flat=True))
    monkeypatch.setattr(compute, "possibly_running", lambda: ids)


@pytest.mark.usefixtures("all_run")
class TestSuspendIdleEndpoints:
    def test_many_endpoints_are_one_query(
        self, host: Host, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now = timezone.now()
        ids = Endpoint.objects.values_list("id", flat=True)
        monkeypatch.setattr(idleness, "_looked_at", dict.fromkeys(ids, now))
        queries = cost(suspend_idle_endpoints, host)
        assert queries == 1
        assert Branch.objects.count() == MANY


@pytest.mark.usefixtures("all_run")
class TestHoldToQuotas:
    def test_endpoints_without_a_quota_are_one_query(self, host: Host) -> None:
        assert cost(hold_to_quotas, host) == 1

    def test_endpoints_with_a_quota_are_two_queries(self, host: Host) -> None:
        Project.objects.update(settings={"quota": {"active_time_seconds": 1 << 40}})
        assert cost(hold_to_quotas, host) == 2
        assert scheduled() == 0


def test_a_round_is_postponed_while_its_own_host_is_away(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker was stopped, and has not written its sign of life again."""
    monkeypatch.setattr(vitals, "rounds", vitals.Rounds())
    looks: list[Host] = []

    def look(host: Host) -> None:
        looks.append(host)
        raise HostAway("does not answer")

    async def twice() -> None:
        repeating = asyncio.create_task(repeat(Round(0.01, look), host))
        while len(looks) < 2:
            await asyncio.sleep(0.01)
        repeating.cancel()

    asyncio.run(asyncio.wait_for(twice(), 30))
    assert vitals.rounds.problems() == []


def other_host(host: Host) -> Host:
    return Host.objects.create(id="other", region=host.region, address="other.localhost")


def chain_of(branch: Branch) -> HistoryChain:
    at = timezone.now()
    chain = HistoryChain.objects.create(
        branch=branch, number=1, first_at=at, first_lsn=1, last_at=at, last_lsn=2, updated_at=at
    )
    chain.refresh_from_db()
    return chain


def hosts_of(project: Project) -> set[str | None]:
    found: set[str | None] = set()
    for rows in (
        Branch.objects.filter(project=project),
        Endpoint.objects.filter(project=project),
        HistoryChain.objects.filter(branch__project=project),
    ):
        hosts = set(rows.values_list("host_id", flat=True))
        assert hosts
        found |= hosts
    return found


class TestHosts:
    def test_new_rows_have_the_projects_host(self, account: Account, host: Host) -> None:
        project = make_project(account, host)
        assert chain_of(project.branches.get()).host_id == host.id
        assert hosts_of(project) == {host.id}

    def test_they_follow_the_project_and_no_others_do(self, account: Account, host: Host) -> None:
        moved, stays = make_project(account, host), make_project(account, host)
        for project in (moved, stays):
            chain_of(project.branches.get())
        Project.objects.filter(id=moved.id).update(host=other_host(host))
        assert (hosts_of(moved), hosts_of(stays)) == ({"other"}, {host.id})

    def test_a_writer_cannot_change_them(self, account: Account, host: Host) -> None:
        """As a release does that reads the whole row and writes it, or does not know the column."""
        project, other = make_project(account, host), other_host(host)
        branch, endpoint = project.branches.get(), project.endpoints.get()
        chain = chain_of(branch)
        for row in (branch, endpoint, chain):
            row.host = None
            row.save()
        assert hosts_of(project) == {host.id}
        for model in (Branch, Endpoint, HistoryChain):
            model._default_manager.update(host=other)
        assert hosts_of(project) == {host.id}


class TestCheckDueAt:
    def due_at(self) -> object:
        return Endpoint.objects.values_list("check_due_at", flat=True).get()

    def last_check(self) -> object:
        checks = Operation.objects.filter(action="check_availability")
        return checks.order_by("-created_at").values_list("created_at", flat=True)[0]

    def test_the_round_notes_it_and_then_leaves_the_endpoint_alone(
        self, account: Account, host: Host
    ) -> None:
        endpoint = make_project(account, host).endpoints.get()
        check_availability(host)
        assert self.due_at() == endpoint.created_at + 2 * HOUR
        # What a round would find out by looking: it does not look before the time.
        Endpoint.objects.update(created_at=timezone.now() - 3 * HOUR)
        check_availability(host)
        assert scheduled() == 0
        Endpoint.objects.update(check_due_at=timezone.now() - timedelta(seconds=1))
        check_availability(host)
        assert scheduled() == 1

    def test_a_use_makes_the_check_due_earlier(self, account: Account, host: Host) -> None:
        project = make_project(account, host)
        checked(project, hours_ago=3, times=5)
        check_availability(host)
        assert (self.due_at(), scheduled()) == (self.last_check() + 24 * HOUR, 0)  # type: ignore[operator]
        Endpoint.objects.update(last_active=timezone.now())
        assert self.due_at() is None
        check_availability(host)
        assert scheduled() == 1


@pytest.mark.parametrize(
    ("retention", "hours_ago", "found"),
    [(3600, 0.9, False), (3600, 1.1, True), (7200, 1.1, False), (0, 0.1, True)],
)
def test_histories_that_are_older_than_their_window_are_found(
    account: Account, host: Host, retention: int, hours_ago: float, found: bool
) -> None:
    """Beside a project with a shorter window, and one of another host."""
    shorter, project, elsewhere = (make_project(account, host) for _ in range(3))
    for one in (shorter, project, elsewhere):
        chain_of(one.branches.get())
    spent_at = timezone.now() - hours_ago * HOUR
    HistoryChain.objects.exclude(branch__project=shorter).update(spent_at=spent_at)
    Project.objects.filter(id=shorter.id).update(history_retention_seconds=60)
    Project.objects.exclude(id=shorter.id).update(history_retention_seconds=retention)
    Project.objects.filter(id=elsewhere.id).update(host=other_host(host))
    expected = {(project.branches.get().id, retention)} if found else set()
    assert outdated(host) == expected

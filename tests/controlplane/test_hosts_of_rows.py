"""Branches, endpoints and chains of history have the host of their project, whoever writes them,
and an endpoint's row says when its next availability check may be due."""

from datetime import timedelta

import pytest
from django.utils import timezone

from controlplane.models import Account, Branch, Endpoint, HistoryChain, Host, Operation, Project
from controlplane.operations.availability import check_availability
from controlplane.operations.history_retention import outdated
from tests.controlplane.rows import make_project
from tests.controlplane.test_rounds import HOUR, checked, scheduled


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

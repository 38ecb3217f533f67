"""A project whose lock is held does not hold up the rounds over all projects."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from controlplane.compute import observation
from controlplane.models import Account, Branch, Endpoint, Host, Operation, Plan, Project, Snapshot
from controlplane.operations import locks
from controlplane.operations.rounds import idleness, sizes, vitals
from controlplane.operations.rounds.availability import check_availability
from controlplane.operations.rounds.deleted_projects import remove_unrecovered
from controlplane.operations.rounds.expiry import expire_branches, expire_snapshots, remove_unwanted
from controlplane.usage import rounds
from tests.controlplane.rows import make_project

pytestmark = pytest.mark.django_db(transaction=True)
LONG_AGO = timezone.now() - timedelta(days=3)


@pytest.fixture(autouse=True)
def nothing_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "_left", {})


@contextmanager
def busy(project: Project) -> Iterator[None]:
    """Another process holds the project's lock for long."""
    with connection.connection.__class__.connect(connection.connection.info.dsn) as other:
        other.execute(
            "SELECT FROM controlplane_project WHERE id = %s FOR NO KEY UPDATE", [project.id]
        )
        yield


def expire(project: Project) -> None:
    Branch.objects.filter(project=project).update(default=False, expires_at=LONG_AGO)


def hide(project: Project) -> None:
    Branch.objects.filter(project=project).update(default=False, hidden=True)


def delete(project: Project) -> None:
    Project.objects.filter(id=project.id).update(
        deleted_at=LONG_AGO, recoverable_until=LONG_AGO + timedelta(days=1)
    )


def expire_snapshot(project: Project) -> None:
    hide(project)
    branch = Branch.objects.get(project=project)
    Snapshot.objects.create(
        project=project, name="s", expires_at=LONG_AGO, data_branch=branch, source_branch=branch
    )


def leave_unchecked(project: Project) -> None:
    Endpoint.objects.filter(project=project).update(created_at=LONG_AGO)


def measure_them(host: Host) -> None:
    sizes.measure(Endpoint.objects.select_related("branch__project__account", "branch__meter"))


def suspend_them(host: Host) -> None:
    for endpoint in Endpoint.objects.select_related("branch"):
        idleness._suspend(endpoint, timezone.now())


def activate(project: Project) -> None:
    Endpoint.objects.filter(project=project).update(current_state="active", host=project.host)


@pytest.mark.parametrize(
    ("make_due", "do"),
    [
        (expire, expire_branches),
        (expire_snapshot, expire_snapshots),
        (hide, remove_unwanted),
        (delete, remove_unrecovered),
        (leave_unchecked, check_availability),
        (activate, suspend_them),
    ],
    ids=lambda one: one.__name__,
)
def test_a_round_leaves_a_busy_project_and_does_the_others(
    account: Account, host: Host, make_due: Callable[[Project], None], do: Callable[[Host], None]
) -> None:
    projects = [make_project(account, host) for _ in range(2)]
    for project in projects:
        make_due(project)
    before = Operation.objects.count()
    began = time.monotonic()
    with busy(projects[0]):
        do(host)
    assert time.monotonic() - began < 5
    new = Operation.objects.order_by("-created_at")[: Operation.objects.count() - before]
    assert {operation.project_id for operation in new} == {projects[1].id}
    do(host)
    assert {one.operations.count() > 1 for one in projects} == {True}


def test_sizes_of_others_are_measured_while_a_project_is_busy(
    account: Account, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    account.plan = Plan.STANDARD
    account.save()
    projects = [make_project(account, host) for _ in range(2)]
    for project in projects:
        activate(project)
    measures = observation.Measures(4711, 0, observation.Written("", 0))
    monkeypatch.setattr(observation, "measure", lambda *_: measures)
    monkeypatch.setattr(sizes, "note_written", lambda *_: None)
    with busy(projects[0]):
        measure_them(host)
    measured = Branch.objects.filter(logical_size=4711)
    assert [branch.project_id for branch in measured] == [projects[1].id]


def test_a_project_that_stays_busy_is_a_problem(
    account: Account, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = make_project(account, host)
    hide(project)
    with busy(project):
        remove_unwanted(host)
        assert vitals.busy_projects() == []
        monkeypatch.setattr(locks, "LEFT_TOO_LONG", 0.0)
        (problem,) = vitals.busy_projects()
        assert problem.name == "projects_busy"
    remove_unwanted(host)
    assert vitals.busy_projects() == []


def test_what_no_round_looks_at_any_more_is_no_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "_left", {"gone": (time.monotonic() - 900, time.monotonic() - 600)})
    assert vitals.busy_projects() == []


def test_other_errors_of_the_database_end_the_round(account: Account, host: Host) -> None:
    project: Any = make_project(account, host)
    with pytest.raises(ZeroDivisionError), locks.left_if_busy(project.id):
        raise ZeroDivisionError
    assert locks._left == {}


def test_a_project_that_a_quota_waits_for_is_counted_as_left(
    account: Account, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = make_project(account, host)
    monkeypatch.setattr(locks, "_left", {})
    monkeypatch.setattr(rounds, "_running", lambda _: list(Endpoint.objects.all()))
    monkeypatch.setattr(rounds, "_over_quota", lambda *_: {"ep": None})
    monkeypatch.setattr(rounds, "quota_of", lambda _: {})
    with busy(project):
        rounds.hold_to_quotas(host)
    assert set(locks._left) == {project.id}
    rounds.hold_to_quotas(host)
    assert not locks._left

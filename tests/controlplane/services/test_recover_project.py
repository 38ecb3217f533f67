"""POST /projects/{project_id}/recover, and what is kept of deleted projects."""

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from django.test import Client as DjangoClient
from django.utils import timezone

from controlplane.models import (
    Account,
    Action,
    ApiKey,
    Branch,
    Endpoint,
    Event,
    Host,
    Operation,
    Project,
)
from controlplane.operations.engine.scheduling import Step, schedule
from controlplane.operations.locks import locked_project
from controlplane.operations.rounds.deleted_projects import remove_unrecovered, try_removals_again
from controlplane.services.creation import make_kept_branch
from controlplane.services.errors import Locked
from tests.controlplane import fields
from tests.controlplane.fields import assert_fields
from tests.controlplane.rows import make_project, make_snapshot
from tests.support.past import history, left_of_history, notes, with_history, write
from tests.support.project import Project as LiveProject
from tests.support.project import refusal
from tests.support.stack import Stack, new_state_dir, running_stack
from tests.support.waiting import wait_for

AGO = timedelta(hours=1)


@pytest.fixture(scope="module")
def service() -> Iterator[Stack]:
    """A service that keeps deleted projects for an hour."""
    with (
        new_state_dir() as state_dir,
        running_stack(state_dir, PERCH_RECOVERY_HOURS="1") as running,
    ):
        yield running


@pytest.fixture
def kept(service: Stack) -> LiveProject:
    return LiveProject.create(service, service.client())


def listed(project: LiveProject, **query: Any) -> list[Any]:
    found: list[Any] = project.client.get("/projects", **query)["projects"]
    return found


@pytest.mark.thorough
def test_it_works(kept: LiveProject) -> None:
    client = kept.client
    kept.sql("CREATE TABLE valued AS SELECT 7 AS number")
    child = kept.new_branch(name="child", endpoint=True)
    gone = kept.new_branch(name="gone", endpoint=True)["branch"]["id"]
    kept.done(client.delete(kept.branch_path(gone)))
    before = client.get(kept.path + "/connection_uri?database_name=neondb&role_name=neondb_owner")

    assert client.get(kept.path)["project"]["recovery_period_seconds"] == 3600
    for _ in range(2):
        deleted = client.delete(kept.path)
        assert set(deleted) == {"project"}
        assert deleted["project"]["recoverable_until"] > deleted["project"]["deleted_at"]
    assert client.call("GET", kept.path).status_code == 404
    assert listed(kept) == []
    (shown,) = listed(kept, recoverable=True)
    assert_fields(shown, fields.PROJECT_LISTED, fields.PROJECT_LISTED_AT_TIMES)
    assert shown["id"] == kept.id
    assert shown["recoverable_until"] == deleted["project"]["recoverable_until"]
    wait_for(lambda: not kept.is_running(), "the end of the compute")
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(before["uri"].replace(":5432", ""), port=kept.stack.proxy_port)
    assert kept.stack.data_dir(kept.branch_id).exists()

    response = client.call("POST", kept.path + "/recover")
    assert response.status_code == 200, response.text
    answer = response.json()
    assert set(answer) == {"project", "branches"}
    assert_fields(answer["project"], fields.PROJECT, fields.PROJECT_AT_TIMES)
    assert {row["name"] for row in answer["branches"]} == {"main", "child"}
    assert listed(kept, recoverable=True) == []
    assert {row["id"]: row["current_state"] for row in kept.endpoints()} == {
        kept.endpoint_id: "idle",
        child["endpoints"][0]["id"]: "idle",
    }
    uri = client.get(kept.path + "/connection_uri?database_name=neondb&role_name=neondb_owner")
    assert uri == before
    kept.start()
    assert kept.sql("SELECT number FROM valued") == [(7,)]
    assert refusal(client.call("POST", kept.path + "/recover")) == (
        409,
        "the project is not deleted",
    )
    told = [row["type"] for row in client.get("/events", type="project.*")["events"]]
    assert told == ["project.recovered", "project.deleted", "project.created"]


@pytest.mark.thorough
def test_the_moments_before_the_deletion_come_back(kept: LiveProject) -> None:
    with_history(kept)
    first, _ = write(kept, "first")
    write(kept, "second")
    kept.client.delete(kept.path)
    wait_for(lambda: not kept.is_running(), "the end of the compute")
    between = datetime.now(UTC).isoformat()
    kept.client.post(kept.path + "/recover")
    for at, expected in ((first, ["first"]), (between, ["first", "second"])):
        made = kept.new_branch(parent_timestamp=at)["branch"]
        assert notes(kept, made["id"]) == expected
    kept.start()
    third, _ = write(kept, "third")
    made = kept.new_branch(parent_timestamp=third)["branch"]
    assert notes(kept, made["id"]) == ["first", "second", "third"]
    assert history(kept)["gaps"] == []


@pytest.mark.thorough
def test_a_deleted_project_is_removed_after_its_time(kept: LiveProject) -> None:
    with_history(kept)
    reset = kept.branch_path(rest="/roles/neondb_owner/reset_password")
    kept.done(kept.client.post(reset))
    kept.client.delete(kept.path)
    assert left_of_history(kept) != (0, 0)
    with kept.stack.database() as database:
        database.execute(
            "UPDATE controlplane_project SET recoverable_until = now() WHERE id = %s", [kept.id]
        )
    directory = kept.stack.data_dir(kept.branch_id).parent
    wait_for(lambda: not directory.exists(), "the removal of the data")
    wait_for(lambda: left_of_history(kept) == (0, 0), "the removal of the rows")
    assert refusal(kept.client.call("POST", kept.path + "/recover")) == (404, "project not found")
    assert listed(kept, recoverable=True) == []
    assert kept.client.delete(kept.path)["project"]["id"] == kept.id
    (removed, *_) = kept.client.get("/events", type="project.*")["events"]
    assert (removed["type"], removed["actor"]["type"]) == ("project.removed", "expiry")


def test_without_a_configured_time_nothing_is_kept(project: LiveProject) -> None:
    deleted = project.client.delete(project.path)["project"]
    assert "recoverable_until" not in deleted
    data = project.stack.data_dir(project.branch_id)
    wait_for(lambda: not data.exists(), "the removal of the data")
    assert listed(project, recoverable=True) == []
    assert refusal(project.client.call("POST", project.path + "/recover"))[0] == 404


def test_the_plan_must_allow_one_more_project(
    api: DjangoClient, account: Account, host: Host
) -> None:
    Account.objects.filter(id=account.id).update(plan="free")
    deleted, *_ = [make_project(account, host) for _ in range(4)]
    now = timezone.now()
    Project.objects.filter(id=deleted.id).update(deleted_at=now, recoverable_until=now + AGO)
    response = api.post(f"/api/v2/projects/{deleted.id}/recover")
    assert (response.status_code, response.json()["code"]) == (422, "PROJECTS_LIMIT_EXCEEDED")


def make_deleted(account: Account, host: Host, *, age: timedelta = AGO, size: int = 0) -> Project:
    """Create a project that was deleted so long ago, whose branch has `size` bytes."""
    project = make_project(account, host)
    now = timezone.now()
    Project.objects.filter(id=project.id).update(
        deleted_at=now - age, recoverable_until=now + timedelta(hours=1)
    )
    Branch.objects.filter(project=project).update(logical_size=size)
    return project


def kept_ids() -> set[str]:
    return set(Project.objects.exclude(recoverable_until=None).values_list("id", flat=True))


def removed_in_order() -> list[str]:
    """Return the projects whose removal was scheduled, in order."""
    removals = Operation.objects.filter(action="delete_tenant").order_by("created_at")
    return list(removals.values_list("project_id", flat=True))


@pytest.fixture
def full_disk(settings: Any, tmp_path: Any) -> None:
    settings.STATE_DIR, settings.DISK_RESERVE = tmp_path, 1 << 60


@pytest.fixture
def free_account(host: Host) -> Account:
    return Account.objects.create(name="mallory", plan="free")


@pytest.mark.usefixtures("full_disk")
def test_a_full_disk_removes_the_oldest_first(account: Account, host: Host) -> None:
    older, newer = (make_deleted(account, host, age=hours * AGO) for hours in (2, 1))
    for _ in range(2):  # the next removal begins only after the first has ended
        remove_unrecovered(host)
    assert removed_in_order() == [older.id]
    assert kept_ids() == {newer.id}
    Operation.objects.update(status="finished")
    remove_unrecovered(host)
    assert kept_ids() == set()


@pytest.mark.usefixtures("full_disk")
def test_on_a_full_disk_the_account_that_stores_most_loses_its_projects_first(
    account: Account, free_account: Account, host: Host
) -> None:
    """Its other projects count too, and so does their data outside databases."""
    frugal = make_deleted(account, host, age=3 * AGO, size=300 << 20)
    greedy = [make_deleted(free_account, host, age=hours * AGO, size=1) for hours in (2, 1)]
    living = make_project(free_account, host)
    Branch.objects.filter(project=living).update(logical_size=1 << 20, auxiliary_size=500 << 20)
    for _ in range(3):
        remove_unrecovered(host)
        Operation.objects.update(status="finished")
    assert removed_in_order() == [greedy[0].id, greedy[1].id, frugal.id]


def test_of_more_deleted_projects_than_the_plan_keeps_the_oldest_are_removed(
    account: Account, free_account: Account, host: Host
) -> None:
    of_others = [make_deleted(account, host) for _ in range(5)]
    of_mallory = [make_deleted(free_account, host, age=age * AGO) for age in (5, 4, 3, 2, 1)]
    remove_unrecovered(host)
    assert removed_in_order() == [project.id for project in of_mallory[:2]]
    assert kept_ids() == {project.id for project in (*of_others, *of_mallory[2:])}
    (event, _) = Event.objects.filter(type="project.removed").order_by("id")
    assert (event.project_id, event.actor_type) == (of_mallory[0].id, "expiry")


def test_the_bytes_of_deleted_projects_are_limited_but_the_last_one_is_kept(
    free_account: Account, host: Host
) -> None:
    older, newer = (
        make_deleted(free_account, host, age=hours * AGO, size=size)
        for hours, size in ((2, 1 << 20), (1, 2 << 30))
    )
    remove_unrecovered(host)
    assert (removed_in_order(), kept_ids()) == ([older.id], {newer.id})


def test_a_failed_removal_is_tried_again(account: Account, host: Host) -> None:
    project = make_project(account, host)
    Project.objects.filter(id=project.id).update(deleted_at=timezone.now())
    with locked_project(project.id) as locked:
        schedule(locked, [Step(Action.DELETE_TENANT, holds_project=True)])
    failed = Operation.objects.filter(action="delete_tenant")
    failed.update(status="failed")
    try_removals_again(host)
    assert len(removed_in_order()) == 1  # it has just failed
    failed.update(created_at=timezone.now() - AGO)
    for _ in range(2):
        try_removals_again(host)
    assert removed_in_order() == [project.id] * 2


def test_creating_is_refused_while_too_many_deleted_projects_wait_for_removal(
    client: DjangoClient, free_account: Account, host: Host
) -> None:
    _, key = ApiKey.issue(free_account, "tests")
    client.defaults["HTTP_AUTHORIZATION"] = f"Bearer {key}"
    kept = [make_deleted(free_account, host, age=age * AGO) for age in (6, 5, 4, 3, 2, 1)]
    response = create(client)
    assert response.status_code == 423
    assert "the data of 6 deleted projects" in response.json()["message"]
    remove_unrecovered(host)
    assert create(client).status_code == 423
    Operation.objects.filter(project=kept[0]).update(status="finished")
    assert create(client).status_code == 201


def create(client: DjangoClient) -> Any:
    return client.post("/api/v2/projects", {"project": {}}, content_type="application/json")


def test_the_branches_of_a_project_that_wait_for_removal_are_limited(
    free_account: Account, host: Host
) -> None:
    project = make_project(free_account, host)
    make_snapshot(project)  # does not count
    branch = Branch.objects.get(project=project, hidden=False)
    with locked_project(project.id) as locked:
        for _ in range(5):
            make_kept_branch(locked, branch, name=None)
        with pytest.raises(Locked):
            make_kept_branch(locked, branch, name=None)
        make_kept_branch(locked, branch, name="preserved")


def test_endpoints_that_were_deleted_earlier_stay_deleted(
    api: DjangoClient, account: Account, host: Host
) -> None:
    project = make_project(account, host, size=2)
    Operation.objects.all().delete()
    kept, gone = Endpoint.objects.filter(project=project).order_by("id")
    Endpoint.objects.filter(id=gone.id).update(deleted_at=timezone.now() - AGO)
    Endpoint.objects.filter(id=kept.id).update(current_state="active", started_at=timezone.now())
    waiting = Operation.objects.create(
        project=project,
        branch=kept.branch,
        endpoint=kept,
        action="suspend_compute",
        status="scheduling",
        chain=uuid.uuid4(),
        resources=[kept.id],
    )
    assert api.delete(f"/api/v2/projects/{project.id}").status_code == 200
    assert Operation.objects.get(id=waiting.id).status == "failed"
    assert not Operation.objects.filter(action="delete_tenant").exists()
    assert api.post(f"/api/v2/projects/{project.id}/recover").status_code == 200
    assert [row.id for row in Endpoint.objects.filter(deleted_at=None)] == [kept.id]
    assert Endpoint.objects.get(id=kept.id).current_state == "idle"
    assert Branch.objects.filter(project=project, deleted_at=None).count() == 2

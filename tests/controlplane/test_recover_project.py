"""POST /projects/{project_id}/recover, and what is kept of deleted projects."""

import uuid
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.test import Client as DjangoClient
from django.utils import timezone

from controlplane.models import Account, Branch, Endpoint, Operation, Project, Region
from controlplane.operations.recovery import remove_unrecovered
from tests.controlplane import fields
from tests.controlplane.fields import assert_fields
from tests.controlplane.rows import make_project
from tests.support.project import Project as LiveProject
from tests.support.project import refusal
from tests.support.stack import Stack, new_state_dir, running_stack
from tests.support.waiting import wait_for

AGO = timedelta(hours=1)


@pytest.fixture(scope="module")
def service() -> Iterator[Stack]:
    """A service that keeps what was deleted for an hour."""
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


def test_it_works(kept: LiveProject) -> None:
    client = kept.client
    kept.sql("CREATE TABLE valued AS SELECT 7 AS number")
    child = kept.new_branch(name="child", endpoint=True)
    gone = kept.new_branch(name="gone", endpoint=True)["branch"]["id"]
    kept.done(client.delete(kept.branch_path(gone)))
    before = client.get(kept.path + "/connection_uri?database_name=neondb&role_name=neondb_owner")

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


def test_its_time_comes(kept: LiveProject) -> None:
    kept.client.delete(kept.path)
    with kept.stack.database() as database:
        database.execute(
            "UPDATE controlplane_project SET recoverable_until = now() WHERE id = %s", [kept.id]
        )
    data = kept.stack.data_dir(kept.branch_id)
    wait_for(lambda: not data.exists(), "the removal of the data")
    assert refusal(kept.client.call("POST", kept.path + "/recover")) == (404, "project not found")
    assert listed(kept, recoverable=True) == []
    assert kept.client.delete(kept.path)["project"]["id"] == kept.id
    (removed, *_) = kept.client.get("/events", type="project.*")["events"]
    assert (removed["type"], removed["actor"]["type"]) == ("project.removed", "expiry")


def test_without_the_hours_nothing_is_kept(project: LiveProject) -> None:
    deleted = project.client.delete(project.path)["project"]
    assert "recoverable_until" not in deleted
    data = project.stack.data_dir(project.branch_id)
    wait_for(lambda: not data.exists(), "the removal of the data")
    assert listed(project, recoverable=True) == []
    assert refusal(project.client.call("POST", project.path + "/recover"))[0] == 404


def test_anothers_cannot_be_recovered(service: Stack, kept: LiveProject) -> None:
    kept.client.delete(kept.path)
    bob = service.client()
    assert refusal(bob.call("POST", kept.path + "/recover"))[0] == 404
    assert bob.get("/projects?recoverable=true")["projects"] == []


def test_the_plan_must_have_room(api: DjangoClient, account: Account, region: Region) -> None:
    Account.objects.filter(id=account.id).update(plan="free")
    deleted, *_ = [make_project(account, region) for _ in range(4)]
    now = timezone.now()
    Project.objects.filter(id=deleted.id).update(deleted_at=now, recoverable_until=now + AGO)
    response = api.post(f"/api/v2/projects/{deleted.id}/recover")
    assert (response.status_code, response.json()["code"]) == (422, "PROJECTS_LIMIT_EXCEEDED")


def test_a_full_disk_removes_the_oldest_first(
    account: Account, region: Region, settings: Any, tmp_path: Any
) -> None:
    settings.STATE_DIR, settings.DISK_RESERVE = tmp_path, 1 << 60
    older, newer = make_project(account, region), make_project(account, region)
    now = timezone.now()
    for project, age in ((older, 2 * AGO), (newer, AGO)):
        Project.objects.filter(id=project.id).update(
            deleted_at=now - age, recoverable_until=now + AGO
        )
        Operation.objects.filter(project=project).update(status="finished")
    for _ in range(2):  # the first removal must have ended before the next begins
        remove_unrecovered(region)
    assert list(
        Operation.objects.filter(action="delete_tenant").values_list("project_id", flat=True)
    ) == [older.id]
    assert Project.objects.get(id=newer.id).recoverable_until is not None
    Operation.objects.update(status="finished")
    remove_unrecovered(region)
    assert Project.objects.get(id=newer.id).recoverable_until is None


def test_endpoints_that_were_deleted_before_stay_so(
    api: DjangoClient, account: Account, region: Region
) -> None:
    project = make_project(account, region, size=2)
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

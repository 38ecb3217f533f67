"""`/projects/{project_id}/snapshots`."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.controlplane import fields
from tests.controlplane.cancel_retry import cancel, ended, long_copies, retry
from tests.controlplane.fields import assert_fields
from tests.support.client import Client
from tests.support.project import Project, refusal
from tests.support.stack import Stack
from tests.support.waiting import wait_for

LATER = "2099-12-31T23:59:59Z"


def take(project: Project, branch_id: str | None = None, **query: Any) -> Any:
    path = project.branch_path(branch_id, "/snapshot")
    response = project.client.call("POST", path, params=query)
    assert response.status_code == 200, response.text
    return project.done(response.json())["snapshot"]


def listed(project: Project) -> list[Any]:
    found: list[Any] = project.client.get(project.path + "/snapshots")["snapshots"]
    return found


def snapshot_path(project: Project, snapshot: Any, rest: str = "") -> str:
    return f"{project.path}/snapshots/{snapshot['id']}{rest}"


def names(project: Project) -> set[str]:
    return {row["name"] for row in project.client.get(project.path + "/branches")["branches"]}


def data_of(project: Project, snapshot: Any) -> str:
    with project.stack.database() as database:
        row = database.execute(
            "SELECT data_branch_id FROM controlplane_snapshot WHERE id = %s", [snapshot["id"]]
        ).fetchone()
    assert row is not None
    return str(row[0])


def test_it_works(project: Project) -> None:
    project.sql("CREATE TABLE goods AS SELECT 1 AS number")
    taken = take(project, name="before the migration", expires_at=LATER)
    assert_fields(taken, fields.SNAPSHOT, fields.SNAPSHOT_AT_TIMES)
    assert (taken["name"], taken["expires_at"]) == ("before the migration", LATER)
    assert (taken["source_branch_id"], taken["manual"]) == (project.branch_id, True)
    (shown,) = listed(project)
    assert_fields(shown, fields.SNAPSHOT, fields.SNAPSHOT_AT_TIMES)
    # Its moment is known once it is taken, its size once that is measured.
    later = {name: shown[name] for name in ("timestamp", "full_size") if name in shown}
    assert {**taken, **later} == shown

    # Its data is not listed, cannot be reached, and is not counted.
    data_id = data_of(project, taken)
    assert names(project) == {"main"}
    for method, path, body in (
        ("GET", project.branch_path(data_id), None),
        ("DELETE", project.branch_path(data_id), None),
        ("POST", project.path + "/branches", {"branch": {"parent_id": data_id}}),
        ("POST", project.branch_path(rest="/restore"), {"source_branch_id": data_id}),
        ("POST", project.path + "/endpoints", {"endpoint": {"branch_id": data_id}}),
    ):
        answer = refusal(project.client.call(method, path, json=body))
        assert answer == (404, "branch not found"), (method, path)

    project.sql("DROP TABLE goods")
    answer = project.client.post(snapshot_path(project, taken, "/restore"), {"name": "restored"})
    assert [o["action"] for o in answer["operations"]] == ["create_branch"]
    branch = project.done(answer)["branch"]
    assert_fields(branch, fields.BRANCH, fields.BRANCH_AT_TIMES)
    assert (branch["name"], branch["default"], "parent_id" in branch) == ("restored", False, False)
    endpoint_id = project.create_endpoint(branch["id"])["endpoint"]["id"]
    assert project.sql("SELECT number FROM goods", endpoint_id=endpoint_id) == [(1,)]
    roles = project.client.get(project.branch_path(branch["id"], "/roles"))["roles"]
    assert [role["name"] for role in roles] == ["neondb_owner"]

    response = project.client.call("DELETE", snapshot_path(project, taken))
    assert response.status_code == 202
    assert [o["action"] for o in response.json()["operations"]] == ["delete_timeline"]
    assert listed(project) == []
    project.done(response.json())
    assert not project.stack.data_dir(data_id).exists()
    assert project.sql("SELECT number FROM goods", endpoint_id=endpoint_id) == [(1,)]
    told = [row["type"] for row in project.client.get("/events", type="snapshot.*")["events"]]
    assert told == ["snapshot.deleted", "snapshot.created"]


@pytest.mark.thorough
def test_a_copy_of_a_protected_branch_has_its_own_passwords(project: Project) -> None:
    project.client.patch(project.branch_path(), {"branch": {"protected": True}})
    taken = take(project)
    answer = project.client.post(snapshot_path(project, taken, "/restore"), {})
    branch_id = project.done(answer)["branch"]["id"]
    reveal = "/roles/neondb_owner/reveal_password"
    of_copy = project.client.get(project.branch_path(branch_id, reveal))["password"]
    assert of_copy != project.client.get(project.branch_path(rest=reveal))["password"]


@pytest.mark.thorough
def test_restored_in_place_of_the_branchs_data(project: Project) -> None:
    project.sql("CREATE TABLE goods AS SELECT 1 AS number")
    child_id = project.new_branch_id(name="child")
    taken = take(project)
    assert taken["name"].startswith("main at 20")
    project.sql("UPDATE goods SET number = 2")
    path = snapshot_path(project, taken, "/restore")
    answer = project.done(project.client.post(path, {"finalize_restore": True}))
    assert answer["branch"]["id"] == project.branch_id
    assert [o["action"] for o in answer["operations"]] == [
        "suspend_compute",
        "create_branch",
        "start_compute",
    ]
    assert project.sql("SELECT number FROM goods") == [(1,)]
    branches = project.client.get(project.path + "/branches")["branches"]
    (old,) = [row for row in branches if row["name"].startswith("main_old_20")]
    assert project.branch(child_id)["parent_id"] == old["id"]
    assert "parent_id" not in project.branch()
    endpoint_id = project.create_endpoint(old["id"])["endpoint"]["id"]
    assert project.sql("SELECT number FROM goods", endpoint_id=endpoint_id) == [(2,)]
    # In place of another branch's data.
    body = {"finalize_restore": True, "target_branch_id": child_id}
    assert project.done(project.client.post(path, body))["branch"]["id"] == child_id


def finalize(project: Project, branch_id: str, **body: Any) -> Any:
    return project.client.post(project.branch_path(branch_id, "/finalize_restore"), body)


def test_a_restore_in_two_steps(project: Project) -> None:
    """The restored branch is looked at through an endpoint of its own, and then takes the place of
    the default branch, of its name and of its endpoint."""
    project.sql("CREATE TABLE goods AS SELECT 1 AS number")
    child_id = project.new_branch_id(name="child")
    taken = take(project)
    project.sql("UPDATE goods SET number = 2")
    body = {"target_branch_id": project.branch_id, "finalize_restore": False, "name": "preview"}
    path = snapshot_path(project, taken, "/restore")
    preview_id = project.done(project.client.post(path, body))["branch"]["id"]
    assert project.sql("SELECT number FROM goods") == [(2,)]
    looking_id = project.create_endpoint(preview_id)["endpoint"]["id"]
    assert project.sql("SELECT number FROM goods", endpoint_id=looking_id) == [(1,)]

    answer = project.done(finalize(project, preview_id, name="before the restore"))
    assert [o["action"] for o in answer["operations"]] == [
        "apply_config",
        "suspend_compute",
        "start_compute",
    ]
    assert answer["branch"]["id"] == preview_id
    restored, old = project.branch(preview_id), project.branch()
    assert (restored["name"], restored["default"]) == ("main", True)
    assert (old["name"], old["default"]) == ("before the restore", False)
    assert project.branch(child_id)["parent_id"] == old["id"]
    (endpoint,) = project.endpoints()
    assert (endpoint["id"], endpoint["branch_id"]) == (project.endpoint_id, preview_id)
    assert endpoint["current_state"] == "active"
    # The strings that clients have lead to the restored data; the other data is kept.
    assert project.sql("SELECT number FROM goods") == [(1,)]
    old_id = project.create_endpoint(old["id"])["endpoint"]["id"]
    assert project.sql("SELECT number FROM goods", endpoint_id=old_id) == [(2,)]
    told = project.client.get("/events", type="branch.updated", branch_id=preview_id)["events"]
    changes = {"name": {"from": "preview", "to": "main"}, "default": {"from": False, "to": True}}
    assert told[0]["changes"] == changes
    # It is final.
    again = project.client.call("POST", project.branch_path(preview_id, "/finalize_restore"))
    assert (refusal(again)[0], "waits to be finalized" in again.text) == (422, True)


@pytest.mark.thorough
def test_a_restore_that_is_finalized_while_its_target_sleeps(project: Project) -> None:
    """Without a target it is the snapshot's branch, and its name is kept by default."""
    taken = take(project)
    preview = project.done(project.client.post(snapshot_path(project, taken, "/restore")))
    project.suspend()
    answer = project.done(finalize(project, preview["branch"]["id"]))
    assert [o["action"] for o in answer["operations"]] == ["apply_config", "suspend_compute"]
    assert project.branch()["name"].startswith("main_old_20")
    assert project.endpoint()["branch_id"] == preview["branch"]["id"]
    assert project.endpoint()["current_state"] == "idle"


@pytest.mark.thorough
def test_restores_that_cannot_be_finalized(project: Project) -> None:
    dev_id = project.new_branch_id(name="dev")
    taken = take(project, dev_id)
    restore = snapshot_path(project, taken, "/restore")

    def restored(**body: Any) -> str:
        return str(project.done(project.client.post(restore, body))["branch"]["id"])

    def refused(branch_id: str, **body: Any) -> tuple[int, str]:
        path = project.branch_path(branch_id, "/finalize_restore")
        return refusal(project.client.call("POST", path, json=body))

    as_new = restored(name="ready to use", finalize_restore=True)
    assert project.branch(as_new)["name"] == "ready to use"
    assert "is not a restore that waits" in refused(as_new)[1]
    assert "is not a restore that waits" in refused(dev_id)[1]
    preview = restored(name="preview")
    assert refused(preview, name="main")[0] == 409
    project.client.patch(project.branch_path(dev_id), {"branch": {"protected": True}})
    assert refused(preview) == (422, "the branch is protected; end its protection first")
    project.client.patch(project.branch_path(dev_id), {"branch": {"protected": False}})
    assert project.branch(preview)["name"] == "preview"
    project.done(project.client.delete(project.branch_path(dev_id)))
    assert refused(preview)[0] == 422
    assert "was deleted" in refused(preview)[1]
    # A snapshot of a branch that is gone is still a branch.
    assert project.branch(restored(name="kept"))["current_state"] == "ready"


def test_slugs(project: Project) -> None:
    first = take(project, slug="before-migration")
    assert first["slug"] == "before-migration"
    second = take(project)
    assert second["slug"] == second["id"]
    project.client.patch(snapshot_path(project, first), {"snapshot": {"name": "other"}})
    assert {one["slug"] for one in listed(project)} == {"before-migration", second["id"]}
    path = project.branch_path(rest="/snapshot")
    for slug in ("before-migration", second["id"]):
        for where in ("params", "json"):
            response = project.client.call("POST", path, **{where: {"slug": slug}})
            assert (response.status_code, response.json()["errors"][0]["code"]) == (409, "TAKEN")
    for slug in ("Before", "1st", "a-", "a_b", "", "x" * 64):
        response = project.client.call("POST", path, params={"slug": slug})
        assert (response.status_code, response.json()["errors"][0]["field"]) == (400, "slug")
    # A slug is free again once its snapshot is deleted, and in other projects anyway.
    project.done(project.client.call("DELETE", snapshot_path(project, first)).json())
    assert take(project, slug="before-migration")["slug"] == "before-migration"


@pytest.mark.thorough
def test_a_snapshot_outlives_its_branch(project: Project) -> None:
    child = project.new_branch(name="child", endpoint=True)["branch"]["id"]
    taken = take(project, child, name="kept")
    project.done(project.client.delete(project.branch_path(child)))
    (shown,) = listed(project)
    assert shown["source_branch_id"] == child
    path = snapshot_path(project, taken, "/restore")
    refused = project.client.call("POST", path, json={"finalize_restore": True})
    assert (refusal(refused)[0], "was deleted" in refused.text) == (422, True)
    restored = project.done(project.client.post(path))["branch"]
    assert project.branch(restored["id"])["current_state"] == "ready"


@pytest.mark.thorough
def test_a_snapshot_is_deleted_when_it_expires(project: Project) -> None:
    soon = datetime.now(UTC) + timedelta(seconds=3)
    taken = take(project, expires_at=soon.isoformat())
    data = project.stack.data_dir(data_of(project, taken))
    wait_for(lambda: listed(project) == [], "the end of the snapshot")
    wait_for(lambda: not data.exists(), "the end of its data")
    (expired, _) = project.client.get("/events", type="snapshot.*")["events"]
    assert (expired["type"], expired["actor"]["type"]) == ("snapshot.expired", "expiry")


@pytest.mark.thorough
def test_changes(project: Project) -> None:
    taken = take(project, name="one")
    path = snapshot_path(project, taken)

    def change(**attributes: Any) -> Any:
        return project.client.patch(path, {"snapshot": attributes})["snapshot"]

    assert change(name="two")["name"] == "two"
    assert change(expires_at=LATER)["expires_at"] == LATER
    assert change(name="three")["expires_at"] == LATER
    assert "expires_at" not in change(expires_at=None)
    assert listed(project)[0]["name"] == "three"
    refused = project.client.call(
        "PATCH", path, json={"snapshot": {"expires_at": "2020-01-01T00:00:00Z"}}
    )
    assert refusal(refused) == (422, "expires_at is in the past")


@pytest.mark.thorough
def test_a_cancelled_snapshot_does_not_exist(project: Project) -> None:
    with long_copies(project):
        body = {"name": "given up"}
        answer = project.client.post(project.branch_path(rest="/snapshot"), body)
        taken, (copying,) = answer["snapshot"], answer["operations"]
        assert (taken["name"], "timestamp" in taken) == ("given up", False)
        path = snapshot_path(project, taken, "/restore")
        assert refusal(project.client.call("POST", path)) == (
            423,
            "the snapshot is still being taken; try again",
        )
        cancel(project, copying)
        assert listed(project) == []
        assert ended(project, copying)["status"] == "cancelled"
    refused = project.client.call("POST", f"{project.path}/operations/{copying['id']}/retry")
    assert refusal(refused)[0] == 409


@pytest.mark.thorough
def test_a_failed_restore_can_be_retried(project: Project) -> None:
    taken = take(project)
    data = project.stack.data_dir(data_of(project, taken))
    away = data.rename(data.with_name("away"))
    answer = project.client.post(snapshot_path(project, taken, "/restore"), {"name": "again"})
    (made,) = project.client.finish(answer)
    assert made["status"] == "failed"
    away.rename(data)
    project.done({"operations": retry(project, made)})
    assert project.branch(answer["branch"]["id"])["current_state"] == "ready"


@pytest.mark.thorough
def test_the_plan_limits_the_number(stack: Stack, free: Client) -> None:
    project = Project.create(stack, free)
    take(project)
    response = free.call("POST", project.branch_path(rest="/snapshot"))
    assert (response.status_code, response.json()["code"]) == (422, "SNAPSHOTS_LIMIT_EXCEEDED")
    free.delete(project.path)


@pytest.mark.thorough
def test_a_projects_deletion_deletes_its_snapshots(project: Project) -> None:
    data = project.stack.data_dir(data_of(project, take(project)))
    project.client.delete(project.path)
    wait_for(lambda: not data.exists(), "the end of the snapshot's data")


@pytest.mark.parametrize(
    ("query", "status", "words"),
    [
        ({"lsn": "0/1"}, 422, "lsn is outside of the branch's history"),
        ({"timestamp": "2026-01-01T00:00:00Z"}, 422, "timestamp is outside of the branch's"),
        ({"expires_at": "2020-01-01T00:00:00Z"}, 422, "expires_at is in the past"),
        ({"expires_at": "tomorrow"}, 400, "expires_at"),
        ({"name": "x" * 257}, 400, "name"),
    ],
)
def test_refusals(standing: Project, query: Any, status: int, words: str) -> None:
    path = standing.branch_path(rest="/snapshot")
    for options in ({"params": query}, {"json": query}):
        answer = refusal(standing.client.call("POST", path, **options))
        assert (answer[0], words in answer[1]) == (status, True), answer
    assert listed(standing) == []


@pytest.mark.thorough
def test_refused_restores(project: Project) -> None:
    taken = take(project)
    for body, status, words in (
        ({"name": "main"}, 409, "branch already exists"),
        ({"target_branch_id": "br-a-b-1"}, 404, "branch not found"),
        (
            {"finalize_restore": True, "name": "x", "target_branch_id": project.branch_id},
            422,
            "name is not offered",
        ),
        ({"finalize_restore": True, "target_branch_id": "br-a-b-1"}, 404, "branch not found"),
    ):
        path = snapshot_path(project, taken, "/restore")
        answer = refusal(project.client.call("POST", path, json=body))
        assert (answer[0], words in answer[1]) == (status, True), answer
    nowhere = {"id": "snap-no-where-123456"}
    for method in ("PATCH", "DELETE"):
        path = snapshot_path(project, nowhere)
        answer = refusal(project.client.call(method, path, json={"snapshot": {}}))
        assert answer == (404, "snapshot not found")

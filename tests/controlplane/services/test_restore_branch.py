"""POST /projects/{project_id}/branches/{branch_id}/restore."""

from typing import Any

import pytest

from tests.controlplane import fields
from tests.controlplane.cancel_retry import cancel, ended, long_copies, retry
from tests.controlplane.fields import assert_fields
from tests.selection import first_of
from tests.support.project import Project, refusal, wanted
from tests.support.waiting import wait_for


def restore(project: Project, branch_id: str, source_id: str, **body: Any) -> Any:
    body["source_branch_id"] = source_id
    return project.client.post(project.branch_path(branch_id, "/restore"), body)


def call(project: Project, branch_id: str | None, source_id: str, **body: Any) -> tuple[int, str]:
    body["source_branch_id"] = source_id
    path = project.branch_path(branch_id, "/restore")
    return refusal(project.client.call("POST", path, json=body))


def branches(project: Project) -> dict[str, Any]:
    return {row["name"]: row for row in project.client.get(project.path + "/branches")["branches"]}


def on_disk(project: Project) -> set[str]:
    """Return the branches of the project that have data, and the other directories beside them."""
    path = project.stack.state_dir / "branches"
    with project.stack.database() as database:
        rows = database.execute(
            "SELECT id FROM controlplane_branch WHERE project_id = %s", [project.id]
        ).fetchall()
    mine = {row[0] for row in rows}
    return {place.name for place in path.iterdir() if place.name.split(".")[-1] in mine}


def given_up(project: Project) -> set[str]:
    """Return branches of the project that failed or were deleted."""
    with project.stack.database() as database:
        rows = database.execute(
            "SELECT id FROM controlplane_branch WHERE project_id = %s AND deleted_at IS NOT NULL",
            [project.id],
        ).fetchall()
    return {str(row[0]) for row in rows}


def test_a_reset_from_the_parent(project: Project) -> None:
    project.sql("CREATE TABLE goods AS SELECT 1 AS number")
    child = project.new_branch(endpoint=True)
    child_id, endpoint = child["branch"]["id"], child["endpoints"][0]
    project.sql("INSERT INTO goods VALUES (2)", endpoint_id=endpoint["id"])
    project.sql("INSERT INTO goods VALUES (3)")

    response = project.client.call(
        "POST",
        project.branch_path(child_id, "/restore"),
        json={"source_branch_id": project.branch_id, "preserve_under_name": None},
    )
    assert response.status_code == 200, response.text
    answer = response.json()
    assert_fields(answer["branch"], fields.BRANCH, fields.BRANCH_AT_TIMES)
    assert (answer["branch"]["id"], answer["branch"]["name"]) == (child_id, child["branch"]["name"])
    assert answer["branch"]["current_state"] == "resetting"
    assert answer["branch"]["pending_state"] == "ready"
    assert [o["action"] for o in answer["operations"]] == [
        "suspend_compute",
        "create_branch",
        "start_compute",
    ]
    for operation in answer["operations"]:
        assert_fields(operation, fields.OPERATION, fields.OPERATION_AT_TIMES)
    project.done(answer)

    after = project.branch(child_id)
    assert (after["current_state"], "pending_state" in after) == ("ready", False)
    assert after["last_reset_at"]
    assert after["parent_id"] == project.branch_id
    now = project.endpoint(endpoint["id"])
    assert (now["host"], now["current_state"]) == (endpoint["host"], "active")
    assert project.sql("SELECT * FROM goods ORDER BY 1", endpoint_id=endpoint["id"]) == [(1,), (3,)]
    # The old data is removed by a round.
    assert set(branches(project)) == {"main", child["branch"]["name"]}
    wait_for(
        lambda: on_disk(project) == {project.branch_id, child_id}, "the removal of the old data"
    )


@pytest.mark.thorough
def test_an_idle_endpoint_stays_idle(project: Project) -> None:
    child = project.new_branch(endpoint=True)
    endpoint_id = child["endpoints"][0]["id"]
    project.suspend(endpoint_id)
    project.sql("CREATE TABLE later AS SELECT 1 AS one")
    answer = project.done(restore(project, child["branch"]["id"], project.branch_id))
    assert [o["action"] for o in answer["operations"]] == ["create_branch"]
    assert project.endpoint(endpoint_id)["current_state"] == "idle"
    project.start(endpoint_id)
    assert project.sql("SELECT one FROM later", endpoint_id=endpoint_id) == [(1,)]


@pytest.mark.thorough
def test_roles_databases_and_passwords_are_those_of_the_source(project: Project) -> None:
    child_id = project.new_branch_id()
    made = project.client.post(
        project.branch_path(child_id, "/roles"), {"role": {"name": "only_here"}}
    )
    project.done(made)
    path = project.branch_path(rest="/roles/neondb_owner/reset_password")
    password = project.done(project.client.post(path))["role"]["password"]
    body = {"database": {"name": "orders", "owner_name": "neondb_owner"}}
    project.done(project.client.post(project.branch_path(rest="/databases"), body))

    project.done(restore(project, child_id, project.branch_id))
    get = project.client.get
    roles = get(project.branch_path(child_id, "/roles"))["roles"]
    assert [role["name"] for role in roles] == ["neondb_owner"]
    revealed = get(project.branch_path(child_id, "/roles/neondb_owner/reveal_password"))
    assert revealed["password"] == password
    databases = get(project.branch_path(child_id, "/databases"))["databases"]
    assert {row["name"] for row in databases} == {"neondb", "orders"}
    endpoint_id = project.create_endpoint(child_id)["endpoint"]["id"]
    assert project.sql(
        "SELECT count(*) FROM pg_database WHERE datname = 'orders'", endpoint_id=endpoint_id
    ) == [(1,)]


@pytest.mark.thorough
@pytest.mark.parametrize("kept", first_of(["kept", None]))
def test_changes_made_by_sql_on_the_source_just_before(project: Project, kept: str | None) -> None:
    child_id = project.new_branch_id()
    project.sql("CREATE ROLE just_made LOGIN")
    project.done(restore(project, child_id, project.branch_id, preserve_under_name=kept))
    roles = project.client.get(project.branch_path(child_id, "/roles"))["roles"]
    assert [role["name"] for role in roles] == ["just_made", "neondb_owner"]
    if kept:
        before = branches(project)[kept]["id"]
        roles = project.client.get(project.branch_path(before, "/roles"))["roles"]
        assert [role["name"] for role in roles] == ["neondb_owner"]


@pytest.mark.thorough
def test_the_old_data_is_preserved_and_gets_the_children(project: Project) -> None:
    project.sql("CREATE TABLE was AS SELECT 'before' AS it")
    source_id = project.new_branch_id(name="source")
    child = project.new_branch(name="child", endpoint=True)["branch"]
    project.sql("UPDATE was SET it = 'old'")
    other_id = project.new_branch_id(name="other", parent_id=source_id)

    status, words = call(project, None, source_id)
    assert (status, "preserve_under_name" in words, child["id"] in words) == (422, True, True)
    assert call(project, None, source_id, preserve_under_name="child")[0] == 409

    answer = restore(project, project.branch_id, source_id, preserve_under_name="main_old")
    assert branches(project)["main_old"]["pending_state"] == "ready"
    project.done(answer)
    after = branches(project)
    assert set(after) == {"main", "main_old", "child", "source", "other"}
    kept = after["main_old"]
    assert (kept["current_state"], kept["default"], "parent_id" in kept) == ("ready", False, False)
    assert after["main"]["parent_id"] == source_id
    assert after["main"]["default"]
    assert {after[name]["parent_id"] for name in ("source", "child")} == {kept["id"]}
    assert after["other"]["parent_id"] == source_id
    assert project.sql("SELECT it FROM was") == [("before",)]
    old = project.create_endpoint(kept["id"])["endpoint"]["id"]
    assert project.sql("SELECT it FROM was", endpoint_id=old) == [("old",)]
    roles = project.client.get(project.branch_path(kept["id"], "/roles"))["roles"]
    assert [role["name"] for role in roles] == ["neondb_owner"]
    assert other_id in on_disk(project)


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({}, 400, "source_branch_id"),
        ({"source_branch_id": "br-no-where-123456"}, 404, "branch not found"),
        (
            {"source_branch_id": "{main}", "source_lsn": "0/1"},
            422,
            "source_lsn is outside of the branch's history",
        ),
        (
            {"source_branch_id": "{main}", "source_timestamp": "2026-01-01T00:00:00Z"},
            422,
            "source_timestamp is outside of the branch's history",
        ),
        ({"source_branch_id": "{self}"}, 422, "a branch can be restored from its own past only"),
        ({"source_branch_id": "{self}", "preserve_under_name": "x"}, 422, "its own past"),
        ({"source_branch_id": "{main}", "preserve_under_name": "main"}, 409, "already exists"),
        ({"source_branch_id": "{main}", "preserve_under_name": ""}, 400, "preserve_under_name"),
    ],
)
def test_refusals(
    standing: Project, spare_branch_id: str, body: Any, status: int, words: str
) -> None:
    ids = {"{main}": standing.branch_id, "{self}": spare_branch_id}
    sent = {name: ids.get(value, value) for name, value in body.items()}
    path = standing.branch_path(spare_branch_id, "/restore")
    answer = refusal(standing.client.call("POST", path, json=sent))
    assert (answer[0], words in answer[1]) == (status, True), answer
    assert set(branches(standing)) == {"main", standing.branch(spare_branch_id)["name"]}


@pytest.mark.thorough
def test_a_protected_branch_cannot_be_restored(project: Project) -> None:
    child_id = project.new_branch_id(protected=True)
    status, words = call(project, child_id, project.branch_id)
    assert (status, words) == (422, "the branch is protected; end its protection first")


@pytest.mark.thorough
def test_changes_that_would_be_lost_are_refused_meanwhile(project: Project) -> None:
    child_id = project.new_branch_id(name="child")
    with project.locked():
        answer = restore(project, child_id, project.branch_id, preserve_under_name="old")
        kept_id = branches(project)["old"]["id"]
        shown = project.branch(child_id)
        assert (shown["current_state"], shown["pending_state"]) == ("resetting", "ready")
        post: dict[str, Any] = {
            project.branch_path(child_id, "/roles"): {"role": {"name": "lost"}},
            project.path + "/branches": {"branch": {"parent_id": child_id}},
            project.branch_path(child_id, "/restore"): {"source_branch_id": project.branch_id},
            project.path + "/endpoints": wanted(kept_id),
        }
        for path, body in post.items():
            assert project.client.call("POST", path, json=body).status_code == 423, path
        for branch_id in (child_id, kept_id):
            path = project.branch_path(branch_id)
            assert project.client.call("DELETE", path).status_code == 423
    project.done(answer)
    project.done(project.client.delete(project.branch_path(child_id)))


@pytest.mark.thorough
def test_a_failed_restore_changes_nothing_and_can_be_retried(project: Project) -> None:
    project.sql("CREATE TABLE new AS SELECT 1 AS one")
    source_id = project.new_branch_id(name="source")
    child = project.new_branch(name="child", endpoint=True)
    child_id, endpoint_id = child["branch"]["id"], child["endpoints"][0]["id"]
    project.sql("DROP TABLE new; CREATE TABLE old AS SELECT 1 AS one", endpoint_id=endpoint_id)
    data = project.stack.data_dir(source_id)
    hidden = data.rename(data.with_name("hidden"))

    answer = restore(project, child_id, source_id, preserve_under_name="kept")
    suspended, made, started = project.client.finish(answer)
    assert [o["status"] for o in (suspended, made, started)] == ["finished", "failed", "failed"]
    assert f"the source branch {source_id} has no data" in made["error"]
    after = branches(project)
    assert set(after) == {"main", "source", "child"}
    assert after["child"]["current_state"] == "ready"
    assert "last_reset_at" not in after["child"]
    project.start(endpoint_id)
    assert project.sql("SELECT one FROM old", endpoint_id=endpoint_id) == [(1,)]

    hidden.rename(data)
    again = retry(project, made)
    assert [o["action"] for o in again] == ["suspend_compute", "create_branch", "start_compute"]
    project.done({"operations": again})
    assert project.sql("SELECT one FROM new", endpoint_id=endpoint_id) == [(1,)]
    assert set(branches(project)) == {"main", "source", "child", "kept"}
    refused = project.client.call("POST", f"{project.path}/operations/{made['id']}/retry")
    assert refusal(refused)[0] == 409


@pytest.mark.thorough
def test_a_cancelled_restore_changes_nothing(project: Project) -> None:
    child = project.new_branch(name="child", endpoint=True)
    child_id, endpoint_id = child["branch"]["id"], child["endpoints"][0]["id"]
    project.sql("CREATE TABLE old AS SELECT 1 AS one", endpoint_id=endpoint_id)
    before = on_disk(project)
    with long_copies(project):
        answer = restore(project, child_id, project.branch_id, preserve_under_name="kept")
        copying = answer["operations"][1]
        wait_for(
            lambda: (
                "copying" in [step["name"] for step in project.operation(copying["id"])["steps"]]
            ),
            "the copy",
        )
        cancelled = cancel(project, copying)
        assert [row["action"] for row in cancelled] == ["create_branch", "start_compute"]
        assert "kept" not in branches(project)
        for row in cancelled:
            assert ended(project, row)["status"] == "cancelled"
    assert on_disk(project) == before
    locks = {place.name for place in (project.stack.state_dir / "locks").iterdir()}
    assert not {one for one in locks if one.startswith("br-")} & given_up(project)
    assert project.branch(child_id)["current_state"] == "ready"
    project.start(endpoint_id)
    assert project.sql("SELECT one FROM old", endpoint_id=endpoint_id) == [(1,)]


@pytest.mark.thorough
def test_a_restore_is_recorded_as_an_event(project: Project) -> None:
    child_id, other_id = project.new_branch_id(name="child"), project.new_branch_id(name="other")
    reset = project.done(restore(project, child_id, project.branch_id, preserve_under_name="kept"))
    restored = project.done(restore(project, child_id, other_id))
    # Only the first takes the present data of what was the parent then.
    assert [row["kind"] for row in reset["operations"]] == ["reset_branch"]
    assert [row["kind"] for row in restored["operations"]] == ["restore_branch"]
    events = project.client.get(f"{project.path}/events", type="branch.*")["events"]
    told = [(event["type"], event["summary"]) for event in events]
    assert told[0] == ("branch.restored", 'The branch "child" was restored from the branch "other"')
    for one in (
        (
            "branch.restore_requested",
            'A reset of the branch "child" from its parent "main" was requested',
        ),
        ("branch.restored", 'The branch "child" was reset from its parent "main"'),
        (
            "branch.restore_requested",
            'A restore of the branch "child" from the branch "other" was requested',
        ),
    ):
        assert one in told
    assert ("branch.created", 'The branch "kept" was created') in told

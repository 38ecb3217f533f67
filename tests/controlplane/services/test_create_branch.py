"""POST /projects/{project_id}/branches."""

from typing import Any

import pytest

from controlplane.compute.host.cloning import shares_blocks
from controlplane.models import Account, Branch, Host, Role
from controlplane.operations.locks import locked_project
from controlplane.services.creation import creation_steps
from tests.controlplane import fields
from tests.controlplane.fields import assert_fields
from tests.controlplane.rows import make_project
from tests.support.project import Project, refusal


def test_it_works(project: Project) -> None:
    body = {"branch": {"name": "preview"}, "endpoints": [{"type": "read_write"}]}
    response = project.client.call("POST", project.path + "/branches", json=body)

    assert response.status_code == 201
    answer = response.json()
    branch, (endpoint,) = answer["branch"], answer["endpoints"]
    assert_fields(branch, fields.BRANCH, fields.BRANCH_AT_TIMES)
    assert (branch["name"], branch["parent_id"]) == ("preview", project.branch_id)
    assert (branch["default"], branch["protected"]) == (False, False)
    assert (branch["current_state"], branch["pending_state"]) == ("init", "ready")
    assert_fields(endpoint, fields.ENDPOINT, fields.ENDPOINT_AT_TIMES)
    assert endpoint["branch_id"] == branch["id"]
    assert (endpoint["current_state"], endpoint["pending_state"]) == ("init", "active")
    assert [(o["action"], o["status"], "endpoint_id" in o) for o in answer["operations"]] == [
        ("create_branch", "running", False),
        ("start_compute", "scheduling", True),
    ]
    (role,), (database,) = answer["roles"], answer["databases"]
    assert_fields(role, fields.ROLE, fields.ROLE_AT_TIMES)
    assert_fields(database, fields.DATABASE)
    assert role["branch_id"] == database["branch_id"] == branch["id"]
    (uri,) = answer["connection_uris"]
    password = project.created["roles"][0]["password"]
    assert uri["connection_parameters"]["password"] == password
    assert uri["connection_parameters"]["host"] == endpoint["host"]

    project.done(answer)
    assert project.branch(branch["id"])["current_state"] == "ready"
    assert project.endpoint(endpoint["id"])["current_state"] == "active"


def test_without_endpoints_none_is_created(project: Project) -> None:
    answer = project.client.post(project.path + "/branches", {"branch": {"name": "plain"}})
    assert answer["endpoints"] == []
    assert "connection_uris" not in answer
    assert [o["action"] for o in answer["operations"]] == ["create_branch"]


@pytest.mark.thorough
def test_from_a_given_parent(project: Project) -> None:
    parent = project.new_branch(endpoint=True)
    endpoint_id = parent["endpoints"][0]["id"]
    project.sql("CREATE TABLE mine AS SELECT 1 AS one", endpoint_id=endpoint_id)
    child = project.new_branch(endpoint=True, parent_id=parent["branch"]["id"])
    assert child["branch"]["parent_id"] == parent["branch"]["id"]
    child_id = child["endpoints"][0]["id"]
    assert project.sql("SELECT one FROM mine", endpoint_id=child_id) == [(1,)]


@pytest.mark.thorough
def test_from_a_parent_that_is_still_being_created(project: Project) -> None:
    with project.locked():
        parent = project.client.post(project.path + "/branches")
        body = {"branch": {"parent_id": parent["branch"]["id"]}}
        child = project.client.post(project.path + "/branches", body)
        assert [o["status"] for o in child["operations"]] == ["scheduling"]
    project.done(parent)
    project.done(child)
    assert project.branch(child["branch"]["id"])["current_state"] == "ready"


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"branch": {"name": "main"}}, 409, 'branch already exists; branch_name:"main"'),
        ({"branch": {"name": "x" * 257}}, 400, "branch.name"),
        ({"branch": {"name": ""}}, 400, "branch.name"),
        ({"branch": {"name": "a\x07b"}}, 400, "control characters"),
        ({"branch": {"name": 7}}, 400, "branch.name"),
        ({"branch": []}, 400, "branch"),
        ({"branch": {"parent_id": "br-no-where-123456"}}, 404, "branch not found"),
        ({"branch": {"parent_lsn": "0/1"}}, 422, "outside of the branch's history"),
        ({"branch": {"parent_timestamp": "2026-01-01T00:00:00Z"}}, 422, "outside of the"),
        ({"endpoints": [{"type": "read_only"}]}, 422, "endpoints.0.type is not offered"),
        ({"endpoints": [{"type": "other"}]}, 400, "endpoints.0.type"),
        ({"endpoints": {"type": "read_write"}}, 400, "endpoints"),
        ({"endpoints": [{"type": "read_write"}] * 2}, 422, "at most one read_write endpoint"),
        ({"endpoints": [{"settings": {"pg_settings": None}}]}, 400, "must not be nil"),
        ({"endpoints": [{"name": "x" * 65}]}, 400, "endpoints.0.name"),
    ],
)
def test_refusals(standing: Project, body: Any, status: int, words: str) -> None:
    before = ids_of_branches(standing)
    answer = refusal(standing.client.call("POST", standing.path + "/branches", json=body))
    assert (answer[0], words in answer[1]) == (status, True), answer
    assert ids_of_branches(standing) == before


def ids_of_branches(project: Project) -> set[str]:
    return {row["id"] for row in project.client.get(project.path + "/branches")["branches"]}


def test_another_projects_branch_cannot_be_the_parent(standing: Project) -> None:
    other = standing.client.new_project(wait=False)
    body = {"branch": {"parent_id": other["branch"]["id"]}}
    response = standing.client.call("POST", standing.path + "/branches", json=body)
    assert refusal(response) == (404, "branch not found")


@pytest.mark.thorough
def test_a_parent_that_is_being_deleted_is_refused(project: Project) -> None:
    branch_id = project.new_branch_id()
    with project.locked(branch_id):
        project.client.delete(project.branch_path(branch_id))
        body = {"branch": {"parent_id": branch_id}}
        response = project.client.call("POST", project.path + "/branches", json=body)
        assert refusal(response)[0] == 423


@pytest.mark.thorough
def test_a_failed_creation_gives_the_reason_and_leaves_only_a_row(project: Project) -> None:
    project.suspend()
    data = project.stack.data_dir(project.branch_id)
    kept = data.rename(data.with_name("kept"))

    body = {"branch": {}, "endpoints": [{"type": "read_write"}]}
    answer = project.client.post(project.path + "/branches", body)
    created, started = project.client.finish(answer)

    assert created["status"] == "failed"
    assert created["error"] == (
        f"the parent branch {project.branch_id} has no data; "
        "have this host's operator restore it from a backup, or delete the branch"
    )
    assert started["status"] == "failed"
    assert started["error"] == (
        f"not run: the operation {created['id']} (create_branch) of the same chain failed: "
        f"{created['error']}"
    )
    assert started["not_run_because"] == created["id"]
    assert "not_run_because" not in created
    branch_id = answer["branch"]["id"]
    assert project.branch(branch_id)["current_state"] == "init"
    endpoint_id = answer["endpoints"][0]["id"]
    assert project.endpoint(endpoint_id)["current_state"] == "idle"
    again = project.client.post(project.endpoint_path(endpoint_id, "/start"))
    # It can be retried once the cause is removed.
    assert [row["action"] for row in again["operations"]] == ["create_branch", "start_compute"]
    refused, _ = project.client.finish(again)
    assert refused["error"] == created["error"]
    assert not data.parent.with_name(f".{branch_id}").exists()
    project.done(project.client.delete(project.branch_path(branch_id)))
    kept.rename(data)


@pytest.mark.thorough
def test_a_long_copy_does_not_block_the_parent(project: Project) -> None:
    """An idle parent is woken for the copy, and serves clients meanwhile."""
    if shares_blocks(project.stack.state_dir / "branches"):
        pytest.skip("copies share their blocks here, and take no time")
    project.sql("CREATE TABLE heavy (words text STORAGE EXTERNAL)")
    project.sql("INSERT INTO heavy SELECT repeat('x', 6400) FROM generate_series(1, 30000)")
    project.suspend()
    project.new_branch(name="copy")
    # No client requested a start, but a client that comes finds the endpoint active.
    actions = [operation["action"] for operation in project.operations()[:2]]
    assert actions == ["create_branch", "suspend_compute"]
    assert project.endpoint()["current_state"] == "active"
    assert project.sql("SELECT count(*) FROM heavy") == [(30_000,)]
    copy = project.client.get(project.path + "/branches", search="copy")["branches"][0]["id"]
    made = project.create_endpoint(copy)["endpoint"]["id"]
    assert project.sql("SELECT count(*) FROM heavy", endpoint_id=made) == [(30_000,)]


@pytest.mark.thorough
def test_a_short_copy_does_not_wake_the_parent(project: Project) -> None:
    project.suspend()
    project.new_branch()
    assert project.endpoint()["current_state"] == "idle"


@pytest.mark.thorough
def test_a_branchs_data_is_not_newer_than_its_rows(project: Project) -> None:
    """Changes of the parent that are requested after the branch must not be applied before its
    copy."""
    databases = project.branch_path(rest="/databases")
    for name in ("kept", "gone"):
        body = {"database": {"name": name, "owner_name": "neondb_owner"}}
        project.done(project.client.post(databases, body))
    with project.locked():
        # When this runs, it applies every change in the rows.
        earlier = project.client.patch(
            project.endpoint_path(), {"endpoint": {"autoscaling_limit_max_cu": 0.5}}
        )
        made = project.client.post(
            project.path + "/branches", {"endpoints": [{"type": "read_write"}]}
        )
        later = [
            project.client.post(
                databases, {"database": {"name": "new", "owner_name": "neondb_owner"}}
            ),
            project.client.patch(databases + "/kept", {"database": {"name": "renamed"}}),
            project.client.delete(databases + "/gone"),
        ]
    for answer in (earlier, made, *later):
        project.done(answer)
    child = made["branch"]["id"]
    assert present(project, made["endpoints"][0]["id"]) == listed(project, child)
    assert listed(project, child) == {"neondb", "kept", "gone"}
    assert present(project) == listed(project) == {"neondb", "renamed", "new"}


def present(project: Project, endpoint_id: str | None = None) -> set[str]:
    """Return the databases of the endpoint's compute, without Postgres's own."""
    query = "SELECT datname FROM pg_database WHERE NOT datistemplate AND datname <> 'postgres'"
    return {name for (name,) in project.sql(query, endpoint_id=endpoint_id)}


def listed(project: Project, branch_id: str | None = None) -> set[str]:
    answer = project.client.get(project.branch_path(branch_id, rest="/databases"))
    return {database["name"] for database in answer["databases"]}


@pytest.mark.parametrize("protected", [False, True])
def test_roles_of_a_protected_source_get_their_own_passwords(
    account: Account, host: Host, protected: bool
) -> None:
    project = make_project(account, host)
    source = Branch.objects.get(project=project)
    Branch.objects.filter(id=source.id).update(protected=protected)
    child = Branch.objects.create(project=project, parent=source, name="child")
    Role.objects.create(branch=source, name="late", verifier="the source's")
    with locked_project(project.id):
        (step,) = creation_steps(Branch.objects.get(id=child.id), [])
    assert step.branch is not None
    taken = Role.objects.get(branch=child, name="late")
    assert (taken.verifier == "the source's") != protected
    assert taken.verifier

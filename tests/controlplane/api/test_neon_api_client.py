"""The Python client that users have, unmodified. It validates every field of every answer."""

from pathlib import Path
from typing import Any

import pytest
from neon_api import NeonAPI
from neon_api.exceptions import NeonAPIError

from tests.support.client import Client
from tests.support.project import Project, wanted


def client_of(client: Client) -> NeonAPI:
    return NeonAPI(client.key, base_url=client.api_url + "/")


@pytest.fixture
def neon(project: Project) -> NeonAPI:
    return client_of(project.client)


def test_projects(alice: Client) -> None:
    neon = client_of(alice)
    created = neon.project_create(project={"name": "by neon-api"})
    assert neon.project(created.project.id).project.name == "by neon-api"
    assert [project.id for project in neon.projects().projects] == [created.project.id]
    assert neon.projects(shared=True).projects == []
    changed = neon.project_update(created.project.id, project={"name": "renamed"})
    assert changed.project.name == "renamed"
    assert neon.project_delete(created.project.id).project.id == created.project.id


def test_endpoints(project: Project, neon: NeonAPI) -> None:
    branch_id, other_id = project.new_branch_id(), project.new_branch_id()
    created = neon.endpoint_create(project.id, **wanted(branch_id))
    endpoint_id = created.endpoint.id
    assert created.endpoint.pending_state.value == "active"
    finish(project, created)
    assert neon.endpoint(project.id, endpoint_id).endpoint.current_state.value == "active"
    assert len(neon.endpoints(project.id).endpoints) == 2
    moved = neon.endpoint_update(project.id, endpoint_id, endpoint={"branch_id": other_id})
    assert moved.endpoint.branch_id == other_id
    finish(project, moved)
    finish(project, neon.endpoint_start(project.id, endpoint_id))
    finish(project, neon.endpoint_suspend(project.id, endpoint_id))
    assert neon.endpoint_delete(project.id, endpoint_id).endpoint.id == endpoint_id


@pytest.mark.thorough
def test_branches(project: Project, neon: NeonAPI) -> None:
    body = {"branch": {"name": "by-neon-api"}, "endpoints": [{"type": "read_write"}]}
    created = neon.branch_create(project.id, **body)
    finish(project, created)
    branch_id = created.branch.id
    assert neon.branch(project.id, branch_id).branch.name == "by-neon-api"
    assert len(neon.branches(project.id).branches) == 2
    changed = neon.branch_update(project.id, branch_id, branch={"name": "renamed"})
    assert changed.branch.name == "renamed"
    assert neon.branch_set_as_primary(project.id, branch_id).branch.primary is True
    assert neon.branch_set_as_primary(project.id, project.branch_id).branch.primary is True
    finish(project, neon.branch_delete(project.id, branch_id))


@pytest.mark.thorough
def test_databases_and_roles(project: Project, neon: NeonAPI) -> None:
    at = (project.id, project.branch_id)
    finish(project, neon.role_create(*at, "ann"))
    assert {role.name for role in neon.roles(*at).roles} == {"ann", "neondb_owner"}
    assert neon.role(*at, "ann").role.name == "ann"
    assert neon.role_password_reveal(*at, "ann").password
    finish(project, neon.role_password_reset(*at, "ann"))
    neon.database_create(*at, database={"name": "orders", "owner_name": "ann"})
    assert {row.name for row in neon.databases(*at).databases} == {"neondb", "orders"}
    assert neon.database(*at, "orders").database.owner_name == "ann"
    assert neon.database_update(*at, "orders", database={"name": "sales"}).database.name == "sales"
    assert neon.database_delete(*at, "sales").database.name == "sales"
    assert neon.role_delete(*at, "ann").role.name == "ann"
    uri = neon.connection_uri(
        project.id, database_name="neondb", role_name="neondb_owner", pooled=True
    )
    assert uri.uri.endswith("-pooler")


@pytest.mark.thorough
def test_operations(project: Project, neon: NeonAPI) -> None:
    newest, older, *_ = project.operations()
    cursor = project.client.get(project.path + "/operations", limit=1)["pagination"]["cursor"]
    pages = [neon.operations(project.id, limit=1, cursor=at) for at in (None, cursor)]
    ids = [operation.id for page in pages for operation in page.operations]
    assert ids == [newest["id"], older["id"]]
    assert neon.operation(project.id, ids[0]).operation.status.value == "finished"


def test_keys_and_the_user(alice: Client) -> None:
    neon = client_of(alice)
    made = neon.api_key_create(key_name="by neon-api")
    assert made.key
    assert [key.name for key in neon.api_keys()] == ["by neon-api", "tests"]
    assert neon.api_key_revoke(made.id).revoked is True
    assert neon.me().login


def test_permissions(project: Project, neon: NeonAPI) -> None:
    """Only the account itself has permissions, and there is nobody to grant them to."""
    assert neon.project_permissions(project.id).project_permissions == []
    with pytest.raises(NeonAPIError, match="not offered by this server"):
        neon.project_permissions_grant(project.id, email="bob@example.com")
    # The client uses a path that the API does not have.
    with pytest.raises(NeonAPIError):
        neon.project_permissions_revoke(project.id)


def test_every_method_of_the_client_is_tried_here() -> None:
    source = Path(__file__).read_text()
    methods = {name for name in vars(NeonAPI) if not name.startswith("_")} - {"from_environ"}
    assert {name for name in methods if f"neon.{name}(" not in source} == set()


def test_errors(project: Project, neon: NeonAPI) -> None:
    with pytest.raises(NeonAPIError, match="endpoint not found"):
        neon.endpoint(project.id, "ep-no-where-123456")


def finish(project: Project, answer: Any) -> None:
    project.done({"operations": [plain(operation) for operation in answer.operations]})


def plain(operation: Any) -> dict[str, str]:
    return {"id": operation.id, "project_id": operation.project_id}

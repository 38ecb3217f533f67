"""POST /projects/{project_id}/endpoints (specification, call 1)."""

from typing import Any

import pytest

from tests.controlplane.fields import (
    ENDPOINT,
    ENDPOINT_AT_TIMES,
    OPERATION,
    OPERATION_AT_TIMES,
    assert_fields,
)
from tests.support.project import Project, refusal, wanted


@pytest.fixture
def branch_id(project: Project) -> str:
    """A branch without an endpoint."""
    return project.new_branch_id()


def create(project: Project, body: Any) -> tuple[int, str]:
    """Send a request that must be refused and create nothing. Returns the refusal."""
    before = project.endpoints()
    answer = refusal(project.client.call("POST", project.path + "/endpoints", json=body))
    assert project.endpoints() == before
    return answer


def test_it_works(project: Project, branch_id: str) -> None:
    response = project.client.call("POST", project.path + "/endpoints", json=wanted(branch_id))

    assert response.status_code == 201
    body = response.json()
    assert set(body) == {"endpoint", "operations"}
    endpoint, (operation,) = body["endpoint"], body["operations"]
    assert_fields(endpoint, ENDPOINT, ENDPOINT_AT_TIMES)
    assert endpoint["branch_id"] == branch_id
    assert (endpoint["current_state"], endpoint["pending_state"]) == ("init", "active")
    assert endpoint["host"] == f"{endpoint['id']}.{endpoint['proxy_host']}"
    assert endpoint["pooler_enabled"] is False
    assert endpoint["settings"] == {"pg_settings": {}}
    assert "last_active" not in endpoint
    assert_fields(operation, OPERATION, OPERATION_AT_TIMES)
    assert (operation["action"], operation["status"]) == ("start_compute", "running")
    assert operation["endpoint_id"] == endpoint["id"]
    assert operation["branch_id"] == branch_id


def test_its_operation_ends_with_a_running_postgres(project: Project, branch_id: str) -> None:
    created = project.create_endpoint(branch_id)

    endpoint = project.endpoint(created["endpoint"]["id"])
    assert endpoint["current_state"] == "active"
    assert "pending_state" not in endpoint
    assert {"last_active", "started_at"} <= endpoint.keys()
    assert project.sql("SELECT 1", endpoint_id=endpoint["id"]) == [(1,)]


@pytest.mark.thorough
def test_settings_that_postgres_refuses_leave_it_idle(project: Project, branch_id: str) -> None:
    body = wanted(branch_id, {"settings": {"pg_settings": {"timezone": "UTC+200"}}})
    created = project.client.post(project.path + "/endpoints", body)

    (operation,) = project.client.finish(created)
    assert operation["status"] == "failed"
    assert 'invalid value for parameter "TimeZone": "UTC+200"' in operation["error"]
    endpoint = project.endpoint(created["endpoint"]["id"])
    assert endpoint["current_state"] == "idle"

    project.change(endpoint["id"], settings={"pg_settings": {"work_mem": "8MB"}})
    project.start(endpoint["id"])
    assert project.sql("SHOW work_mem", endpoint_id=endpoint["id"]) == [("8MB",)]


@pytest.mark.thorough
def test_a_branch_with_an_endpoint_accepts_no_other(project: Project) -> None:
    status, message = create(project, wanted(project.branch_id))
    assert status == 409
    # As Neon says it, and then what to do.
    assert message.startswith(
        f'read_write endpoint already exists; branch_id:"{project.branch_id}", '
        f'endpoint_id:"{project.endpoint_id}"; the branch "main" already has the endpoint'
    )
    assert "choose another branch, or first reassign or delete that endpoint" in message


def test_an_endpoint_may_replace_a_deleted_one(project: Project) -> None:
    project.sql("CREATE TABLE kept AS SELECT 7 AS number")
    project.client.delete(project.endpoint_path())

    created = project.create_endpoint(project.branch_id)["endpoint"]
    assert created["id"] != project.endpoint_id
    assert project.endpoint(created["id"])["current_state"] == "active"
    assert project.sql("SELECT number FROM kept", endpoint_id=created["id"]) == [(7,)]


@pytest.mark.thorough
def test_it_waits_for_a_branch_that_is_being_created(project: Project) -> None:
    with project.locked():
        branch = project.client.post(project.path + "/branches")["branch"]
        created = project.client.post(project.path + "/endpoints", wanted(branch["id"]))
        assert [o["status"] for o in created["operations"]] == ["scheduling"]
    project.done(created)
    assert project.endpoint(created["endpoint"]["id"])["current_state"] == "active"


class TestRefusals:
    """None of these creates anything."""

    @pytest.mark.parametrize("kind", ["", 1, "READ_WRITE"])
    def test_another_type(self, standing: Project, kind: Any) -> None:
        body = wanted(standing.branch_id, {"type": kind})
        status, message = create(standing, body)
        assert status == 400
        assert "endpoint.type" in message

    def test_an_unknown_branch(self, standing: Project) -> None:
        assert create(standing, wanted("br-no-where-123456")) == (404, "branch not found")

    def test_another_projects_branch(self, standing: Project) -> None:
        other = standing.client.new_project(wait=False)
        answer = create(standing, wanted(other["branch"]["id"]))
        assert answer == (404, "branch not found")

"""PATCH an endpoint's `branch_id` (specification, call 3 and rule 2)."""

import psycopg
import pytest

from tests.controlplane.fields import (
    ENDPOINT,
    ENDPOINT_AT_TIMES,
    OPERATION,
    OPERATION_AT_TIMES,
    assert_fields,
)
from tests.support.project import Project, refusal, wanted
from tests.support.waiting import wait_for


@pytest.fixture
def other_id(project: Project) -> str:
    """A branch to which the endpoint can be moved."""
    return project.new_branch_id()


def test_it_works(project: Project, other_id: str) -> None:
    response = project.client.call(
        "PATCH", project.endpoint_path(), json={"endpoint": {"branch_id": other_id}}
    )

    assert response.status_code == 200
    body = response.json()
    assert set(body) == {"endpoint", "operations"}
    assert_fields(body["endpoint"], ENDPOINT, ENDPOINT_AT_TIMES)
    assert body["endpoint"]["branch_id"] == other_id
    assert body["endpoint"]["pending_state"] == "idle"
    for operation in body["operations"]:
        assert_fields(operation, OPERATION, OPERATION_AT_TIMES)
        assert operation["endpoint_id"] == project.endpoint_id
        assert operation["branch_id"] == other_id
    assert [(o["action"], o["status"]) for o in body["operations"]] == [
        ("apply_config", "running"),
        ("suspend_compute", "scheduling"),
    ]
    project.done(body)
    assert project.endpoint()["current_state"] == "idle"
    assert not project.is_running()


@pytest.mark.thorough
def test_a_reassigned_endpoint_wakes_on_its_new_branch(project: Project, other_id: str) -> None:
    project.sql("CREATE TABLE here AS SELECT 'old branch' AS place")

    project.change(branch_id=other_id)
    project.start()

    assert project.sql("SELECT to_regclass('here')") == [(None,)]
    project.change(branch_id=project.branch_id)
    project.start()
    assert project.sql("SELECT place FROM here") == [("old branch",)]


def test_its_old_connections_are_dropped(project: Project, other_id: str) -> None:
    with project.compute() as connection:
        answer = project.client.patch(
            project.endpoint_path(), {"endpoint": {"branch_id": other_id}}
        )
        project.done(answer)
        with pytest.raises(psycopg.errors.AdminShutdown):
            connection.execute("SELECT 1")


@pytest.mark.thorough
def test_the_former_branch_can_have_another_endpoint(project: Project, other_id: str) -> None:
    answer = project.client.patch(project.endpoint_path(), {"endpoint": {"branch_id": other_id}})
    created = project.client.post(project.path + "/endpoints", wanted(project.branch_id))
    project.done(answer)
    project.done(created)
    assert project.endpoint(created["endpoint"]["id"])["current_state"] == "active"
    assert project.endpoint()["branch_id"] == other_id


def test_sending_all_fields_back_is_not_a_change(project: Project) -> None:
    """The Terraform provider does this."""
    before = project.endpoint()
    answer = project.client.patch(project.endpoint_path(), {"endpoint": before})
    assert answer == {"endpoint": before, "operations": []}


@pytest.mark.thorough
def test_an_occupied_branch_is_refused(project: Project) -> None:
    branch = project.new_branch(endpoint=True)
    before = project.endpoint()
    body = {"endpoint": {"branch_id": branch["branch"]["id"]}}
    status, message = refusal(project.client.call("PATCH", project.endpoint_path(), json=body))
    assert status == 409
    assert branch["endpoints"][0]["id"] in message
    assert project.endpoint() == before


@pytest.mark.thorough
def test_a_branch_that_is_being_deleted_is_refused(project: Project, other_id: str) -> None:
    with project.locked(other_id):
        going = project.client.delete(project.branch_path(other_id))
        body = {"endpoint": {"branch_id": other_id}}
        response = project.client.call("PATCH", project.endpoint_path(), json=body)
        assert refusal(response)[0] == 423
        response = project.client.call("POST", project.path + "/endpoints", json=wanted(other_id))
        assert refusal(response)[0] == 423
    project.done(going)


@pytest.mark.thorough
def test_a_start_in_progress_ends_before_the_endpoint_moves(
    project: Project, other_id: str
) -> None:
    project.suspend()
    with project.locked():
        started = project.client.post(project.endpoint_path(rest="/start"))
        moved = project.client.patch(project.endpoint_path(), {"endpoint": {"branch_id": other_id}})
        assert [o["status"] for o in moved["operations"]] == ["scheduling", "scheduling"]
    project.done(started)
    project.done(moved)
    assert project.endpoint()["current_state"] == "idle"
    wait_for(lambda: not project.is_running(), "the end of the compute")


@pytest.mark.thorough
def test_it_can_be_moved_again_before_it_has_arrived(project: Project, other_id: str) -> None:
    third_id = project.new_branch_id()
    with project.locked():
        answers = [
            project.client.patch(project.endpoint_path(), {"endpoint": {"branch_id": branch_id}})
            for branch_id in (other_id, third_id)
        ]
    for answer in answers:
        project.done(answer)
    project.start()
    assert project.endpoint()["branch_id"] == third_id
    assert project.stack.data_dir(third_id).joinpath("postmaster.pid").exists()
    for branch_id in (project.branch_id, other_id):
        assert not project.stack.data_dir(branch_id).joinpath("postmaster.pid").exists()


@pytest.mark.thorough
def test_a_branch_that_cannot_start_leaves_the_endpoint_there_idle(
    project: Project, other_id: str
) -> None:
    data = project.stack.data_dir(other_id)
    kept = data.rename(data.with_name("kept"))

    answer = project.client.patch(project.endpoint_path(), {"endpoint": {"branch_id": other_id}})
    applied, suspended = project.client.finish(answer)

    assert applied["status"] == "failed"
    assert applied["error"].startswith(f"the branch {other_id} has no data; have this host's")
    assert suspended["status"] == "failed"
    reason = f"not run: the operation {applied['id']} (apply_config) of the same chain failed: "
    assert suspended["error"] == reason + applied["error"]
    endpoint = project.endpoint()
    assert (endpoint["branch_id"], endpoint["current_state"]) == (other_id, "idle")
    kept.rename(data)
    project.start()

"""DELETE /projects/{project_id}/endpoints/{endpoint_id} (specification, call 4 and rule 3)."""

import psycopg
import pytest

from tests.controlplane.fields import ENDPOINT, ENDPOINT_AT_TIMES, assert_fields
from tests.support.project import Project, refusal
from tests.support.waiting import wait_for


def test_it_works(project: Project) -> None:
    before = project.endpoint()

    response = project.client.call("DELETE", project.endpoint_path())

    assert response.status_code == 200
    body = response.json()
    assert body == {"endpoint": before, "operations": []}
    assert_fields(body["endpoint"], ENDPOINT, ENDPOINT_AT_TIMES)
    assert refusal(project.client.call("GET", project.endpoint_path()))[0] == 404
    wait_for(lambda: not project.is_running(), "the end of the compute")


def test_its_connections_are_dropped_at_once(project: Project) -> None:
    with project.compute() as connection:
        project.client.delete(project.endpoint_path())

        def is_dropped() -> bool:
            try:
                connection.execute("SELECT 1")
            except psycopg.OperationalError:
                return True
            return False

        wait_for(is_dropped, "the end of the connection", timeout=2)


@pytest.mark.thorough
def test_its_data_stays(project: Project) -> None:
    project.sql("CREATE TABLE kept AS SELECT 7 AS number")
    project.client.delete(project.endpoint_path())

    created = project.create_endpoint(project.branch_id)["endpoint"]
    assert project.sql("SELECT number FROM kept", endpoint_id=created["id"]) == [(7,)]


@pytest.mark.thorough
def test_a_waiting_start_fails_with_the_reason(project: Project) -> None:
    project.suspend()
    with project.locked():
        start = project.client.post(project.endpoint_path(rest="/start"))
        project.client.delete(project.endpoint_path())
    (operation,) = project.client.finish(start)
    assert operation["status"] == "failed"
    assert operation["error"] == "the endpoint was deleted"
    wait_for(lambda: not project.is_running(), "the end of the compute")


@pytest.mark.thorough
def test_a_deleted_endpoint_does_not_prevent_the_deletion_of_its_branch(project: Project) -> None:
    branch = project.new_branch(endpoint=True)
    branch_id, endpoint_id = branch["branch"]["id"], branch["endpoints"][0]["id"]
    with project.locked(branch_id):
        going = project.client.delete(project.branch_path(branch_id))
        project.client.delete(project.endpoint_path(endpoint_id))
    project.done(going)
    assert not project.stack.data_dir(branch_id).exists()

"""List, start, suspend, restart, disable and delete endpoints (specification, calls 2 and 4)."""

import psycopg
import pytest

from tests.controlplane.fields import ENDPOINT, ENDPOINT_AT_TIMES, assert_fields
from tests.support.client import Client
from tests.support.project import Project, refusal, wanted
from tests.support.waiting import wait_for


def test_a_suspend_and_a_start(project: Project) -> None:
    project.sql("CREATE TABLE kept AS SELECT 7 AS number")
    answer = project.client.post(project.endpoint_path(rest="/suspend"))
    assert [(o["action"], o["status"]) for o in answer["operations"]] == [
        ("suspend_compute", "running")
    ]
    assert_fields(answer["endpoint"], ENDPOINT, ENDPOINT_AT_TIMES)
    assert answer["endpoint"]["pending_state"] == "idle"
    project.done(answer)
    endpoint = project.endpoint()
    assert (endpoint["current_state"], "suspended_at" in endpoint) == ("idle", True)
    assert not project.is_running()

    answer = project.client.post(project.endpoint_path(rest="/start"))
    assert [(o["action"], o["status"]) for o in answer["operations"]] == [
        ("start_compute", "running")
    ]
    assert answer["endpoint"]["current_state"] == "idle"
    assert answer["endpoint"]["pending_state"] == "active"
    project.done(answer)
    assert project.endpoint()["current_state"] == "active"
    assert project.is_running()
    assert project.sql("SELECT number FROM kept") == [(7,)]


@pytest.mark.thorough
def test_a_request_for_the_present_state_needs_no_operation(project: Project) -> None:
    for action, state in (("start", "active"), ("suspend", "idle")):
        project.done(project.client.post(project.endpoint_path(rest=f"/{action}")))
        again = project.client.post(project.endpoint_path(rest=f"/{action}"))
        assert again["operations"] == []
        assert again["endpoint"]["current_state"] == state
        assert "pending_state" not in again["endpoint"]


def test_suspending_drops_connections(project: Project) -> None:
    with project.compute() as connection:
        project.suspend()
        with pytest.raises(psycopg.errors.AdminShutdown):
            connection.execute("SELECT 1")


def test_a_start_after_a_suspend_waits_for_it(project: Project) -> None:
    with project.locked():
        first = project.client.post(project.endpoint_path(rest="/suspend"))
        second = project.client.post(project.endpoint_path(rest="/start"))
        assert [o["status"] for o in first["operations"] + second["operations"]] == [
            "running",
            "scheduling",
        ]
        assert project.endpoint()["pending_state"] == "active"
    project.done(first)
    project.done(second)
    assert project.endpoint()["current_state"] == "active"


def test_a_restart_is_a_suspend_and_a_start(project: Project) -> None:
    (before,) = project.sql("SELECT pg_postmaster_start_time()")
    answer = project.client.post(project.endpoint_path(rest="/restart"))
    assert [(o["action"], o["status"]) for o in answer["operations"]] == [
        ("suspend_compute", "running"),
        ("start_compute", "scheduling"),
    ]
    project.done(answer)
    assert project.sql("SELECT pg_postmaster_start_time()") != [before]
    assert project.endpoint()["current_state"] == "active"


class TestDisabled:
    def test_it_is_suspended(self, project: Project) -> None:
        answer = project.client.patch(project.endpoint_path(), {"endpoint": {"disabled": True}})
        assert answer["endpoint"]["disabled"] is True
        assert answer["endpoint"]["pending_state"] == "idle"
        assert [o["action"] for o in answer["operations"]] == ["suspend_compute"]
        project.done(answer)
        assert project.endpoint()["current_state"] == "idle"
        assert not project.is_running()

    @pytest.mark.thorough
    def test_it_refuses_to_start(self, project: Project) -> None:
        project.change(disabled=True)
        for action in ("start", "restart"):
            response = project.client.call("POST", project.endpoint_path(rest=f"/{action}"))
            assert refusal(response) == (406, "endpoint is disabled")
        assert project.endpoint()["current_state"] == "idle"

    @pytest.mark.thorough
    def test_it_starts_after_it_was_enabled_again(self, project: Project) -> None:
        project.change(disabled=True)
        answer = project.client.patch(project.endpoint_path(), {"endpoint": {"disabled": False}})
        assert answer["operations"] == []
        assert answer["endpoint"]["current_state"] == "idle"
        project.start()
        assert project.is_running()

    @pytest.mark.thorough
    def test_an_endpoint_that_is_disabled_during_its_start_ends_idle(
        self, project: Project
    ) -> None:
        project.suspend()
        with project.locked():
            started = project.client.post(project.endpoint_path(rest="/start"))
            disabled = project.client.patch(
                project.endpoint_path(), {"endpoint": {"disabled": True}}
            )
        project.done(started)
        project.done(disabled)
        assert project.endpoint()["current_state"] == "idle"
        assert not project.is_running()


def test_a_projects_endpoints_are_listed(project: Project) -> None:
    other = project.create_endpoint(project.new_branch_id())["endpoint"]

    body = project.client.get(project.path + "/endpoints")

    assert set(body) == {"endpoints"}
    assert [endpoint["id"] for endpoint in body["endpoints"]] == [project.endpoint_id, other["id"]]
    for endpoint in body["endpoints"]:
        assert_fields(endpoint, ENDPOINT, ENDPOINT_AT_TIMES)
        assert "last_active" in endpoint


def test_the_pending_state_is_returned_for_one_endpoint_but_not_in_lists(project: Project) -> None:
    with project.locked():
        answer = project.client.post(project.endpoint_path(rest="/suspend"))
        assert answer["endpoint"]["pending_state"] == "idle"
        assert project.endpoint()["pending_state"] == "idle"
        assert "pending_state" not in project.endpoints()[0]
    project.done(answer)
    assert "pending_state" not in project.endpoint()


@pytest.mark.thorough
def test_a_branch_lists_its_endpoint(project: Project) -> None:
    branch = project.new_branch(endpoint=True)
    path = project.branch_path(branch["branch"]["id"], "/endpoints")
    listed = project.client.get(path)["endpoints"]
    assert [endpoint["id"] for endpoint in listed] == [branch["endpoints"][0]["id"]]
    assert_fields(listed[0], ENDPOINT, ENDPOINT_AT_TIMES)
    assert "pending_state" not in listed[0]


def test_another_projects_endpoint_is_not_found(standing: Project, alice: Client) -> None:
    own = standing.client.new_project(wait=False)
    path = f"/projects/{own['project']['id']}/endpoints/{standing.endpoint_id}"
    assert refusal(standing.client.call("GET", path)) == (404, "endpoint not found")
    body = wanted(own["branch"]["id"])
    response = standing.client.call("PATCH", standing.endpoint_path(), json=body)
    assert refusal(response) == (404, "branch not found")


def test_a_deletion(project: Project) -> None:
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

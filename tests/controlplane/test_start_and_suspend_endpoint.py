"""POST start, suspend and restart of an endpoint; disabled endpoints."""

import psycopg
import pytest

from tests.controlplane.fields import ENDPOINT, ENDPOINT_AT_TIMES, assert_fields
from tests.support.project import Project, refusal


def test_it_works(project: Project) -> None:
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


def test_its_data_is_there_after_a_suspend(project: Project) -> None:
    project.sql("CREATE TABLE kept AS SELECT 7 AS number")
    project.suspend()
    project.start()
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

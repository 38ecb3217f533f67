"""The steps of an operation, as the API returns them."""

from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.db import connection
from django.test import Client as DjangoClient
from django.test.utils import CaptureQueriesContext

from controlplane.compute import compute
from controlplane.compute.host import progress
from controlplane.compute.host.steps import Step, recording
from controlplane.compute.processes.occupants import processes_in
from controlplane.models import Account, Host, Operation
from tests.controlplane.local_compute import SPEC, branch, computes, postmaster
from tests.controlplane.rows import make_project
from tests.support.project import Project
from tests.support.waiting import wait_for

__all__ = ["branch", "computes"]

FROM_THE_QUEUE = ["queued", "picked_up"]


def steps(project: Project, operation_id: str) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = project.operation(operation_id)["steps"]
    return told


def names(told: list[dict[str, Any]]) -> list[str]:
    return [step["name"] for step in told]


def work(told: list[dict[str, Any]]) -> list[str]:
    """Leave out waits for other work on the branch, which may occur at any time."""
    return [name for name in names(told) if name != "locking"]


def assert_in_order(told: list[dict[str, Any]]) -> None:
    """Check that every step has its fields, and that none begins before the previous one has
    ended."""
    ended = ""
    for step in told:
        assert set(step) == {"name", "started_at", "finished_at", "duration_ms", "detail"}
        assert ended <= step["started_at"], told
        if step["finished_at"] is None:
            assert step["duration_ms"] is None
            assert step is told[-1]
            return
        took = moment(step["finished_at"]) - moment(step["started_at"])
        assert step["duration_ms"] == round(took.total_seconds() * 1000) >= 0
        ended = step["finished_at"]


def moment(text: str) -> datetime:
    assert len(text) == len("2026-01-02T03:04:05.678901Z"), text
    return datetime.fromisoformat(text)


def test_the_steps_of_a_wake(project: Project) -> None:
    project.suspend()
    uri = project.created["connection_uris"][0]["connection_uri"]
    with psycopg.connect(uri, hostaddr="127.0.0.1") as client:
        client.execute("SELECT 1")
    wake = project.operation(project.operations()[0]["id"])
    told = wake["steps"]
    assert work(told) == [*FROM_THE_QUEUE, "starting", "ready", "publishing"]
    assert_in_order(told)
    assert told[1]["detail"] == {"attempt": 1}
    assert wake["initiator"]["type"] == "client"
    assert abs(sum(step["duration_ms"] for step in told) - wake["total_duration_ms"]) < 100


def test_the_steps_of_a_projects_creation(fresh_project: Project) -> None:
    created, started = fresh_project.created["operations"]
    told = steps(fresh_project, created["id"])
    assert work(told) == [*FROM_THE_QUEUE, "copying", "syncing", "publishing"]
    assert told[2]["detail"]["bytes"] > 1 << 20
    told = steps(fresh_project, started["id"])
    started_work = ["starting", "ready", "applying_catalog", "publishing"]
    assert work(told) == ["waiting", *FROM_THE_QUEUE, *started_work]
    assert_in_order(told)
    assert told[0]["detail"] == {"operation_id": created["id"]}
    assert "steps" not in fresh_project.operations()[0]


@pytest.mark.parametrize("is_recent", [True, False])
def test_a_copy_of_a_running_branch_replays_its_log(project: Project, is_recent: bool) -> None:
    # A lot of log, so that a checkpoint is worth while.
    log = "SELECT pg_logical_emit_message(true, 'test', repeat('x', 10000000))"
    project.sql("CHECKPOINT" if is_recent else log)
    made = project.new_branch(endpoint=True)
    copied, started = (steps(project, operation["id"]) for operation in made["operations"])
    copy = ["copying", "copying_log", "taking_base", "syncing"]
    before = [] if is_recent else ["writing_checkpoint"]
    assert work(copied) == [*FROM_THE_QUEUE, *before, *copy, "publishing"]
    assert work(started)[3:6] == ["starting", "recovering", "ready"]
    assert_in_order(copied)
    assert_in_order(started)


def test_a_log_that_is_redone_between_two_looks_is_told_of(
    branch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute.start(SPEC)
    postmaster().kill()
    wait_for(lambda: processes_in(branch) == [], "its processes to end")
    # The first look comes too early, and the next one when it has long been ready.
    monkeypatch.setattr(progress, "MIN_POLL_INTERVAL", 3.0)
    monkeypatch.setattr(progress, "MAX_POLL_INTERVAL", 3.0)
    told: list[Step] = []
    with recording(told):
        compute.start(SPEC)
    assert [one.name for one in told][:3] == ["starting", "recovering", "ready"]


@pytest.mark.thorough
def test_a_long_operation_reports_its_progress(project: Project) -> None:
    with project.locked():
        suspended = project.client.post(project.endpoint_path(rest="/suspend"))["operations"][0]
        started = project.client.post(project.endpoint_path(rest="/start"))["operations"][0]
        waits = steps(project, started["id"])
        assert names(waits) == ["waiting"]
        assert waits[0]["finished_at"] is None
        assert waits[0]["detail"] == {"operation_id": suspended["id"]}
        # The number of steps depends on whether they were written yet and on who holds the branch.
        wait_for(lambda: names(steps(project, suspended["id"]))[1:] != [], "the worker")
        assert names(steps(project, suspended["id"]))[:2] == FROM_THE_QUEUE
        wait_for(lambda: names(steps(project, suspended["id"]))[2:] != [], "a step that lasts")
        told = steps(project, suspended["id"])
        assert names(told) == [*FROM_THE_QUEUE, "locking"]
        assert_in_order(told)
        assert told[-1]["finished_at"] is None
    for operation in (suspended, started):
        project.client.ended(project.id, operation["id"])
        told = steps(project, operation["id"])
        assert_in_order(told)
        assert told[-1]["finished_at"] is not None
    assert told[0]["duration_ms"] > 500


@pytest.mark.thorough
def test_a_failed_attempt_says_in_which_step(project: Project) -> None:
    project.suspend()
    control = project.stack.data_dir(project.branch_id) / "global/pg_control"
    control.rename(control.with_suffix(".away"))
    started = project.client.post(project.endpoint_path(rest="/start"))["operations"][0]
    wait_for(lambda: "pausing" in names(steps(project, started["id"])), "the first pause")
    control.with_suffix(".away").rename(control)
    ended = project.client.ended(project.id, started["id"])
    told = steps(project, started["id"])
    assert ended["status"] == "finished"
    first = told[: names(told).index("pausing") + 1]
    assert work(first) == [*FROM_THE_QUEUE, "starting", "pausing"]
    assert "could not find the database system" in first[2]["detail"]["error"]
    assert str(project.stack.state_dir) not in str(told)
    assert 400 < first[3]["duration_ms"] < 700
    assert work(told)[-5:] == [*FROM_THE_QUEUE, "starting", "ready", "publishing"]
    assert told[-4]["detail"] == {"attempt": 1 + ended["failures_count"]}
    assert_in_order(told)


def test_an_operation_beyond_the_projects_share_says_so(
    api: DjangoClient, account: Account, host: Host
) -> None:
    project = make_project(account, host, size=9)
    endpoints = project.endpoints.values_list("id", flat=True)
    for endpoint_id in endpoints:
        path = f"/api/v2/projects/{project.id}/endpoints/{endpoint_id}/start"
        assert api.post(path).status_code == 200
    newest = Operation.objects.filter(project=project).order_by("-created_at")[0]
    answer = api.get(f"/api/v2/projects/{project.id}/operations/{newest.id}")
    (told,) = answer.json()["operation"]["steps"]
    assert (told["name"], told["detail"]) == ("waiting", {"operations_at_once": 8})


@pytest.mark.parametrize("query", ["", "?status=finished&action=start_compute"])
def test_lists_do_not_read_the_steps(
    api: DjangoClient, account: Account, host: Host, query: str
) -> None:
    project = make_project(account, host, size=2)
    with CaptureQueriesContext(connection) as captured:
        body = api.get(f"/api/v2/projects/{project.id}/operations{query}").json()
    assert len(body["operations"]) == 2
    assert "steps" not in body["operations"][0]
    assert not [one["sql"] for one in captured if "steps" in one["sql"]]

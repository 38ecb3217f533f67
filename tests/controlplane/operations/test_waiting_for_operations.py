"""GET /projects/{project_id}/operations/{operation_id}?wait=SECONDS."""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from tests.support.client import Client
from tests.support.project import Project, refusal
from tests.support.waiting import wait_for

MANY = 100


def waited(client: Client, project: Project, operation: Any, seconds: int = 60) -> Any:
    path = f"{project.path}/operations/{operation['id']}"
    return client.get(path, wait=seconds)["operation"]


def test_it_answers_as_soon_as_the_operation_has_ended(project: Project) -> None:
    suspended = project.client.post(project.endpoint_path(rest="/suspend"))["operations"][0]
    began = time.monotonic()
    assert waited(project.client, project, suspended)["status"] == "finished"
    assert time.monotonic() - began < 10
    # An operation that has ended is returned at once.
    began = time.monotonic()
    assert waited(project.client, project, suspended)["status"] == "finished"
    assert time.monotonic() - began < 5


def test_waiting_for_the_last_operation_waits_for_the_chain(project: Project) -> None:
    made = project.client.post(project.path + "/branches", {"endpoints": [{"type": "read_write"}]})
    assert waited(project.client, project, made["operations"][-1])["status"] == "finished"
    for operation in made["operations"]:
        assert project.operation(operation["id"])["status"] == "finished"


def test_it_answers_after_the_given_time_in_any_case(project: Project) -> None:
    with project.locked():
        suspended = project.client.post(project.endpoint_path(rest="/suspend"))["operations"][0]
        began = time.monotonic()
        assert waited(project.client, project, suspended, 1)["status"] == "running"
        assert 0.9 < time.monotonic() - began < 10
    waited(project.client, project, suspended)


@pytest.mark.thorough
def test_waiting_requests_use_no_capacity_of_others(project: Project) -> None:
    """Many more than an account's share of requests, and than there are database connections."""
    with ThreadPoolExecutor(MANY) as threads:
        with project.locked():
            suspended = project.client.post(project.endpoint_path(rest="/suspend"))["operations"][0]
            waits: list[Future[Any]] = []
            while len(waits) < MANY:
                # A few at a time, because each counts as a request until it waits.
                for _ in range(10):
                    client = project.client.another()
                    waits.append(threads.submit(waited, client, project, suspended))
                wait_for(lambda: project.client.call("GET", project.path).ok, "room for others")
            for _ in range(20):
                assert project.client.call("GET", project.path).ok
            assert not any(wait.done() for wait in waits)
        assert {wait.result()["status"] for wait in waits} == {"finished"}


@pytest.mark.parametrize("seconds", ["-1", "61", "many", "1.5", "nan"])
def test_seconds_out_of_range(standing: Project, seconds: str) -> None:
    operation = standing.operations()[0]
    path = f"{standing.path}/operations/{operation['id']}?wait={seconds}"
    status, message = refusal(standing.client.call("GET", path))
    assert (status, message.startswith("invalid request: decode query: invalid: wait (")) == (
        400,
        True,
    )

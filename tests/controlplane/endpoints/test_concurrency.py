"""Simultaneous requests: one succeeds, the others are refused, and other accounts never wait."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest
import requests

from tests.support.client import Client
from tests.support.project import Project, refusal, wanted
from tests.support.waiting import wait_for

CALLERS = 8


def together(*calls: Callable[[Client], requests.Response], key: Project) -> list[Any]:
    """Make the calls at the same moment, each over a connection of its own."""
    start = threading.Barrier(len(calls))

    def run(call: Callable[[Client], requests.Response]) -> requests.Response:
        client = Client(key.client.api_url, key.client.key)
        client.call("GET", "/users/me")  # opens the connection beforehand
        start.wait()
        return call(client)

    with ThreadPoolExecutor(len(calls)) as threads:
        return list(threads.map(run, calls))


def winners(responses: Sequence[requests.Response], *, refused_with: int) -> list[Any]:
    """Return the bodies of the requests that succeeded. All others must have the same refusal."""
    for response in responses:
        if not response.ok:
            assert refusal(response)[0] == refused_with
    return [response.json() for response in responses if response.ok]


class TestOneWins:
    def test_simultaneous_creates_on_one_branch(self, project: Project) -> None:
        branch_id = project.new_branch_id()
        body = wanted(branch_id)
        for _ in range(5):
            responses = together(
                *[lambda c: c.call("POST", project.path + "/endpoints", json=body)] * CALLERS,
                key=project,
            )
            (won,) = winners(responses, refused_with=409)
            on_branch = [e for e in project.endpoints() if e["branch_id"] == branch_id]
            assert [endpoint["id"] for endpoint in on_branch] == [won["endpoint"]["id"]]
            for response in responses:
                assert won["endpoint"]["id"] in response.text
            project.client.delete(project.endpoint_path(won["endpoint"]["id"]))

    @pytest.mark.thorough
    def test_simultaneous_reassignments_to_one_branch(self, project: Project) -> None:
        goal = project.new_branch_id()
        movers = [project.endpoint_id]
        for _ in range(3):
            body = wanted(project.new_branch_id(), {"disabled": True})
            created = project.client.post(project.path + "/endpoints", body)
            movers.append(created["endpoint"]["id"])
        before = {endpoint["id"]: endpoint["branch_id"] for endpoint in project.endpoints()}

        def move(endpoint_id: str) -> Callable[[Client], requests.Response]:
            body = {"endpoint": {"branch_id": goal}}
            return lambda c: c.call("PATCH", project.endpoint_path(endpoint_id), json=body)

        responses = together(*map(move, movers), key=project)
        (won,) = winners(responses, refused_with=409)
        project.done(won)
        after = {endpoint["id"]: endpoint["branch_id"] for endpoint in project.endpoints()}
        assert after == before | {won["endpoint"]["id"]: goal}

    @pytest.mark.thorough
    def test_simultaneous_deletes(self, project: Project) -> None:
        responses = together(
            *[lambda c: c.call("DELETE", project.endpoint_path())] * CALLERS, key=project
        )
        assert len(winners(responses, refused_with=404)) == 1


class TestOneOperationForAll:
    @pytest.mark.thorough
    @pytest.mark.parametrize("action", ["start", "suspend"])
    def test_simultaneous_requests_yield_one_operation(self, project: Project, action: str) -> None:
        if action == "start":
            project.suspend()
        with project.locked():
            responses = together(
                *[lambda c: c.call("POST", project.endpoint_path(rest=f"/{action}"))] * CALLERS,
                key=project,
            )
            answers = winners(responses, refused_with=0)
            assert len(answers) == CALLERS
            ids = {operation["id"] for answer in answers for operation in answer["operations"]}
            assert len(ids) == 1
        project.done(answers[0])


class TestOrder:
    @pytest.mark.thorough
    def test_the_operations_of_a_chain_run_in_order(self, fresh_project: Project) -> None:
        with fresh_project.locked():
            answers = [
                fresh_project.client.post(fresh_project.endpoint_path(rest=f"/{action}"))
                for action in ("suspend", "start", "restart", "suspend")
            ]
            waiting = [o["status"] for a in answers for o in a["operations"]]
            assert waiting == ["running", *["scheduling"] * 4]
        for answer in answers:
            fresh_project.done(answer)
        with fresh_project.stack.database() as connection:
            rows = connection.execute(
                "SELECT dispatched_at, updated_at FROM controlplane_operation"
                " WHERE project_id = %s ORDER BY created_at",
                [fresh_project.id],
            ).fetchall()
        for (_, ended), (began, _) in pairwise(rows):
            assert ended <= began

    @pytest.mark.thorough
    def test_a_hanging_endpoint_delays_no_other(self, project: Project) -> None:
        other = project.new_branch(endpoint=True)["endpoints"][0]["id"]
        stranger = Project.create(project.stack, project.client)
        with project.locked():
            wedged = project.client.post(project.endpoint_path(rest="/restart"))
            for action in ("suspend", "start"):
                for endpoint, of in ((other, project), (stranger.endpoint_id, stranger)):
                    path = of.endpoint_path(endpoint, f"/{action}")
                    of.done(of.client.post(path), timeout=10)
            statuses = [project.operation(o["id"])["status"] for o in wedged["operations"]]
            assert statuses == ["running", "scheduling"]
            # Reads do not wait either.
            assert project.endpoint()["pending_state"] == "active"
        project.done(wedged)
        stranger.client.delete(stranger.path)

    @pytest.mark.thorough
    def test_every_request_waits_for_the_deletion_of_its_project(self, project: Project) -> None:
        with project.locked():
            restart = project.client.post(project.endpoint_path(rest="/restart"))
            project.client.delete(project.path)
            rows = self.operations(project)
            assert rows[-2:] == [("start_compute", "failed"), ("delete_tenant", "scheduling")]
        wait_for(
            lambda: self.operations(project)[-1] == ("delete_tenant", "finished"),
            "the end of the project",
        )
        assert restart["operations"][0]["action"] == "suspend_compute"
        assert not project.stack.data_dir(project.branch_id).parent.exists()

    @staticmethod
    def operations(project: Project) -> list[tuple[Any, ...]]:
        with project.stack.database() as connection:
            return connection.execute(
                "SELECT action, status FROM controlplane_operation WHERE project_id = %s"
                " ORDER BY created_at",
                [project.id],
            ).fetchall()

"""Any process may be killed at any moment: every operation still ends, and the state is right."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests

from tests.controlplane.operations.test_reconciliation import age, look_now
from tests.controlplane.operations.test_step_history import (
    FROM_THE_QUEUE,
    assert_in_order,
    names,
    steps,
)
from tests.support.processes import is_alive
from tests.support.project import locked
from tests.support.service import Service, stranger
from tests.support.waiting import wait_for
from tests.torture.ground import Ground
from tests.torture.run import summary, torture
from tests.torture.world import Size


@pytest.mark.thorough
def test_the_worker_during_each_kind_of_operation(service: Service) -> None:
    project, doomed = service.project(), service.project()
    project.sql("CREATE TABLE kept AS SELECT 7 AS number")
    with ExitStack() as locks:

        def branch() -> tuple[str, str]:
            """Create a branch with an endpoint, whose operations will be held half-way."""
            made = project.new_branch(endpoint=True)
            return made["branch"]["id"], made["endpoints"][0]["id"]

        def stop_at(branch_id: str) -> None:
            locks.enter_context(locked(service.stack, branch_id))

        (started, to_start), (suspended, to_suspend) = branch(), branch()
        (changed, to_change), (checked, _) = branch(), branch()
        (left, to_move), (deleted, _) = branch(), branch()
        project.suspend(to_start)
        for other in (to_start, to_suspend, to_change, to_move):
            project.client.patch(
                project.endpoint_path(other), {"endpoint": {"suspend_timeout_seconds": -1}}
            )
        goal = project.new_branch_id()
        for branch_id in (started, suspended, changed, checked, left, deleted, doomed.branch_id):
            stop_at(branch_id)
        age(project, 3)
        look_now(service.stack)  # checks all of them; the next operations wait
        post, patch = project.client.post, project.client.patch
        post(project.endpoint_path(to_start, "/start"))
        post(project.endpoint_path(to_suspend, "/suspend"))
        patch(
            project.endpoint_path(to_change),
            {"endpoint": {"settings": {"pg_settings": {"max_prepared_transactions": "3"}}}},
        )
        patch(project.endpoint_path(to_move), {"endpoint": {"branch_id": goal}})
        project.client.delete(project.branch_path(deleted))
        service.client.delete(doomed.path)
        # These two are killed while they copy.
        post(project.path + "/branches", {"endpoints": [{"type": "read_write"}]})
        service.client.post("/projects", {"project": {}})
        branches = service.state_dir / "branches"
        wait_for(lambda: any(branches.glob(".br-*/data/base")), "the middle of a copy")
        service.kill("worker")
    service.settle()

    operations = service.operations()
    assert {operation["action"] for operation in operations} == {
        *("create_timeline", "create_branch", "start_compute", "suspend_compute"),
        *("apply_config", "check_availability", "delete_timeline", "delete_tenant"),
    }
    assert [o for o in operations if o["status"] == "failed"] == []
    states = {endpoint["id"]: endpoint["current_state"] for endpoint in project.endpoints()}
    assert states[to_start] == states[to_change] == "active"
    assert states[to_suspend] == states[to_move] == "idle"
    assert project.sql("SHOW max_prepared_transactions", endpoint_id=to_change) == [("3",)]
    assert project.sql("SELECT number FROM kept", endpoint_id=to_start) == [(7,)]
    assert not service.stack.data_dir(deleted).exists()
    assert not service.stack.data_dir(doomed.branch_id).exists()


@pytest.mark.thorough
def test_an_interrupted_attempt_is_recorded_by_the_next(service: Service) -> None:
    project = service.project()

    def is_picked_up() -> bool:
        with service.stack.database() as connection:
            row = connection.execute(
                "SELECT count(*) FROM controlplane_job"
                " WHERE taken_by IS NOT NULL AND task = 'run_operation'"
            ).fetchone()
        return row == (1,)

    def told() -> list[dict[str, Any]]:
        return steps(project, suspended["id"])

    with project.locked():
        suspended = project.client.post(project.endpoint_path(rest="/suspend"))["operations"][0]
        # Kill it at once, before this attempt can have written any step.
        wait_for(is_picked_up, "the first attempt")
        service.kill("worker")
        again = [*FROM_THE_QUEUE, *FROM_THE_QUEUE, "locking"]
        wait_for(lambda: names(told()) == again, "the second attempt", timeout=60)
        service.kill("worker")
        again += [*FROM_THE_QUEUE, "locking"]
        wait_for(lambda: names(told()) == again, "the third attempt", timeout=60)
    ended = project.client.ended(project.id, suspended["id"])
    assert (ended["status"], ended["failures_count"]) == ("finished", 0)
    story = told()
    assert names(story) == [*again, "stopping", "publishing"]
    assert_in_order(story)
    cut_off = [place for place, step in enumerate(story) if "error" in step["detail"]]
    assert cut_off == [1, 4]
    assert all("interrupted" in story[place]["detail"]["error"] for place in cut_off)


@pytest.mark.thorough
@pytest.mark.parametrize("which", [0, -1], ids=["master", "worker"])
def test_the_api(service: Service, which: int) -> None:
    project = service.project()
    # Without its parent process, a worker process still answers for a moment.
    doomed = service.processes("api")[which:]
    with project.locked():
        suspended = project.client.post(project.endpoint_path(rest="/suspend"))
        service.kill("api", which=which)
    wait_for(lambda: not any(map(is_alive, doomed)) and service.answers(), "the API", timeout=60)
    project.client = project.client.another()
    project.done(suspended)
    service.settle()


@pytest.mark.thorough
def test_the_metadata_database(service: Service) -> None:
    project = service.project()
    with project.locked():
        restarted = project.client.post(project.endpoint_path(rest="/restart"))
        service.kill("metadata")
        # Requests are refused meanwhile with a message of the API, or wait.
        response = project.client.call("GET", project.path)
        assert response.status_code in (200, 503)
        assert "request_id" in response.text or response.ok
    wait_for(service.answers, "the API", timeout=60)
    project.done(restarted)
    assert project.sql("SELECT 1") == [(1,)]
    service.settle()


@pytest.mark.thorough
def test_a_metadata_database_that_hangs(service: Service) -> None:
    project = service.project()
    health = service.stack.api_url.replace("/api/v2", "/healthz")
    key = {"Authorization": f"Bearer {project.client.key}"}
    asked = [project.client.api_url + project.path] * 4 + [health]
    with hanging(service, "metadata"), ThreadPoolExecutor(len(asked)) as threads:
        # Twice: with the existing connections, and when all of them are known to be dead.
        for _ in range(2):
            answers = list(
                threads.map(lambda url: requests.get(url, headers=key, timeout=30), asked)
            )
            assert [answer.status_code for answer in answers] == [503] * len(asked)
            assert max(answer.elapsed.total_seconds() for answer in answers) < 5
            assert "the database does not answer" in answers[0].json()["message"]
            assert answers[-1].json()["missing"] == ["database"]
    wait_for(service.answers, "the API")
    project.done(project.client.post(project.endpoint_path(rest="/restart")))
    service.settle()


@contextmanager
def hanging(service: Service, part: str) -> Iterator[None]:
    """Every process of the part is stopped while the block lasts."""
    stopped = service.processes(part)
    for root in list(stopped):
        stopped += [child for child in root.children(recursive=True) if child not in stopped]
    try:
        for process in stopped:
            with suppress(psutil.NoSuchProcess):
                process.suspend()
        yield
    finally:
        for process in stopped:
            with suppress(psutil.NoSuchProcess):
                process.resume()


@pytest.mark.thorough
def test_the_proxy_and_the_console(service: Service) -> None:
    for name in ("proxy", "console"):
        before = {process.pid for process in service.processes(name)}
        service.kill(name)
        wait_for(
            lambda name=name, before=before: (  # type: ignore[misc]
                {process.pid for process in service.processes(name)} - before
            ),
            f"another {name}",
        )
    wait_for(lambda: service.answers(service.stack.console_url), "the console")
    wait_for(service.answers, "the proxy")


@pytest.mark.thorough
def test_the_supervisor(service: Service) -> None:
    before = service.processes("supervisor")[0].pid
    service.kill("supervisor")
    wait_for(
        lambda: [p.pid for p in service.processes("supervisor")] not in ([], [before]),
        "another supervisor",
        timeout=60,
    )
    wait_for(service.answers, "the service", timeout=60)
    service.settle()
    assert service.project().sql("SELECT 1") == [(1,)]


@pytest.mark.thorough
def test_up_itself(service: Service) -> None:
    """The next `up` ends the processes that are left; computes keep running."""
    project = service.project()
    postmaster = project.postmaster()
    service.stack.process.kill()
    service.stack.process.wait(10)
    service.up()
    assert "Ended" in (service.state_dir / "up.log").read_text()
    service.settle()
    assert project.postmaster() == postmaster
    assert project.endpoint()["current_state"] == "active"


@pytest.mark.thorough
def test_everything_at_once_and_up_again(service: Service) -> None:
    project, doomed = service.project(), service.project()
    project.sql("CREATE TABLE kept AS SELECT 7 AS number")
    idle = project.new_branch(endpoint=True)
    idle_id = idle["endpoints"][0]["id"]
    project.suspend(idle_id)
    with project.locked(idle["branch"]["id"]), doomed.locked():
        started = project.client.post(project.endpoint_path(idle_id, "/start"))
        service.client.delete(doomed.path)
        made = project.client.post(project.path + "/branches")
        branches = service.state_dir / "branches"
        wait_for(lambda: any(branches.glob(".br-*/data")), "the middle of a copy")
        service.kill_everything()

    with stranger(service.state_dir / "metadata") as other:
        # As after a power cut, process ids begin anew.
        for pid_file in service.state_dir.glob("**/postmaster.pid"):
            lines = pid_file.read_text().splitlines(keepends=True)
            pid_file.write_text("".join([f"{other.pid}\n", *lines[1:]]))
        service.up()
    project.stack = service.stack
    service.settle()

    project.done(started)
    project.done(made)
    assert project.endpoint()["current_state"] == "idle"
    assert project.endpoint(idle_id)["current_state"] == "active"
    assert not service.stack.data_dir(doomed.branch_id).exists()
    project.start()
    assert project.sql("SELECT number FROM kept") == [(7,)]


SEED = 7
SECONDS = 15.0
SIZE = Size(
    accounts=2,
    projects=1,
    branches=3,
    users=1,
    writers=3,
    readers=1,
    blows=(0.3, 2.0),
    blows_per_restart=12,
)


@pytest.mark.thorough
def test_random_kills_and_stops_leave_everything_consistent(
    state_dir: Path, tmp_path: Path
) -> None:
    journal = torture(SEED, SECONDS, SIZE, Ground(state_dir), directory=tmp_path)
    assert not journal.breaks, f"see {tmp_path}\n{summary(journal)}"
    for kind in ("rows", "reads", "blows", "branches read"):
        assert journal.total(kind) > 0, f"no {kind}: {summary(journal)}"

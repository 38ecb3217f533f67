"""POST …/operations/{operation_id}/cancel and …/chains/{chain_id}/cancel."""

import random
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from controlplane.compute.host.cloning import shares_blocks
from tests.controlplane.cancel_retry import (
    SOON,
    begun,
    cancel,
    chain_path,
    ended,
    long_copies,
    retry,
    standing_worker,
    starting,
    steering_path,
    told,
    wedged_starts,
)
from tests.support.processes import is_alive
from tests.support.project import Project, refusal
from tests.support.waiting import wait_for


def refused(project: Project, path: str) -> tuple[int, str]:
    return refusal(project.client.call("POST", path))


def test_an_operation_that_waits_for_another_is_cancelled_at_once(project: Project) -> None:
    with project.locked():
        suspend, start = project.client.post(project.endpoint_path(rest="/restart"))["operations"]
        (cancelled,) = cancel(project, start)
        assert (cancelled["id"], cancelled["status"]) == (start["id"], "cancelled")
        assert cancelled["error"] == 'cancelled by the API key "tests"'
        assert cancel(project, start) == [cancelled]
    assert ended(project, suspend)["status"] == "finished"
    assert project.operation(start["id"]).items() >= cancelled.items()
    assert project.endpoint()["current_state"] == "idle"


def test_a_queued_operation_that_no_worker_has_taken(project: Project) -> None:
    with standing_worker(project.stack):
        (suspend,) = project.client.post(project.endpoint_path(rest="/suspend"))["operations"]
        assert suspend["status"] == "running"
        assert told(cancel(project, suspend)) == [("suspend_compute", "cancelled")]
        assert "pending_state" not in project.endpoint()
    assert project.sql("SELECT 1") == [(1,)]
    (again,) = retry(project, suspend)
    assert (again["retry_of"], ended(project, again)["status"]) == (suspend["id"], "finished")
    assert project.endpoint()["current_state"] == "idle"


def test_a_suspend_that_has_begun_cannot_be_cancelled(project: Project) -> None:
    with project.locked():
        suspend, start = project.client.post(project.endpoint_path(rest="/restart"))["operations"]
        begun(project, suspend)
        reason = "the endpoint is being suspended; start it again once that is over"
        assert refused(project, steering_path(project, suspend, "cancel")) == (409, reason)
        # The rest of the chain can.
        answer = project.client.post(chain_path(project, suspend, "cancel"))
        assert told(answer["operations"]) == [("start_compute", "cancelled")]
        assert project.client.post(chain_path(project, suspend, "cancel")) == answer
    assert ended(project, suspend)["status"] == "finished"
    assert start["id"] == answer["operations"][0]["id"]


@pytest.mark.thorough
def test_a_start_that_hangs(project: Project) -> None:
    project.suspend()
    with wedged_starts(project):
        (start,) = project.client.post(project.endpoint_path(rest="/start"))["operations"]
        postmaster = starting(project)
        began = time.monotonic()
        (cancelling,) = cancel(project, start)
        assert cancelling["status"] == "cancelling"
        assert "pending_state" not in project.endpoint()
        cancelled = ended(project, start, timeout=SOON)
        print(f"cancelled after {time.monotonic() - began:.2f} s")
        assert cancelled["status"] == "cancelled"
        assert cancelled["error"] == 'cancelled by the API key "tests"'
        assert not is_alive(postmaster)
        assert project.endpoint()["current_state"] == "idle"
        assert told(cancel(project, start)) == [("start_compute", "cancelled")]
    project.start()
    assert project.sql("SELECT 1") == [(1,)]


@pytest.mark.thorough
def test_a_start_whose_taking_a_crash_of_the_database_has_undone(project: Project) -> None:
    project.suspend()
    with wedged_starts(project):
        (start,) = project.client.post(project.endpoint_path(rest="/start"))["operations"]
        begun(project, start)
        postmaster = starting(project)
        with standing_worker(project.stack), project.stack.database() as database:
            # The commit of the taking does not wait for the disk.
            lost = "UPDATE controlplane_job SET taken_by = NULL WHERE subject = %s"
            database.execute(lost, [start["id"]])
            assert told(cancel(project, start)) == [("start_compute", "cancelled")]
        # The attempt goes on, and finds at its end that it has to leave nothing.
        wait_for(lambda: not is_alive(postmaster), "the compute to end", timeout=60)
        assert project.endpoint()["current_state"] == "idle"
    project.start()
    assert project.sql("SELECT 1") == [(1,)]


@pytest.mark.thorough
def test_an_attempt_that_waits_for_its_retry(project: Project) -> None:
    project.suspend()
    data = project.stack.data_dir(project.branch_id)
    control = data / "global" / "pg_control"
    kept = control.rename(data.parent / "pg_control.kept")
    (start,) = project.client.post(project.endpoint_path(rest="/start"))["operations"]
    # The pauses grow: the last is the longest.
    wait_for(lambda: project.operation(start["id"])["failures_count"] >= 2, "failed attempts")
    cancel(project, start)
    cancelled = ended(project, start, timeout=SOON)
    assert cancelled["status"] == "cancelled"
    assert "retry_at" not in cancelled
    kept.rename(control)
    assert project.endpoint()["current_state"] == "idle"
    project.start()


@pytest.mark.thorough
@pytest.mark.parametrize("whole", [True, False], ids=["chain", "operation"])
def test_a_long_copy(project: Project, whole: bool) -> None:
    branches = project.stack.state_dir / "branches"
    if shares_blocks(branches):
        pytest.skip("copies share their blocks here, and take no time")
    with long_copies(project):
        body = {"branch": {"name": "copy"}, "endpoints": [{"type": "read_write"}]}
        made = project.client.post(project.path + "/branches", body)
        branch_id, (endpoint,) = made["branch"]["id"], made["endpoints"]
        create, _ = made["operations"]
        staging = branches / f".{branch_id}"
        wait_for(lambda: (staging / "data" / "base").exists(), "the middle of a copy")
        path = chain_path if whole else steering_path
        answer = project.client.post(path(project, create, "cancel"))["operations"]
        assert told(answer) == [("create_branch", "cancelling"), ("start_compute", "cancelling")]
        assert (
            answer[1]["error"]
            == f"not run: the operation {create['id']} of the same chain was cancelled"
        )
        assert answer[1]["not_run_because"] == create["id"]
        # A request that waits for the last operation of a chain waits for all of them.
        assert ended(project, made["operations"][1], timeout=SOON)["status"] == "cancelled"
        assert project.operation(create["id"])["status"] == "cancelled"
        last = project.operation(made["operations"][1]["id"])
        assert last["not_run_because"] == create["id"]
        assert not staging.exists()
    assert not (branches / branch_id).exists()
    branch = project.branch(branch_id)
    assert branch["current_state"] == "init"
    assert "pending_state" not in branch
    assert project.endpoint(endpoint["id"])["current_state"] == "idle"
    # The parent keeps serving, and the branch can still be made afterwards.
    project.sql("CREATE TABLE later AS SELECT 7 AS number")
    again = project.start(endpoint["id"])
    assert told(again["operations"]) == [
        ("create_branch", "running"),
        ("start_compute", "scheduling"),
    ]
    assert project.sql("SELECT number FROM later", endpoint_id=endpoint["id"]) == [(7,)]


@pytest.mark.thorough
def test_a_copy_that_has_just_been_renamed_to_its_place(project: Project) -> None:
    """The work is done, and the cancel comes before its end is written."""
    with project.stack.database() as database, database.transaction():
        made = project.client.post(project.path + "/branches")
        (create,) = made["operations"]
        place = project.stack.data_dir(made["branch"]["id"])
        # Whoever writes the end waits for the project's row, and therefore comes after the cancel.
        lock = "SELECT FROM controlplane_project WHERE id = %s FOR NO KEY UPDATE"
        database.execute(lock, [project.id])
        wait_for(place.exists, "the copy")
        mark = "UPDATE controlplane_operation SET status = 'cancelling', error = 'x' WHERE id = %s"
        database.execute(mark, [create["id"]])
    assert ended(project, create)["status"] == "cancelled"
    assert not place.exists()
    assert project.branch(made["branch"]["id"])["current_state"] == "init"


@pytest.mark.thorough
def test_cancelled_settings_return_to_the_previous_ones(project: Project) -> None:
    project.change(settings={"pg_settings": {"work_mem": "5MB"}})
    settings = {"settings": {"pg_settings": {"work_mem": "6MB"}}, "autoscaling_limit_max_cu": 2}
    with project.locked():
        answer = project.client.patch(project.endpoint_path(), {"endpoint": settings})
        (apply,) = answer["operations"]
        begun(project, apply)
        assert told(cancel(project, apply)) == [("apply_config", "cancelling")]
        endpoint = project.endpoint()
        assert endpoint["settings"]["pg_settings"] == {"work_mem": "5MB"}
        assert endpoint["autoscaling_limit_max_cu"] == 1
        # Another change could not be rolled back to a defined state.
        again = project.client.call("PATCH", project.endpoint_path(), json={"endpoint": settings})
        assert refusal(again)[0] == 423
    assert ended(project, apply)["status"] == "cancelled"
    assert project.endpoint()["current_state"] == "active"
    assert project.sql("SHOW work_mem") == [("5MB",)]


@pytest.mark.thorough
def test_settings_that_an_earlier_start_has_applied(project: Project) -> None:
    project.suspend()
    with project.locked():
        start, *_ = project.client.post(project.endpoint_path(rest="/start"))["operations"]
        body = {"endpoint": {"settings": {"pg_settings": {"work_mem": "7MB"}}}}
        (apply,) = project.client.patch(project.endpoint_path(), body)["operations"]
        assert apply["status"] == "scheduling"
        assert told(cancel(project, apply)) == [("apply_config", "cancelling")]
    assert ended(project, start)["status"] == "finished"
    assert ended(project, apply)["status"] == "cancelled"
    assert project.endpoint()["current_state"] == "active"
    assert project.sql("SHOW work_mem") == [("4MB",)]


@pytest.mark.thorough
def test_settings_that_are_partly_applied(project: Project) -> None:
    """The compute runs with the new settings, and a session waits for a lock that a client
    holds."""
    with project.locked():
        role = {"role": {"name": "waits"}}
        (catalog,) = project.client.post(project.branch_path(rest="/roles"), role)["operations"]
        begun(project, catalog)
        cancel(project, catalog)
    assert ended(project, catalog)["status"] == "cancelled"
    with project.compute() as client, client.transaction():
        client.execute("LOCK TABLE pg_catalog.pg_authid IN SHARE MODE")
        body = {"endpoint": {"settings": {"pg_settings": {"work_mem": "7MB"}}}}
        (apply,) = project.client.patch(project.endpoint_path(), body)["operations"]
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
        wait_for(lambda: client.execute(waiting).fetchone() == (1,), "a session that waits")
        assert project.sql("SHOW work_mem") == [("7MB",)]
        assert told(cancel(project, apply)) == [("apply_config", "cancelling")]
        assert ended(project, apply, timeout=SOON)["status"] == "cancelled"
        # The waiting session in the compute has ended as well.
        assert client.execute(waiting).fetchone() == (0,)
    assert project.endpoint()["current_state"] == "active"
    assert project.sql("SHOW work_mem") == [("4MB",)]
    # The role stays in the rows: the next start makes it.
    project.done(project.client.post(project.endpoint_path(rest="/restart")))
    assert project.sql("SELECT 1 FROM pg_roles WHERE rolname = 'waits'") == [(1,)]


@pytest.mark.thorough
def test_a_reassignment_is_rolled_back(project: Project) -> None:
    project.sql("CREATE TABLE here AS SELECT 1 AS one")
    goal = project.new_branch_id()
    with project.locked(goal):
        answer = project.client.patch(project.endpoint_path(), {"endpoint": {"branch_id": goal}})
        apply, _ = answer["operations"]
        begun(project, apply)
        # The operations that wait for the endpoint are moved with it.
        (start,) = project.client.post(project.endpoint_path(rest="/start"))["operations"]
        assert told(cancel(project, apply)) == [
            ("apply_config", "cancelling"),
            ("suspend_compute", "cancelling"),
        ]
        assert project.endpoint()["branch_id"] == project.branch_id
    assert ended(project, apply)["status"] == "cancelled"
    assert ended(project, start)["status"] == "finished"
    assert project.operation(start["id"])["branch_id"] == project.branch_id
    assert project.endpoint()["current_state"] == "active"
    assert project.sql("SELECT one FROM here") == [(1,)]
    # The other branch has no endpoint again.
    project.create_endpoint(goal)


@pytest.mark.thorough
def test_a_reassignment_that_cannot_be_rolled_back(project: Project) -> None:
    goal = project.new_branch_id()
    with project.locked(goal):
        answer = project.client.patch(project.endpoint_path(), {"endpoint": {"branch_id": goal}})
        apply, suspend = answer["operations"]
        body = {"endpoint": {"branch_id": project.branch_id, "type": "read_write"}}
        other = project.client.post(project.path + "/endpoints", body)["endpoint"]["id"]
        reason = f"the branch {project.branch_id} has the endpoint {other} now"
        status, message = refused(project, steering_path(project, apply, "cancel"))
        assert (status, reason in message) == (409, True), message
    assert [ended(project, row)["status"] for row in (apply, suspend)] == ["finished"] * 2


@pytest.mark.thorough
def test_the_suspend_of_a_disabled_endpoint(project: Project) -> None:
    with standing_worker(project.stack):
        answer = project.client.patch(project.endpoint_path(), {"endpoint": {"disabled": True}})
        (suspend,) = answer["operations"]
        assert refused(project, steering_path(project, suspend, "cancel")) == (
            409,
            "the endpoint is disabled, so it must not run; enable it instead",
        )
        project.client.patch(project.endpoint_path(), {"endpoint": {"disabled": False}})
        assert told(cancel(project, suspend)) == [("suspend_compute", "cancelled")]
    assert project.sql("SELECT 1") == [(1,)]


@pytest.mark.thorough
def test_a_deletion(project: Project) -> None:
    branch_id = project.new_branch(endpoint=True)["branch"]["id"]
    with project.locked(branch_id):
        answer = project.client.delete(project.branch_path(branch_id))
        suspend, delete = answer["operations"]
        assert told(cancel(project, delete)) == [("delete_timeline", "cancelled")]
        begun(project, suspend)
        (again,) = project.client.delete(project.branch_path(branch_id))["operations"][1:]
    project.client.ended(project.id, suspend["id"])
    ended(project, again)
    reason = "the operation is finished already"
    assert refused(project, steering_path(project, again, "cancel")) == (409, reason)
    assert project.client.call("GET", project.branch_path(branch_id)).status_code == 404


@pytest.mark.thorough
def test_a_deletion_that_has_begun(project: Project) -> None:
    branch_id = project.new_branch_id()
    with project.locked(branch_id):
        (delete,) = project.client.delete(project.branch_path(branch_id))["operations"]
        begun(project, delete)
        reason = "the branch's data is being removed"
        assert refused(project, steering_path(project, delete, "cancel")) == (409, reason)
        assert refused(project, chain_path(project, delete, "cancel")) == (409, reason)
    assert ended(project, delete)["status"] == "finished"


@pytest.mark.thorough
def test_an_availability_check(project: Project) -> None:
    project.suspend()
    with wedged_starts(project):
        with project.stack.database() as database:
            database.execute(
                "UPDATE controlplane_endpoint SET created_at = now() - interval '3 hours',"
                " last_active = NULL, check_due_at = NULL WHERE id = %s",
                [project.endpoint_id],
            )
        wait_for(lambda: project.operations()[0]["action"] == "check_availability", "a check")
        check = project.operations()[0]
        postmaster = starting(project)
        cancel(project, check)
        assert ended(project, check, timeout=SOON)["status"] == "cancelled"
        assert not is_alive(postmaster)
    assert project.endpoint()["current_state"] == "idle"
    (again,) = retry(project, check)
    assert told([again]) == [("check_availability", "running")]
    assert ended(project, again)["status"] == "finished"
    assert project.endpoint()["current_state"] == "idle"


@pytest.mark.thorough
def test_a_cancel_at_the_moment_of_the_end(project: Project) -> None:
    """Exactly one of the two takes effect, and the endpoint is in the reported state."""
    chance = random.Random(1)
    endings = []
    for _ in range(16):
        is_active = project.endpoint()["current_state"] == "active"
        verb = "suspend" if is_active else "start"
        (row,) = project.client.post(project.endpoint_path(rest=f"/{verb}"))["operations"]
        time.sleep(chance.uniform(0, 0.3))  # cancel at a random moment
        response = project.client.call("POST", steering_path(project, row, "cancel"))
        assert response.status_code in (200, 409), response.text
        ending = ended(project, row)["status"]
        assert (ending == "cancelled") == response.ok, (ending, response.text)
        is_active = project.endpoint()["current_state"] == "active"
        assert is_active == project.is_running()
        endings.append((verb, ending))
    print(endings)


@pytest.mark.thorough
def test_many_simultaneous_cancels(project: Project) -> None:
    project.suspend()
    with wedged_starts(project):
        (start,) = project.client.post(project.endpoint_path(rest="/start"))["operations"]
        starting(project)
        paths = [path(project, start, "cancel") for path in (steering_path, chain_path)] * 6
        clients = [project.client.another() for _ in paths]
        with ThreadPoolExecutor(len(paths)) as threads:
            answers = list(
                threads.map(
                    lambda pair: pair[0].call("POST", pair[1]), zip(clients, paths, strict=True)
                )
            )
        assert {answer.status_code for answer in answers} == {200}
        assert {row["id"] for a in answers for row in a.json()["operations"]} == {start["id"]}
        assert ended(project, start, timeout=SOON)["status"] == "cancelled"
    project.start()


@pytest.mark.thorough
def test_a_new_request_waits_until_the_cancelled_operation_is_safe(project: Project) -> None:
    """A new start waits for the operation that is being cancelled, and then finds nothing in its
    way."""
    project.suspend()
    with project.locked():
        (first,) = project.client.post(project.endpoint_path(rest="/start"))["operations"]
        begun(project, first)
        assert told(cancel(project, first)) == [("start_compute", "cancelling")]
        (second,) = project.client.post(project.endpoint_path(rest="/start"))["operations"]
        assert (second["status"], second["id"] != first["id"]) == ("scheduling", True)
    assert ended(project, first)["status"] == "cancelled"
    assert ended(project, second)["status"] == "finished"
    assert project.sql("SELECT 1") == [(1,)]

"""POST …/operations/{operation_id}/retry and …/chains/{chain_id}/retry."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from tests.controlplane.cancel_retry import (
    begun,
    cancel,
    chain_path,
    ended,
    retry,
    steering_path,
    told,
)
from tests.support.project import Project, refusal


def refused(project: Project, operation: Any) -> tuple[int, str]:
    return refusal(project.client.call("POST", steering_path(project, operation, "retry")))


def cancelled(project: Project, answer: Any) -> list[Any]:
    """Return the answer's operations, after cancelling those that have not ended."""
    first = answer["operations"][0]
    project.client.post(chain_path(project, first, "cancel"))
    return list(answer["operations"])


@contextmanager
def missing_data(project: Project) -> Iterator[None]:
    """While the block lasts, the project's branch has no data. Its endpoint is idle."""
    data = project.stack.data_dir(project.branch_id)
    kept = data.rename(data.with_name("kept"))
    try:
        yield
    finally:
        kept.rename(data)


def test_a_failed_start(project: Project) -> None:
    project.suspend()
    with missing_data(project):
        (failed,) = project.client.post(project.endpoint_path(rest="/start"))["operations"]
        assert ended(project, failed)["status"] == "failed"
    (again,) = retry(project, failed)
    assert told([again]) == [("start_compute", "running")]
    assert again["retry_of"] == failed["id"]
    assert again["chain_id"] != failed["chain_id"]
    by = failed["initiator"]
    assert again["initiator"] == {**by, "type": "retry", "name": "tests"}
    assert ended(project, again)["status"] == "finished"
    assert project.sql("SELECT 1") == [(1,)]
    words = f"the operation was retried by {again['id']}, which has finished"
    assert refused(project, failed) == (409, words)


def test_a_second_retry_while_the_first_is_in_progress_returns_the_same(project: Project) -> None:
    with project.locked():
        answer = project.client.post(project.endpoint_path(rest="/restart"))
        suspend, start = answer["operations"]
        cancel(project, start)
    assert ended(project, suspend)["status"] == "finished"
    with project.locked():
        paths = [path(project, start, "retry") for path in (steering_path, chain_path)] * 4
        clients = [project.client.another() for _ in paths]
        with ThreadPoolExecutor(len(paths)) as threads:
            calls = [
                threads.submit(client.call, "POST", path)
                for client, path in zip(clients, paths, strict=True)
            ]
        answers = [call.result() for call in calls]
        assert {answer.status_code for answer in answers} == {201}
        ids = {row["id"] for answer in answers for row in answer.json()["operations"]}
        assert len(ids) == 1
    again = answers[0].json()["operations"][0]
    assert ended(project, again)["status"] == "finished"


def test_a_cancelled_retry_can_be_retried(project: Project) -> None:
    with project.locked():
        _, start = project.client.post(project.endpoint_path(rest="/restart"))["operations"]
        cancel(project, start)
    project.suspend()
    with project.locked():
        (first,) = retry(project, start)
        cancel(project, first)
    ended(project, first)
    (second,) = retry(project, start)
    assert second["retry_of"] == start["id"]
    assert ended(project, second)["status"] == "finished"


@pytest.mark.thorough
def test_the_creation_of_a_branch(project: Project) -> None:
    with project.locked():
        body = {"branch": {"name": "late"}, "endpoints": [{"type": "read_write"}]}
        made = project.client.post(project.path + "/branches", body)
        create, start = cancelled(project, made)
    assert ended(project, create)["status"] == "cancelled"
    project.sql("CREATE TABLE later AS SELECT 7 AS number")
    # The copy has what the parent has by now, and the rows say so.
    project.done(project.client.post(project.branch_path(rest="/roles"), {"role": {"name": "new"}}))
    body = {"database": {"name": "newer", "owner_name": "new"}}
    project.done(project.client.post(project.branch_path(rest="/databases"), body))
    again = project.client.post(chain_path(project, create, "retry"))["operations"]
    assert told(again) == [("create_branch", "running"), ("start_compute", "scheduling")]
    assert [row["retry_of"] for row in again] == [create["id"], start["id"]]
    assert [ended(project, row)["status"] for row in again] == ["finished"] * 2
    endpoint_id = made["endpoints"][0]["id"]
    assert project.sql("SELECT number FROM later", endpoint_id=endpoint_id) == [(7,)]
    for kind, held in (
        ("roles", "SELECT rolname FROM pg_roles WHERE oid > 16383 AND rolname !~ '^perch_'"),
        ("databases", "SELECT datname FROM pg_database WHERE oid > 16383"),
    ):
        path = project.branch_path(made["branch"]["id"], f"/{kind}")
        said = {row["name"] for row in project.client.get(path)[kind]}
        assert said == {name for (name,) in project.sql(held, endpoint_id=endpoint_id)}
        assert len(said) == 2
    assert refused(project, start)[0] == 409


@pytest.mark.thorough
def test_the_creation_of_a_project(project: Project) -> None:
    made = project.client.new_project(wait=False)
    path = f"/projects/{made['project']['id']}"
    chain = f"{path}/chains/{made['operations'][0]['chain_id']}"
    response = project.client.call("POST", f"{chain}/cancel")
    project.client.finish(made)
    if response.ok:
        again = project.client.post(f"{chain}/retry")
        assert {row["status"] for row in project.client.finish(again)} == {"finished"}
    (endpoint,) = project.client.get(f"{path}/endpoints")["endpoints"]
    assert endpoint["current_state"] == "active"
    project.client.delete(path)


@pytest.mark.thorough
def test_settings_that_could_not_be_applied(project: Project) -> None:
    """The requested settings are not lost when the endpoint returns to its previous ones."""
    project.suspend()
    settings = {"pg_settings": {"max_prepared_transactions": "3"}}
    with missing_data(project):
        body = {"endpoint": {"settings": settings, "autoscaling_limit_max_cu": 2}}
        failed, suspend = project.client.patch(project.endpoint_path(), body)["operations"]
        assert ended(project, failed)["status"] == "failed"
    endpoint = project.endpoint()
    assert (endpoint["settings"], endpoint["autoscaling_limit_max_cu"]) == ({"pg_settings": {}}, 1)
    again = retry(project, failed)
    assert told(again) == [("apply_config", "running"), ("suspend_compute", "scheduling")]
    assert [row["retry_of"] for row in again] == [failed["id"], suspend["id"]]
    assert [ended(project, row)["status"] for row in again] == ["finished"] * 2
    endpoint = project.endpoint()
    assert (endpoint["settings"], endpoint["autoscaling_limit_max_cu"]) == (settings, 2)
    project.start()
    assert project.sql("SHOW max_prepared_transactions") == [("3",)]


@pytest.mark.thorough
def test_settings_of_an_endpoint_that_is_active_by_now(project: Project) -> None:
    project.suspend()
    with project.locked():
        body = {"endpoint": {"settings": {"pg_settings": {"work_mem": "9MB"}}}}
        apply, _ = cancelled(project, project.client.patch(project.endpoint_path(), body))
    ended(project, apply)
    project.start()
    # It is not suspended under its clients although the original operation would have done so.
    again = retry(project, apply)
    assert [row["action"] for row in again] == ["apply_config"]
    assert ended(project, again[0])["status"] == "finished"
    assert project.sql("SHOW work_mem") == [("9MB",)]


@pytest.mark.thorough
def test_settings_that_were_changed_since(project: Project) -> None:
    with project.locked():
        body = {"endpoint": {"settings": {"pg_settings": {"work_mem": "9MB"}}}}
        (apply,) = cancelled(project, project.client.patch(project.endpoint_path(), body))
    ended(project, apply)
    (newer,) = project.change(settings={"pg_settings": {"work_mem": "10MB"}})["operations"]
    reason = f"the newer operation {newer['id']} (apply_config) has finished"
    assert refused(project, apply) == (409, reason)
    assert project.endpoint()["settings"]["pg_settings"] == {"work_mem": "10MB"}


@pytest.mark.thorough
def test_a_role_that_cannot_be_created(project: Project) -> None:
    """The retry fails again for the same reason, until the cause is removed."""
    project.sql("CREATE ROLE carol")
    body = {"role": {"name": "carol"}}
    (first,) = project.client.post(project.branch_path(rest="/roles"), body)["operations"]
    failed = ended(project, first)
    assert (failed["status"], 'role "carol"' in failed["error"]) == ("failed", True)
    (second,) = retry(project, first)
    assert ended(project, second)["error"] == failed["error"]
    project.sql("DROP ROLE carol")
    (third,) = retry(project, second)
    assert ended(project, third)["status"] == "finished"


@pytest.mark.thorough
def test_a_reassignment(project: Project) -> None:
    goal = project.new_branch_id()
    with project.locked(goal):
        body = {"endpoint": {"branch_id": goal}}
        answer = project.client.patch(project.endpoint_path(), body)
        apply, suspend = cancelled(project, answer)
        assert project.endpoint()["branch_id"] == project.branch_id
    ended(project, apply)
    again = retry(project, apply)
    assert told(again) == [("apply_config", "running"), ("suspend_compute", "scheduling")]
    assert [row["retry_of"] for row in again] == [apply["id"], suspend["id"]]
    assert project.endpoint()["branch_id"] == goal
    assert [ended(project, row)["status"] for row in again] == ["finished"] * 2
    assert project.endpoint()["current_state"] == "idle"


@pytest.mark.thorough
def test_a_reassignment_to_a_branch_that_is_occupied_by_now(project: Project) -> None:
    goal = project.new_branch_id()
    with project.locked(goal):
        body = {"endpoint": {"branch_id": goal}}
        apply, _ = cancelled(project, project.client.patch(project.endpoint_path(), body))
    ended(project, apply)
    project.create_endpoint(goal)
    status, message = refused(project, apply)
    assert (status, "read_write endpoint already exists" in message) == (409, True)


@pytest.mark.thorough
def test_a_deletion(project: Project) -> None:
    branch_id = project.new_branch(endpoint=True)["branch"]["id"]
    with project.locked(branch_id):
        suspend, delete = project.client.delete(project.branch_path(branch_id))["operations"]
        cancel(project, delete)
    assert ended(project, suspend)["status"] == "finished"
    project.client.patch(project.branch_path(branch_id), {"branch": {"protected": True}})
    words = "the branch is protected; end its protection first"
    assert refused(project, delete) == (409, words)
    project.client.patch(project.branch_path(branch_id), {"branch": {"protected": False}})
    again = retry(project, delete)
    assert [row["action"] for row in again] == ["suspend_compute", "delete_timeline"]
    assert [ended(project, row)["status"] for row in again] == ["finished"] * 2
    assert project.client.call("GET", project.branch_path(branch_id)).status_code == 404
    # Nothing is left to delete.
    assert refused(project, delete)[0] == 409


@pytest.mark.thorough
def test_a_deletion_of_a_branch_that_a_restore_reads(project: Project) -> None:
    source_id = project.new_branch(endpoint=True)["branch"]["id"]
    child_id = project.new_branch_id()
    with project.locked(source_id):
        suspend, delete = project.client.delete(project.branch_path(source_id))["operations"]
        cancel(project, delete)
    ended(project, suspend)
    with project.locked(child_id):
        body = {"source_branch_id": source_id}
        answer = project.client.post(project.branch_path(child_id, "/restore"), body)
        # After the restore it is the parent of the other branch.
        assert refused(project, delete)[0] == 423
    project.done(answer)
    words = f"the branch has children: {child_id}; delete them first"
    assert refused(project, delete) == (409, words)


@pytest.mark.thorough
def test_retries_that_are_not_possible_any_more(project: Project) -> None:
    branch_id = project.new_branch_id()
    endpoint_id = project.create_endpoint(branch_id)["endpoint"]["id"]
    with project.locked(branch_id):
        path = project.endpoint_path(endpoint_id, "/restart")
        suspend, start = project.client.post(path)["operations"]
        begun(project, suspend)
        words = (
            "only an operation that has failed or was cancelled can be retried; this one is "
            "scheduling"
        )
        assert refused(project, start) == (409, words)
        unfinished = project.client.call("POST", chain_path(project, start, "retry"))
        assert refusal(unfinished) == (409, "the chain's operations have not ended yet")
        cancel(project, start)
    ended(project, suspend)
    assert refused(project, suspend)[0] == 409
    project.client.patch(project.endpoint_path(endpoint_id), {"endpoint": {"disabled": True}})
    assert refused(project, start) == (409, "endpoint is disabled")
    project.client.patch(project.endpoint_path(endpoint_id), {"endpoint": {"disabled": False}})
    (newer,) = project.start(endpoint_id)["operations"]
    reason = f"the newer operation {newer['id']} (start_compute) has finished"
    assert refused(project, start) == (409, reason)
    project.client.delete(project.endpoint_path(endpoint_id))
    assert refused(project, start) == (409, f"the endpoint {endpoint_id} was deleted")
    finished = project.client.call("POST", chain_path(project, newer, "retry"))
    assert refusal(finished) == (409, "the chain's operations have all finished")

"""POST …/branches/{branch_id}/time_travel: reading a past moment through a short-lived endpoint."""

from typing import Any

import psycopg
import pytest

from tests.support.past import with_history, write
from tests.support.project import Project, refusal
from tests.support.waiting import wait_for


def travel(project: Project, **moment: str) -> Any:
    answer = project.client.post(project.branch_path(rest="/time_travel"), moment)
    project.client.finish(answer)
    return answer["endpoint"]


def allow(project: Project, addresses: dict[str, Any]) -> None:
    changed = {"project": {"settings": {"allowed_ips": addresses}}}
    project.client.finish(project.client.patch(project.path, changed))


def uri_of(project: Project, endpoint_id: str) -> str:
    answer = project.client.get(
        f"{project.path}/connection_uri",
        endpoint_id=endpoint_id,
        role_name="neondb_owner",
        database_name="neondb",
    )
    return str(answer["uri"])


def rows(project: Project, endpoint_id: str) -> list[str]:
    with psycopg.connect(uri_of(project, endpoint_id)) as connection:
        return [text for (text,) in connection.execute("SELECT text FROM notes ORDER BY ctid")]


def ids(project: Project, kind: str) -> set[str]:
    return {one["id"] for one in project.client.get(f"{project.path}/{kind}")[kind]}


def test_a_past_moment_is_read_and_goes_by_itself(fresh_project: Project) -> None:
    project = with_history(fresh_project)
    at, _ = write(project, "then")
    write(project, "later")
    project.done(project.client.post(f"{project.branch_path()}/roles/neondb_owner/reset_password"))
    before = ids(project, "branches"), ids(project, "endpoints")
    endpoint = travel(project, timestamp=at)
    assert rows(project, endpoint["id"]) == ["then"]
    with (
        psycopg.connect(uri_of(project, endpoint["id"])) as connection,
        pytest.raises(psycopg.errors.ReadOnlySqlTransaction),
    ):
        connection.execute("INSERT INTO notes VALUES ('now')")
    assert (ids(project, "branches"), ids(project, "endpoints")) == before
    (state,) = project.client.get("/projects/states")["projects"]
    assert state["endpoints"] == {"active": 1, "idle": 0, "disabled": 0}
    path = f"{project.path}/endpoints/{endpoint['id']}"
    assert project.client.get(path)["endpoint"]["suspend_timeout_seconds"] == 0
    project.client.finish(project.client.post(f"{path}/suspend"))
    wait_for(lambda: project.client.call("GET", path).status_code == 404, "its removal")
    data = project.stack.data_dir(endpoint["branch_id"])
    wait_for(lambda: not data.exists(), "the removal of its data")


@pytest.mark.thorough
def test_a_position_of_a_protected_branch_has_other_passwords(fresh_project: Project) -> None:
    project = with_history(fresh_project)
    _, lsn = write(project, "then")
    write(project, "later")
    protect = {"branch": {"protected": True}}
    project.client.patch(project.branch_path(), protect)
    elsewhere = {"ips": ["192.0.2.0/24"], "protected_branches_only": True}
    allow(project, elsewhere)
    endpoint = travel(project, lsn=lsn)
    with pytest.raises(psycopg.OperationalError, match="is not allowed to connect"):
        rows(project, endpoint["id"])
    allow(project, {"ips": []})
    assert rows(project, endpoint["id"]) == ["then"]
    own = uri_of(project, project.endpoint_id).partition("@")[0]
    assert uri_of(project, endpoint["id"]).partition("@")[0] != own
    project.client.finish(
        project.client.call("DELETE", f"{project.path}/endpoints/{endpoint['id']}").json()
    )
    data = project.stack.data_dir(endpoint["branch_id"])
    wait_for(lambda: not data.exists(), "the removal of its data")


@pytest.mark.thorough
def test_it_is_refused_without_a_moment_of_the_history(fresh_project: Project) -> None:
    project = with_history(fresh_project)
    path = project.branch_path(rest="/time_travel")
    for moment, words in (
        ({}, "send timestamp or lsn"),
        ({"timestamp": "2020-01-01T00:00:00Z"}, "outside of the branch's history"),
    ):
        status, message = refusal(project.client.call("POST", path, json=moment))
        assert (status, words in message) == (422, True), message

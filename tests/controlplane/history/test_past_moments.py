"""Past moments: what they name (`history/resolve`), their schemas, and endpoints that read them."""

from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from tests.support.past import history, with_history, write
from tests.support.project import Project, refusal
from tests.support.waiting import wait_for


def resolve(project: Project, **query: str) -> Any:
    answer = project.client.get(project.branch_path(rest="/history/resolve"), **query)
    return answer["moment"]


def schema(project: Project, **query: str) -> str:
    answer = project.client.get(project.branch_path(rest="/schema"), db_name="neondb", **query)
    return str(answer["sql"])


def at_of(text: str) -> datetime:
    return datetime.fromisoformat(text)


def test_a_moment_names_the_commits_around_it(fresh_project: Project) -> None:
    project = with_history(fresh_project)
    first, _ = write(project, "first")
    second, lsn = write(project, "second")
    third, _ = write(project, "third")
    found = resolve(project, timestamp=second)
    assert found["timestamp"] == second
    assert at_of(first) < at_of(found["last_commit"]["at"]) < at_of(second)
    assert at_of(second) < at_of(found["next_commit"]["at"]) < at_of(third)
    assert at_of(found["base"]["at"]) < at_of(first)
    assert 0 < found["replay_bytes"] < 32 << 20
    by_lsn = resolve(project, lsn=lsn)
    assert (by_lsn["lsn"], by_lsn.get("timestamp")) == (lsn, None)
    assert by_lsn["last_commit"] == found["last_commit"]
    assert "next_commit" not in resolve(project, timestamp=third)
    # The log was copied for this, and its commits are in the history.
    assert sum(span["count"] for span in history(project)["commits"]) >= 3


def test_the_schema_of_a_past_moment(fresh_project: Project) -> None:
    project = with_history(fresh_project)
    before, first = write(project, "before")
    project.sql("ALTER TABLE notes ADD COLUMN added_later int")
    after, second = write(project, "after")
    assert "added_later" not in schema(project, timestamp=before)
    assert schema(project, timestamp=after) == schema(project)
    # Without a parent, the branch is compared with its own past.
    path = project.branch_path(rest="/compare_schema")
    for moments in ({"base_timestamp": before}, {"base_lsn": first, "lsn": second}):
        answer = project.client.get(path, db_name="neondb", **moments)
        assert "+    added_later integer" in answer["diff"]
    answer = project.client.get(path, db_name="neondb", base_timestamp=before, timestamp=before)
    assert answer["diff"] == ""
    query = {"db_name": "nowhere", "timestamp": before}
    refused = project.client.call("GET", project.branch_path(rest="/schema"), params=query)
    status, words = refusal(refused)
    assert (status, 'database "nowhere" does not exist' in words) == (422, True), words
    # Nothing is left of the copies that were read.
    branches = project.stack.state_dir / "branches"
    wait_for(lambda: not list(branches.glob(".br-*")), "the removal of the recovered copies")


def test_moments_that_are_not_there_are_refused(fresh_project: Project) -> None:
    project = with_history(fresh_project)
    future = datetime.now(UTC).replace(year=2100).isoformat()
    calls: dict[str, dict[str, str]] = {
        "schema": {"db_name": "neondb"},
        "compare_schema": {"db_name": "neondb", "base_branch_id": project.branch_id},
        "history/resolve": {},
    }
    for verb, asked in calls.items():
        for moment, status, words in (
            ({"timestamp": "2020-01-01T00:00:00Z"}, 422, "outside of the branch's history"),
            ({"timestamp": future}, 422, "in the future"),
            ({"timestamp": "2020-01-01T00:00:00"}, 400, "must be a time such as"),
            ({"lsn": "0/1"}, 422, "outside of the branch's history"),
            ({"lsn": "x"}, 422, "no position in the log"),
            ({"lsn": "0/1", "timestamp": future}, 422, "not both"),
        ):
            path = project.branch_path(rest=f"/{verb}")
            answer = refusal(project.client.call("GET", path, params={**asked, **moment}))
            assert (answer[0], words in answer[1]) == (status, True), (verb, moment, answer)


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

"""What a past moment names (`history/resolve`), and the schemas of past moments."""

from datetime import UTC, datetime
from typing import Any

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

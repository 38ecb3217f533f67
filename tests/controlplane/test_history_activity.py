"""What GET …/history tells of a branch's past: commits, removed tables and restores."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from controlplane.compute.history.chain import ACTIVITY, COMMITS, Base, Chain
from controlplane.compute.history.commits import ENTRY, Commit, _summary, activity
from controlplane.compute.history.log import Record, segment_name
from controlplane.compute.tree import SEGMENT_SIZE
from controlplane.models import Host
from controlplane.operations import history as rounds
from tests.support.past import history, notes, with_history, write
from tests.support.project import Project
from tests.support.waiting import wait_for

AT = datetime(2026, 11, 28, 12, tzinfo=UTC)


def test_commits_removed_tables_and_restores_are_told(fresh_project: Project) -> None:
    project = with_history(fresh_project)
    at, _ = write(project, "kept")
    project.sql("DROP TABLE notes")
    # The rest of the log is copied after a suspend.
    project.done(project.suspend())
    wait_for(lambda: history(project)["removals"], "the log's copy")
    found = history(project)
    assert found["restores"] == []
    # Creating and filling the table, and dropping it.
    assert sum(span["count"] for span in found["commits"]) >= 3
    assert {span["seconds"] for span in found["commits"]} == {60}
    removal = found["removals"][-1]
    assert removal["at"] > at
    assert removal["files"] >= 1
    made = project.new_branch(parent_lsn=removal["lsn"])["branch"]
    (creation,) = (one for one in project.operations() if one.get("branch_id") == made["id"])
    steps = {one["name"]: one["detail"] for one in project.operation(creation["id"])["steps"]}
    assert {"copying_base", "adding_log", "starting", "recovering"} <= steps.keys(), steps
    assert steps["adding_log"]["of_bytes"] > 0
    assert notes(project, made["id"]) == ["kept"]
    body = {
        "source_branch_id": project.branch_id,
        "source_lsn": removal["lsn"],
        "preserve_under_name": "dropped",
    }
    project.done(project.client.post(project.branch_path(rest="/restore"), body))
    # Its history begins with a base of the restored data.
    (restore,) = history(project)["restores"]
    assert history(project)["bases"][-1]["at"] == restore["at"]


def test_commits_before_the_first_base_are_left_out(tmp_path: Path) -> None:
    """They may be those of the branch from which the data was copied."""
    segment = segment_name(1, SEGMENT_SIZE)
    commits = [
        Commit(AT + timedelta(minutes=n), SEGMENT_SIZE + n * 1000, removed=1) for n in range(4)
    ]
    log = tmp_path / "1" / "log"
    log.mkdir(parents=True)
    (log / segment).touch()
    packed = b"".join(ENTRY.pack(int(one.at.timestamp()) * 10**6, one.lsn, 1) for one in commits)
    (log / f"{segment}{COMMITS}").write_bytes(packed)
    (log / f"{segment}{ACTIVITY}").write_text(json.dumps(_summary(ENTRY.iter_unpack(packed))))
    base = Base(0, SEGMENT_SIZE, 1, commits[2].at, Record(0, 0, 0, 0), size=0)
    chain = Chain(tmp_path / "1", 1, 1, SEGMENT_SIZE * 2, AT, _bases=[base])
    found = activity(chain)
    assert found.removals == commits[2:]
    assert sum(count for _, count in found.commits) == 2


@pytest.mark.django_db
def test_a_branch_that_is_deleted_meanwhile_keeps_no_other_from_being_published(
    monkeypatch: pytest.MonkeyPatch, host: Host
) -> None:
    found = [SimpleNamespace(id=f"ep-{name}", branch_id=f"br-{name}") for name in ("gone", "kept")]
    published: list[str] = []

    def publish(branch_id: str, _: object) -> None:
        if branch_id == "br-gone":
            raise FileNotFoundError
        published.append(branch_id)

    monkeypatch.setattr(rounds, "_stopped", lambda host, since: [])
    monkeypatch.setattr(rounds, "_running", lambda host: found)
    monkeypatch.setattr(rounds, "look_into", lambda *_, at: [(one, ([], True)) for one in found])
    monkeypatch.setattr(rounds, "publish", publish)
    rounds.keep_history(host)
    assert published == ["br-kept"]

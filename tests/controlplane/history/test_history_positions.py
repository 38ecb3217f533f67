"""What is known of a branch's past: the pieces of its history by positions in the log, if the
branch had them twice, its commits, removed tables and restores."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from controlplane.compute.host.tree import SEGMENT_SIZE
from controlplane.compute.host.wal import Record, segment_name
from controlplane.history.local.chain import (
    ACTIVITY,
    COMMITS,
    LOG_LOST,
    Base,
    Chain,
    Follows,
    history_dir,
    new_chain,
)
from controlplane.history.local.commits import ENTRY, Commit, _summary, activity
from controlplane.history.local.moments import NoSuchMoment, find_lsn
from controlplane.models.history import REPLACED
from tests.support.past import history, notes, with_history, write
from tests.support.project import Project
from tests.support.waiting import wait_for

BRANCH = "br-restored"
BEGIN = datetime(2026, 11, 28, 12, tzinfo=UTC)


@pytest.fixture
def place(tmp_path: Path, settings: Any) -> Path:
    settings.STATE_DIR = tmp_path
    history_dir(BRANCH).parent.mkdir(parents=True)
    return tmp_path


def add(first: int, last: int, *, ended: str = "", follows: tuple[int, int] | None = None) -> Chain:
    """A chain with a commit at each position that is a multiple of 10. The time of a position is so
    many seconds after the chain's hour."""
    at = BEGIN + timedelta(hours=len(list(history_dir(BRANCH).glob("0*"))))
    base = Base(first, first, 1, at + timedelta(seconds=first), Record(first, 0, 0, first), size=1)
    made = new_chain(
        history_dir(BRANCH), base=base, system_id=7, follows=Follows(*follows) if follows else None
    )
    made.place_of(base).mkdir()
    (made.place_of(base) / "base.json").write_text(json.dumps(base.as_json()))
    segment = made.log / segment_name(1, 0)
    segment.touch()
    commits = (
        ENTRY.pack(round((at + timedelta(seconds=lsn)).timestamp()) * 10**6, lsn, 0)
        for lsn in range(-(-first // 10) * 10, last, 10)
    )
    segment.with_name(f"{segment.name}.commits").write_bytes(b"".join(commits))
    made.copied = last
    if ended:
        made.end(ended, at + timedelta(seconds=last))
    else:
        made.write()
    return made


@pytest.mark.parametrize(
    ("lsn", "number"),
    [(100, 1), (300, 1), (500, 1), (515, 2), (600, 2), (630, 3), (650, 3), (681, 4), (720, 4)],
)
def test_the_line_of_the_present_data_is_meant(place: Path, lsn: int, number: int) -> None:
    line_of_two_restores()
    found = find_lsn(BRANCH, lsn)
    assert (found.chain.number, found.stop) == (number, lsn)
    assert found.last is None or found.last.lsn < lsn


def line_of_two_restores() -> None:
    add(100, 900, ended=REPLACED)
    add(510, 700, ended=REPLACED, follows=(1, 500))
    add(610, 650, ended=LOG_LOST, follows=(2, 600))
    add(680, 720)


def test_a_position_that_only_replaced_data_had_names_that_data(place: Path) -> None:
    line_of_two_restores()
    for lsn in (505, 721, 800):
        assert find_lsn(BRANCH, lsn).chain.number == 1


@pytest.mark.parametrize(
    ("lsn", "words"),
    [
        (99, "does not hold the position 0/63"),
        (901, "does not hold the position 0/385"),
        (660, "the position 0/294 is in a gap of the history: log lost"),
        (
            605,
            "0/25D is ambiguous, as the branch had it 2 times before its data was replaced: name "
            "the time instead, which is one of 2026-11-28T12:10:00.000000Z, "
            "2026-11-28T13:10:00.000000Z",
        ),
    ],
)
def test_any_other_position_is_refused_with_the_reason(place: Path, lsn: int, words: str) -> None:
    line_of_two_restores()
    with pytest.raises(NoSuchMoment, match=words):
        find_lsn(BRANCH, lsn)


def test_without_a_note_of_an_earlier_release_nothing_is_guessed(place: Path) -> None:
    """It did not write down what a restored branch's data descends from."""
    add(100, 900, ended=REPLACED)
    add(510, 600, ended=REPLACED)
    add(700, 800)
    assert find_lsn(BRANCH, 750).chain.number == 3
    assert find_lsn(BRANCH, 300).chain.number == 1
    with pytest.raises(NoSuchMoment, match="is ambiguous"):
        find_lsn(BRANCH, 550)


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

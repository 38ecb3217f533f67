"""Which piece of a branch's history a position in the log names, if the branch had it twice."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from controlplane.compute.history.chain import (
    LOG_LOST,
    REPLACED,
    Base,
    Chain,
    Follows,
    history_dir,
    new_chain,
)
from controlplane.compute.history.commits import ENTRY
from controlplane.compute.history.log import Record, segment_name
from controlplane.compute.history.moments import NoSuchMoment, find_lsn

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

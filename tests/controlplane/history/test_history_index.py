"""The index of commits takes little memory and finds every moment, whatever the log has."""

import itertools
import json
import random
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from controlplane.compute.host.tree import SEGMENT_SIZE
from controlplane.compute.host.wal import LogUnreadable, Record
from controlplane.history.local.chain import ACTIVITY, Base, Chain
from controlplane.history.local.commits import (
    END_OF_LOG,
    EPOCH,
    MAX_SPANS,
    MICROSECOND,
    activity,
    commits_around,
    first_later,
    index_commits,
)
from tests.support.forged_log import BEGIN, ForgedLog, indexed

AT = (datetime(2026, 11, 28, 12, tzinfo=UTC) - EPOCH) // MICROSECOND
MINUTE = 60_000_000
MIB = 1 << 20


@contextmanager
def at_most(limit: int) -> Iterator[None]:
    """Check that so many bytes of memory suffice."""
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < limit, f"{peak / MIB:.1f} MiB"


def pull(chain: Chain, *, until: list[int]) -> None:
    """Index the log as pulls that end at these positions do."""
    before = 0
    for chain.copied in until:
        index_commits(chain, before)
        before = chain.copied


def test_a_flood_of_commits_takes_little_memory(tmp_path: Path) -> None:
    log = ForgedLog()
    count = itertools.count()
    while log.end < BEGIN + 3 * SEGMENT_SIZE:
        log.commit(AT + next(count), padding=160)
    chain = log.chain(tmp_path)
    with at_most(8 * MIB):
        index_commits(chain, 0)
    commits = indexed(chain)
    assert [one.at for one in commits] == [
        EPOCH + (AT + number) * MICROSECOND for number in range(next(count))
    ]
    with at_most(4 * MIB):
        assert first_later(chain, 0, commits[-2].at) == commits[-1].lsn
        assert commits_around(chain, 0, commits[-1].lsn) == (commits[-2], commits[-1])
        assert sum(n for _, n in activity(chain).commits) == len(commits)


def test_a_commit_longer_than_segments_is_found_however_the_log_was_pulled(tmp_path: Path) -> None:
    """A pull may end in the middle of a record."""
    log = ForgedLog()
    log.commit(AT)
    subtransactions = 5 * SEGMENT_SIZE // 2 // 4
    log.commit(AT + 1, subtransactions=subtransactions, files=3)
    log.commit(AT + 2)
    chain = log.chain(tmp_path)
    boundaries = list(range(BEGIN + SEGMENT_SIZE, log.end, SEGMENT_SIZE))
    assert len(boundaries) == 2
    whole = log.end
    for until in (
        [whole],
        [*boundaries, whole],
        [boundaries[1], whole],
        [boundaries[0] + 8192, boundaries[1], whole - 8, whole],
    ):
        for name in chain.segments():
            for suffix in (".commits", ".activity"):
                (chain.log / f"{name}{suffix}").unlink(missing_ok=True)
        with at_most(8 * MIB):
            pull(chain, until=until)
        commits = indexed(chain)
        assert [one.at for one in commits] == [EPOCH + (AT + n) * MICROSECOND for n in range(3)]
        # How many files it removed is told after its subtransactions.
        assert [bool(one.removed) for one in commits] == [False, True, False]


@pytest.mark.parametrize("seed", range(3))
def test_pulls_may_end_anywhere(tmp_path: Path, seed: int) -> None:
    """Each one adds to the index what has been completed since, without reading all again."""
    chance = random.Random(seed)
    log = ForgedLog()
    for number in range(3000):
        log.commit(AT + number, padding=chance.choice([0, 0, 0, 3, 500, 9000, 30_000]))
    log.commit(AT, padding=2 * SEGMENT_SIZE)
    for number in range(100):
        log.commit(AT + number, padding=chance.choice([0, 20_000]))
    chain = log.chain(tmp_path)
    index_commits(chain, 0)
    whole = indexed(chain)
    assert len(whole) == 3101
    files = {path: path.read_bytes() for path in chain.log.iterdir()}
    for path in files:
        if path.suffix:
            path.unlink()
    anywhere = sorted(chance.randrange(BEGIN // 8, log.end // 8) * 8 for _ in range(40))
    pages = [end // 8192 * 8192 for end in anywhere[::3]]
    ends = [one.lsn for one in chance.sample(whole, 20)]
    pull(chain, until=sorted({*anywhere, *pages, *ends, log.end} - {BEGIN}))
    assert indexed(chain) == whole
    assert {path: path.read_bytes() for path in chain.log.iterdir()} == files


def test_a_record_that_is_longer_than_postgres_writes_is_refused(tmp_path: Path) -> None:
    log = ForgedLog()
    log.record(bytes(SEGMENT_SIZE + 8192), length=0xFFFFFFFF)
    with pytest.raises(LogUnreadable, match="is damaged"):
        index_commits(log.chain(tmp_path), 0)


@pytest.mark.parametrize("at", [-1, (datetime(9000, 1, 1, tzinfo=UTC) - EPOCH) // MICROSECOND])
def test_a_time_that_no_clock_has_is_refused(tmp_path: Path, at: int) -> None:
    log = ForgedLog()
    log.commit(at)
    with pytest.raises(LogUnreadable, match="is damaged"):
        index_commits(log.chain(tmp_path), 0)


@pytest.mark.parametrize("written_by", ["this release", "an earlier one", "none"])
def test_every_moment_is_found_where_the_clock_goes_back(tmp_path: Path, written_by: str) -> None:
    """A time names all commits before the first one that is later. An earlier release wrote no
    latest time into a segment's summary."""
    chance = random.Random(1)
    log, at = ForgedLog(), AT
    for number in range(2000):
        at += chance.choice([0, 1, 5, MINUTE, -MINUTE, -3])
        # The commits of one segment in four are far apart, so that others have none.
        log.commit(at, padding=chance.choice([100, 3 * MIB if number % 100 == 0 else 200]))
    chain = log.chain(tmp_path)
    index_commits(chain, 0)
    for name in chain.segments():
        summary = chain.log / f"{name}{ACTIVITY}"
        if written_by == "none":
            summary.unlink()
        elif written_by == "an earlier one":
            stored = json.loads(summary.read_bytes())
            assert stored["seconds"] == 60
            kept = {"minutes": stored["minutes"], "removals": stored["removals"]}
            summary.write_text(json.dumps(kept))
    commits = indexed(chain)
    assert len(commits) == 2000
    for _ in range(300):
        since = chance.choice([0, *(chance.choice(commits).lsn + n for n in (-1, 0, 1))])
        known = [one for one in commits if one.lsn >= since]
        named = chance.choice(commits).at + chance.choice([-1, 0, 1, 10**12]) * MICROSECOND
        later = next((one.lsn for one in known if one.at > named), END_OF_LOG)
        assert first_later(chain, since, named) == later
        for lsn in (later, max(since, chance.choice(commits).lsn + chance.choice([-1, 0, 1]))):
            before = [one for one in known if one.lsn < lsn]
            after = [one for one in known if one.lsn >= lsn]
            expected = before[-1] if before else None, after[0] if after else None
            assert commits_around(chain, since, lsn) == expected


def test_any_times_are_counted_by_few_spans(tmp_path: Path) -> None:
    """Only the log of a compute that was taken over has such times. All commits are counted, except
    those before the first base, and the files stay small."""
    chance = random.Random(1)
    log = ForgedLog()
    while log.end < BEGIN + 2 * SEGMENT_SIZE:
        log.commit(chance.randrange(7000 * 365 * 24 * 60 * MINUTE), padding=1000)
    chain = log.chain(tmp_path)
    index_commits(chain, 0)
    for name in chain.segments():
        assert (chain.log / f"{name}{ACTIVITY}").stat().st_size < 16_000
    commits = indexed(chain)
    found = activity(chain)
    assert len(found.commits) <= MAX_SPANS
    assert sum(count for _, count in found.commits) == len(commits)
    since = commits[100].at
    base = Base(0, BEGIN, 1, since, Record(0, 0, 0, 0), size=0)
    found = activity(Chain(chain.place, 7, 1, chain.copied, since, _bases=[base]))
    assert sum(n for _, n in found.commits) == len([one for one in commits if one.at >= since])


def test_commits_within_the_minute_of_the_first_base_are_told_apart(tmp_path: Path) -> None:
    log = ForgedLog()
    for number in range(24):
        log.commit(AT + number, files=1, padding=SEGMENT_SIZE // 2)
    chain = log.chain(tmp_path)
    index_commits(chain, 0)
    assert len(chain.segments()) > 11
    for first in (0, 1, 8, 21):
        at = EPOCH + (AT + first) * MICROSECOND
        base = Base(0, BEGIN, 1, at, Record(0, 0, 0, 0), size=0)
        found = activity(Chain(chain.place, 7, 1, chain.copied, at, _bases=[base]))
        assert found.commits == [[AT // 10**6, 24 - first]]
        assert found.removals == [one for one in indexed(chain) if one.at >= at][-20:]


@pytest.mark.parametrize(("minutes", "seconds"), [(299, 60), (301, 300), (1501, 900)])
def test_spans_are_the_shortest_that_give_few_enough(
    tmp_path: Path, minutes: int, seconds: int
) -> None:
    log = ForgedLog()
    times = [AT // MINUTE * MINUTE + number * MINUTE for number in range(minutes)]
    for number, at in enumerate(times):
        # The commits of each segment are within 300 minutes.
        log.commit(at, padding=SEGMENT_SIZE if number % 250 == 249 else 0)
    chain = log.chain(tmp_path)
    index_commits(chain, 0)
    found = activity(chain)
    assert found.seconds == seconds
    begins = [at // (seconds * 10**6) * seconds for at in times]
    assert found.commits == [[begin, len(list(same))] for begin, same in itertools.groupby(begins)]


def test_the_latest_time_is_that_of_new_commits(tmp_path: Path) -> None:
    """The clock was set back: what was known before does not count again."""
    log = ForgedLog()
    log.commit(AT + MINUTE)
    before = log.end
    log.commit(AT)
    chain = log.chain(tmp_path)
    assert index_commits(chain, before) == EPOCH + AT * MICROSECOND
    assert index_commits(chain, 0) == EPOCH + (AT + MINUTE) * MICROSECOND
    assert index_commits(chain, chain.copied) == EPOCH
    assert [one.at for one in indexed(chain)] == [
        EPOCH + timedelta(microseconds=at) for at in (AT + MINUTE, AT)
    ]

"""Finds what a past moment of a branch names: a position in the log of one of its chains.

A moment is a time or a position (LSN). A time names all commits before the first one that is later
by the compute's clock. A position names all log before it, on the line of the present data.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from controlplane.compute.host.tree import SEGMENT_SIZE, open_directory
from controlplane.compute.host.wal import (
    is_segment_of,
    lsn_text,
    matches_checksum,
    record_at,
    segment_name,
)
from controlplane.history.local.chain import (
    LOG_LOST,
    Base,
    Chain,
    chains_of,
)
from controlplane.history.local.commits import Commit, commits_around, first_later
from controlplane.models.history import REPLACED


class NoSuchMoment(Exception):
    """The branch's history does not have the moment; the message says why."""


@dataclass(frozen=True)
class Moment:
    """A position in a chain: all log before `stop` belongs to the moment."""

    chain: Chain
    base: Base
    stop: int
    # The last commit that belongs to it, if the log from the base on has one, and the first that
    # does not.
    last: Commit | None
    following: Commit | None

    @property
    def bytes_to_replay(self) -> int:
        return max(0, self.stop - self.base.redo)

    def as_json(self) -> dict[str, Any]:
        """Times as ISO 8601, positions as Postgres writes them."""
        return {
            "lsn": lsn_text(self.stop),
            "last_commit": _commit(self.last),
            "next_commit": _commit(self.following),
            "base": {"at": self.base.at.isoformat(), "lsn": lsn_text(self.base.end)},
            "replay_bytes": self.bytes_to_replay,
        }


def find_time(branch_id: str, at: datetime) -> Moment:
    """The moment that the time names. Raises NoSuchMoment."""
    for chain in reversed(chains_of(branch_id)):
        bases = chain.bases()
        if not bases or at < bases[0].at:
            continue
        if chain.ended_at is not None and at > chain.until:
            raise NoSuchMoment(
                f"the history has a gap from {_text(chain.until)}: {chain.end_reason}"
            )
        begin = bases[0].end
        last, following = commits_around(chain, begin, first_later(chain, begin, at))
        stop = _end_of(chain, last) if last else bases[0].end
        return _moment(chain, stop, last, following)
    raise NoSuchMoment("the history begins later")


def find_lsn(branch_id: str, lsn: int) -> Moment:
    """The moment that the position names. A branch that was given other data can have a position
    several times. The one that its present data descends from is meant; without one, the only one.
    Raises NoSuchMoment."""
    chains = {chain.number: chain for chain in chains_of(branch_id) if chain.bases()}
    begins = 0
    for chain, until, gap in _ancestor_chains(chains):
        if chain.bases()[0].end <= lsn <= until:
            return _moment_at(chain, lsn)
        if gap and until < lsn < begins:
            raise NoSuchMoment(f"the position {lsn_text(lsn)} is in a gap of the history: {gap}")
        begins = chain.bases()[0].end
    found = [
        _moment_at(chain, lsn)
        for chain in chains.values()
        if chain.bases()[0].end <= lsn <= chain.copied
    ]
    if not found:
        raise NoSuchMoment(f"the history does not hold the position {lsn_text(lsn)}")
    if len(found) > 1:
        ends = [one.last.at if one.last else one.base.at for one in found]
        exact = [at.isoformat(timespec="microseconds") for at in ends]
        times = ", ".join(exact).replace("+00:00", "Z")
        raise NoSuchMoment(
            f"the position {lsn_text(lsn)} is ambiguous, as the branch had it {len(found)} times "
            f"before its data was replaced: name the time instead, which is one of {times}"
        )
    return found[0]


def _ancestor_chains(chains: dict[int, Chain]) -> Iterator[tuple[Chain, int, str]]:
    """The chains that the branch's present data descends from, the last first. With each comes the
    position up to which it does, and why the log between that and the next chain is missing."""
    chain = chains[max(chains)] if chains else None
    while chain is not None:
        yield chain, chain.copied, chain.end_reason
        while chain is not None and (follows := chain.follows) is not None:
            chain = chains.get(follows.chain)
            if chain is not None:
                yield chain, follows.lsn, ""
        chain = chains.get(chain.number - 1) if chain is not None else None
        if chain is not None and chain.end_reason == REPLACED:
            return


def _moment_at(chain: Chain, lsn: int) -> Moment:
    return _moment(chain, lsn, *commits_around(chain, chain.bases()[0].end, lsn))


def check_log(moment: Moment) -> list[str]:
    """The names of the segments that recovery to the moment needs, in their order, after a check
    that they are complete and that they continue the base. Raises NoSuchMoment."""
    chain, base = moment.chain, moment.base
    first, end = base.redo - base.redo % SEGMENT_SIZE, max(moment.stop, base.end)
    names = [segment_name(base.timeline, start) for start in range(first, end, SEGMENT_SIZE)]
    with open_directory(chain.log) as log:
        for name in names:
            if not is_segment_of(log, name, base.timeline, chain.system_id):
                raise NoSuchMoment(f"{LOG_LOST}: the segment {name} is missing or damaged")
            if not matches_checksum(chain.log / name):
                raise NoSuchMoment(f"the segment {name} of the log is not what was copied")
        if record_at(log, base.timeline, base.checkpoint.lsn) != base.checkpoint:
            raise NoSuchMoment("the log is not that of the base copy")
    return names


def _moment(chain: Chain, stop: int, last: Commit | None, following: Commit | None) -> Moment:
    bases = chain.bases()
    usable = [base for base in bases if base.end <= stop]
    if not usable:
        raise NoSuchMoment(f"the history begins at {_text(bases[0].at)}")
    return Moment(chain, usable[-1], stop, last, following)


def _end_of(chain: Chain, commit: Commit) -> int:
    """Where the commit's record ends. Raises NoSuchMoment."""
    with open_directory(chain.log) as log:
        record = record_at(log, chain.timeline, commit.lsn)
    if record is None:
        raise NoSuchMoment(f"{LOG_LOST}: the commit at {lsn_text(commit.lsn)} is missing")
    return record.end


def _commit(commit: Commit | None) -> dict[str, str] | None:
    return {"at": commit.at.isoformat(), "lsn": lsn_text(commit.lsn)} if commit else None


def _text(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds")

"""What is kept of a branch's history, and where.

`<state-dir>/branches/<branch_id>/history/` belongs to us, and no compute's account can enter it. It
holds a directory for each chain, named by its number:

    chain.json                what the chain is, and how far its log is complete
    bases/<end>/base.json     a base copy: the data directory as it was at the position <end>
    bases/<end>/data/
    log/<segment>             a segment of the log; of the last one only the beginning
    log/<segment>.sum         the checksum of what was copied of it
    log/<segment>.commits     the commits that begin in the segment (`commits`)
    log/<segment>.activity    how many they are in each minute, the latest, which removed tables

A chain is a piece of log without gaps and with at least one base. All of it was written by one data
directory. If log is missing, or another branch's data takes the place of the branch's, the chain
ends, and the branch's next base begins a new one. Nothing is ever recovered across two chains. The
new data of a branch is its first base, taken before a compute can change it.

Files are replaced, never changed, so a branch that keeps replaced data shares them by hard links.
A process that is given the descriptor of the log's directory can read the log, under any account.
Callers that write hold the branch's history lock.
"""

import json
import os
import shutil
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, Self

from django.conf import settings

from controlplane import durable
from controlplane.compute.data.branch_data import branch_dir
from controlplane.compute.host.binaries import major_of
from controlplane.compute.host.filesystem import history_lock, lock_branches, remove_tree
from controlplane.compute.host.tree import SEGMENT, start_of
from controlplane.compute.host.wal import Record, segment_start
from controlplane.models.history import REPLACED

HISTORY = "history"
COMMITS, ACTIVITY = ".commits", ".activity"
# Why a chain ended. REPLACED and UPGRADED are no loss: the branch got other data, or data of a
# newer major version of Postgres.
UPGRADED = "upgraded"
NO_LOSS = (REPLACED, UPGRADED)
LOG_LOST = "log lost"
OTHER_LOG = "other log"
DISK_FULL = "disk full"
SIZE_LIMIT = "size limit"


@dataclass(frozen=True)
class Base:
    """A copy of the data directory, without its log."""

    # Where in the log recovery from it begins, and where it is consistent.
    redo: int
    end: int
    timeline: int
    # The moment that it shows.
    at: datetime
    # A record that the log must have for recovery to begin: the checkpoint of the base.
    checkpoint: Record
    # Bytes that the copy would take if it shared no blocks.
    size: int
    # Only an earlier release wrote and used it.
    max_prepared_transactions: int = 0
    # The template that the branch was created from, by its version, if that is the base.
    template: str = ""

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "at": self.at.isoformat()}

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Self:
        return cls(
            **{
                **stored,
                "at": datetime.fromisoformat(stored["at"]),
                "checkpoint": Record(**stored["checkpoint"]),
            }
        )


class Follows(NamedTuple):
    """A past moment of a branch that a chain goes on with: the number of an earlier chain, and the
    position in its log."""

    chain: int
    lsn: int


@dataclass
class Chain:
    """One chain: see the module."""

    place: Path
    system_id: int
    timeline: int
    # All log from the first base's redo position to here is in the chain, except for what retention
    # has removed, and all that was committed until then is in it.
    copied: int
    copied_at: datetime
    ended_at: datetime | None = None
    end_reason: str = ""
    # Bytes of the disk that the bases take (`bases`): by their ends, what each has and the next
    # one has not, and what the last one has and the branch has not. They were measured when the log
    # was complete to `measured`; None if they are to be measured anew.
    beside_next: dict[int, int] = field(default_factory=dict)
    beside_branch: int = 0
    measured: int | None = None
    follows: Follows | None = None
    _bases: list[Base] | None = field(default=None, compare=False, repr=False)

    @property
    def number(self) -> int:
        return int(self.place.name)

    @property
    def until(self) -> datetime:
        """The last moment that the chain knows: no compute runs while its data is replaced."""
        if self.ended_at is not None and self.end_reason in NO_LOSS:
            return self.ended_at
        return self.copied_at

    @property
    def log(self) -> Path:
        return self.place / "log"

    def bases(self) -> list[Base]:
        """The complete bases, the oldest first, as they were when they were read first."""
        if self._bases is None:
            found = []
            for directory in (self.place / "bases").glob("[0-9A-F]*"):
                with suppress(FileNotFoundError):
                    found.append(Base.from_json(json.loads((directory / "base.json").read_text())))
            self._bases = sorted(found, key=lambda base: base.end)
        return self._bases

    def with_base(self) -> Self:
        """The chain after a base was put in its place."""
        self._bases = None
        return self

    def place_of(self, base: Base) -> Path:
        return self.place / "bases" / f"{base.end:016X}"

    def data_of(self, base: Base) -> Path:
        """The data directory that the base is."""
        if base.template:
            return Path(settings.STATE_DIR) / "templates" / base.template
        return self.place_of(base) / "data"

    def major(self) -> int:
        """The major version of the Postgres that wrote the log."""
        return major_of(self.data_of(self.bases()[0]))

    def segments(self) -> list[str]:
        """The names of the segments, in their order."""
        return sorted(path.name for path in self.log.iterdir() if SEGMENT.fullmatch(path.name))

    def write(self) -> None:
        """Write `chain.json`, durably."""
        stored = {
            "system_id": self.system_id,
            "timeline": self.timeline,
            "copied": self.copied,
            "copied_at": self.copied_at.isoformat(),
            "ended_at": self.ended_at.isoformat() if self.ended_at else None,
            "end_reason": self.end_reason,
            "beside_next": self.beside_next,
            "beside_branch": self.beside_branch,
            "measured": self.measured,
            "follows": self.follows,
        }
        durable.write(self.place / "chain.json", json.dumps(stored).encode(), 0o600)

    def end(self, reason: str, at: datetime) -> None:
        """End the chain durably. Its log and bases stay until they are older than the window."""
        self.ended_at, self.end_reason, self.measured = at, reason, None
        self.write()

    def log_size(self) -> int:
        """Bytes of the log."""
        return sum(path.lstat().st_blocks * 512 for path in self.log.iterdir())

    def disk_size(self) -> int:
        """Bytes of the disk that log and bases take, the bases as last measured."""
        bases = sum(self.beside_next.get(base.end, 0) for base in self.bases()[:-1])
        return self.log_size() + bases + self.beside_branch

    def prune(self, before: datetime) -> None:
        """Remove what no moment from `before` on needs: all bases but the last one that is not
        later than `before`, and the log that only they need."""
        older = [base for base in self.bases() if base.at <= before]
        for base in older[:-1]:
            self._remove(base)
        if older:
            self._remove_log_before(segment_start(older[-1].redo))

    def drop_oldest(self) -> bool:
        """Remove the oldest base and the log that only it needs; False if it is the only one."""
        bases = self.bases()
        if len(bases) < 2:
            return False
        self._remove(bases[0])
        self._remove_log_before(segment_start(bases[0].redo))
        return True

    def _remove(self, base: Base) -> None:
        remove_tree(self.place_of(base))
        self.bases().remove(base)

    def _remove_log_before(self, lsn: int) -> None:
        for path in self.log.iterdir():
            name = path.name.partition(".")[0]
            if SEGMENT.fullmatch(name) and start_of(name) < lsn:
                path.unlink(missing_ok=True)


def history_dir(branch_id: str) -> Path:
    return branch_dir(branch_id) / HISTORY


def holding_history(branch_id: str, *, timeout: float = 30.0) -> AbstractContextManager[None]:
    """Hold the lock of the branch's history. It may be acquired while the branch's own lock is
    held, never the other way round. Raises LockTimeout."""
    return lock_branches(history_lock(branch_id), timeout=timeout)


def chains_of(branch_id: str) -> list[Chain]:
    """All chains of the branch, the oldest first."""
    return chains_in(history_dir(branch_id))


def chains_in(history: Path) -> list[Chain]:
    found = []
    with suppress(FileNotFoundError):
        for place in history.iterdir():
            if place.name.isdigit():
                with suppress(FileNotFoundError):
                    found.append(_read(place))
    return sorted(found, key=lambda chain: chain.number)


def open_chain(branch_id: str) -> Chain | None:
    """The chain that goes on; None if there is none."""
    return open_chain_of(chains_of(branch_id))


def open_chain_of(chains: Sequence[Chain]) -> Chain | None:
    """The one of a branch's chains that goes on; None if there is none."""
    return chains[-1] if chains and chains[-1].ended_at is None else None


def new_chain(
    history: Path, *, base: Base, system_id: int, follows: Follows | None = None
) -> Chain:
    """Begin a chain in the directory `history`, without its base: the caller puts that in place
    before it writes the chain."""
    history.mkdir(mode=0o700, exist_ok=True)
    numbers = [int(place.name) for place in history.iterdir() if place.name.isdigit()]
    place = history / f"{max(numbers, default=0) + 1:06}"
    for directory in (place, place / "bases", place / "log"):
        directory.mkdir(mode=0o700)
    (place / "log").chmod(0o755)
    return Chain(
        place,
        system_id,
        base.timeline,
        copied=segment_start(base.redo),
        copied_at=base.at,
        follows=follows,
    )


def hand_over(old: Path, fresh: Path, at: datetime, reason: str = REPLACED) -> None:
    """Give the directory of a branch's fresh data the history of its old data, by hard links.

    The chain that goes on there, with the old data, ends here for the `reason`. May be called again
    after a crash.
    Raises OSError.
    """
    if not (old / HISTORY).exists():
        return
    target = fresh / HISTORY
    remove_tree(target)
    shutil.copytree(old / HISTORY, target, copy_function=os.link)
    target.chmod(0o700)
    for chain in chains_in(target):
        if chain.ended_at is None:
            chain.end(reason, at)


def _read(place: Path) -> Chain:
    stored = json.loads((place / "chain.json").read_text())
    # An earlier release did not write all of these.
    ended_at, follows = stored["ended_at"], stored.get("follows")
    return Chain(
        place,
        stored["system_id"],
        stored["timeline"],
        stored["copied"],
        datetime.fromisoformat(stored["copied_at"]),
        datetime.fromisoformat(ended_at) if ended_at else None,
        stored["end_reason"],
        {int(end): taken for end, taken in stored.get("beside_next", {}).items()},
        stored.get("beside_branch", 0),
        stored.get("measured"),
        Follows(*follows) if follows else None,
    )

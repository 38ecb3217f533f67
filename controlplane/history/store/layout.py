"""The names of the objects in the store, and the lists of what is complete there.

    regions/<region>/<host>/metadata/<time>-…         the rows and the secrets, as a tar archive
    regions/<region>/<host>/branches/<branch>/
        lists/<number>-…                              the branch's list; the highest number counts
        <chain>/bases/<end>-…                         a base copy, as a tar archive
        <chain>/log/<start>-<end>-…                   a piece of the log, by its positions
        data/<time>-…                                 the data of a branch without history
    keys/<region>/…                                   keys of before (`Store.keep_former_keys`)

<host> is the id of the state directory, so a restored service never writes among the objects of
the lost one. A chain has a random id, because a chain on disk may end in the store before it ends
on disk: where the store lacks log that the disk no longer has, a new chain begins in the store.
Every name ends in a random part: no object is ever overwritten.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from controlplane import clock
from controlplane.history.local.chain import Base
from controlplane.history.store.objects import Store, random_name
from controlplane.history.store.packing import Damaged

# The last part of a piece's name.
PIECE = re.compile("([0-9A-F]{16})-([0-9A-F]{16})-[0-9a-f]+")


def host_folder(region: str, host: str) -> str:
    return f"regions/{region}/{host}"


def branch_folder(host: str, branch_id: str) -> str:
    """The folder of a branch; `host` is the folder of its host."""
    return f"{host}/branches/{branch_id}"


@dataclass(frozen=True)
class StoredBase:
    """A base copy in the store."""

    base: Base
    # The object's name.
    name: str


@dataclass
class StoredChain:
    """A piece of log without gaps, from `start` to `end`, and base copies within it."""

    id: str
    # The chain's number on disk.
    number: int
    system_id: int
    timeline: int
    start: int
    end: int
    # The checksum and the size of the last piece, by which the log on disk is recognized.
    tail: int = 0
    tail_size: int = 0
    # All that was committed until then is in it; None as long as that is not known.
    at: datetime | None = None
    ended_at: datetime | None = None
    # The file that tells where the timeline began.
    timeline_file: str = ""
    bases: list[StoredBase] = field(default_factory=list)

    @property
    def usable_bases(self) -> list[StoredBase]:
        """Those from which the stored log can be replayed, the oldest first."""
        return [
            one for one in self.bases if self.start <= one.base.redo and one.base.end <= self.end
        ]

    @property
    def copied_at(self) -> datetime | None:
        """The moment to which it can be restored; None if it cannot be."""
        if not self.usable_bases:
            return None
        return self.at or self.usable_bases[-1].base.at

    @property
    def until(self) -> datetime | None:
        """The last moment that it may know: an idle branch is as it was until its data is
        replaced, however long ago its log was copied."""
        last = self.at or (self.bases[-1].base.at if self.bases else None)
        return max(last, self.ended_at) if last and self.ended_at else last


@dataclass(frozen=True)
class StoredData:
    """The data of a branch without history, as it was at one moment."""

    name: str
    at: datetime
    # See `branch_copy.state_of`; an earlier release did not write this.
    state: str = ""


@dataclass
class BranchList:
    """What the store has of a branch."""

    branch_id: str
    project_id: str = ""
    number: int = 0
    chains: list[StoredChain] = field(default_factory=list)
    data: StoredData | None = None
    # When the branch was found to be deleted.
    gone_at: datetime | None = None
    format: Literal[1] = 1
    # The names of the objects that hold this list and earlier ones; not stored.
    names: list[str] = field(default_factory=list)

    @property
    def copied_at(self) -> datetime | None:
        """The last moment that can be restored; None if there is none."""
        newest = self.newest
        if isinstance(newest, StoredData):
            return newest.at
        return newest.copied_at if newest else None

    @property
    def newest(self) -> StoredChain | StoredData | None:
        """What has the last state that can be restored; None for nothing."""
        last = next((one for one in reversed(self.chains) if one.copied_at), None)
        at = last.copied_at if last else None
        return self.data if self.data and (at is None or at < self.data.at) else last

    def as_json(self) -> bytes:
        return _LIST.dump_json(self, exclude={"names"})

    @classmethod
    def from_json(cls, content: bytes) -> "BranchList":
        """Raises Damaged."""
        try:
            return _LIST.validate_json(content)
        except ValidationError as error:
            raise Damaged("the list was written by another version of Perch") from error


_LIST = TypeAdapter(BranchList)


def read_list(store: Store, folder: str) -> BranchList | None:
    """The newest list by which the branch can be restored, or else the newest: one begun anew has
    no base yet. None for none. Raises StoreFails, Damaged, WrongKey."""
    newest = store.newest(f"{folder}/lists", lambda it: bool(BranchList.from_json(it).copied_at))
    if newest is None:
        return None
    names, content = newest
    found = BranchList.from_json(content)
    found.names = names
    return found


def write_list(store: Store, folder: str, branch: BranchList) -> None:
    """Store the list, with the next number, and delete the earlier ones. Raises StoreFails."""
    # At least the time: a store that once listed nothing may still have earlier lists.
    branch.number = max(branch.number + 1, int(clock.now().timestamp()))
    name = f"{list_name(folder, branch.number)}-{random_name()}"
    store.put(name, branch.as_json())
    earlier, branch.names = branch.names, [name]
    store.delete(earlier)


def list_name(folder: str, number: int) -> str:
    """How the name of the branch's list with this number begins."""
    return f"{folder}/lists/{number:012}"


def piece_name(folder: str, chain: StoredChain, start: int, end: int) -> str:
    return f"{folder}/{chain.id}/log/{start:016X}-{end:016X}-{random_name()}"


@dataclass(frozen=True)
class Piece:
    """A piece of the log in the store, by its name."""

    name: str
    start: int
    end: int


def pieces_in(names: Iterable[str]) -> list[Piece]:
    """The pieces of the log with these names. What has another name is no piece: whoever can write
    to the store without the key may have put it there."""
    return [
        Piece(name, int(parts[1], 16), int(parts[2], 16))
        for name in names
        if (parts := PIECE.fullmatch(name.rsplit("/", 1)[-1]))
    ]

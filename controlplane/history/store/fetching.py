"""Brings a branch's history back from the store: its newest base and the log from there on, as a
chain on disk, from which `history.local.recovering` makes a branch."""

import json
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from controlplane.compute.data.branch_data import create_from_copy
from controlplane.compute.host.filesystem import remove_tree
from controlplane.compute.host.patience import report_progress
from controlplane.compute.host.tree import SEGMENT_SIZE
from controlplane.compute.host.wal import PAGE, segment_name, segment_start, write_sum
from controlplane.history.local.chain import Base, Chain
from controlplane.history.local.moments import Moment
from controlplane.history.local.recovering import create_from_history
from controlplane.history.store.layout import (
    BranchList,
    Piece,
    StoredBase,
    StoredChain,
    StoredData,
    pieces_in,
    read_list,
)
from controlplane.history.store.objects import Store
from controlplane.history.store.packing import Damaged, WrongKey, write_tree

# Pieces are small: most of the time is spent waiting for answers.
MAX_CONCURRENT_PIECES = 8


@dataclass(frozen=True)
class Fetched:
    """A branch's state from the store: a moment of a chain on disk, or a copy of its data."""

    # Until when the branch's commits are in it.
    at: datetime
    moment: Moment | None = None
    data: Path | None = None
    # Why newer data of the branch may be missing in it; "" if nothing is known to be newer.
    shortfall: str = ""
    # Why it is not from the newest base copy; "" if it is.
    damage: str = ""
    # Why log is missing at its end; None if none is.
    gap: Damaged | WrongKey | None = None


class NothingStored(Exception):
    """The store has no state of the branch from which it could be made; the message says why."""


@contextmanager
def fetched_branch(
    store: Store, folder: str, place: Path, number: int = 0, *, to_gap: bool = False
) -> Iterator[Fetched]:
    """Bring the newest state of the branch with this folder in the store into the directory
    `place`. It is removed first, as a killed process may have left it, and at the end. `number` is
    that of the branch's list in the host's last sign: an earlier list is a shortfall. If log
    is missing, it is the state before that with `to_gap`, and otherwise an error. Raises
    NothingStored, StoreFails, Damaged, WrongKey, OSError."""
    remove_tree(place)
    try:
        found = _fetch(store, folder, read_list(store, folder) or BranchList(""), place, number)
        if found.gap and not to_gap:
            raise found.gap
        yield found
    finally:
        remove_tree(place)


def create_branch(
    branch_id: str, fetched: Fetched, on_recovered: Callable[[Path], None] = lambda sockets: None
) -> None:
    """Make the branch's directory from what was fetched. `on_recovered`, and what this raises, are
    those of `create_from_history`."""
    if fetched.data is not None:
        create_from_copy(branch_id, fetched.data)
        return
    moment = fetched.moment
    assert moment is not None
    create_from_history(branch_id, lambda: moment, holding=nullcontext, on_recovered=on_recovered)


def _fetch(store: Store, folder: str, branch: BranchList, place: Path, number: int) -> Fetched:
    newest, shortfall = branch.newest, ""
    if branch.number < number:
        shortfall = "the store does not give the last list of its copies"
    elif branch.chains and branch.chains[-1].copied_at is None:
        shortfall = "its newest data had not been copied completely"
    if isinstance(newest, StoredData):
        write_tree(_progressing(store.get(newest.name)), place / "data")
        return Fetched(newest.at, data=place / "data", shortfall=shortfall)
    if newest is None:
        raise NothingStored("no base copy of it is complete in the store")
    if newest.ended_at is not None:
        shortfall = shortfall or "its history had ended, and what followed was not copied"
    return replace(_fetch_newest(store, folder, newest, place), shortfall=shortfall)


def _fetch_newest(store: Store, folder: str, stored: StoredChain, place: Path) -> Fetched:
    """The last moment of the chain, from the newest base that can be read: from an earlier one,
    only more log is to be replayed. Raises why the newest cannot be read if no other can."""
    assert stored.copied_at is not None
    errors: list[Damaged | WrongKey] = []
    for base in reversed(stored.usable_bases):
        try:
            moment, gap = _fetch_chain(store, folder, stored, base, place)
        except (Damaged, WrongKey) as error:
            remove_tree(place)
            errors.append(error)
            continue
        damage = f"its newest base copy cannot be used: {errors[0]}" if errors else ""
        # The log does not say when the commits before a gap were made.
        at = base.base.at if gap else stored.copied_at
        return Fetched(at, moment=moment, damage=damage, gap=gap)
    raise errors[0]


def _fetch_chain(
    store: Store, folder: str, stored: StoredChain, from_base: StoredBase, place: Path
) -> tuple[Moment, Damaged | WrongKey | None]:
    # The base's data is beside it on disk, even if it was the template of another host.
    base = replace(from_base.base, template="")
    assert stored.copied_at is not None
    chain = Chain(
        place / f"{stored.number:06}",
        stored.system_id,
        stored.timeline,
        copied=stored.end,
        copied_at=stored.copied_at,
    )
    chain.log.mkdir(parents=True)
    write_tree(_progressing(store.get(from_base.name)), chain.data_of(base))
    (chain.place_of(base) / "base.json").write_text(json.dumps(base.as_json()))
    if stored.timeline_file:
        (chain.log / f"{stored.timeline:08X}.history").write_text(stored.timeline_file)
    gap = _fetch_log(store, f"{folder}/{stored.id}/log", chain, base)
    return Moment(chain, base, chain.copied, None, None), gap


def _progressing(parts: Iterable[bytes]) -> Iterator[bytes]:
    """The parts; each is progress of the work under way."""
    for part in parts:
        report_progress()
        yield part


def _fetch_log(store: Store, folder: str, chain: Chain, base: Base) -> Damaged | WrongKey | None:
    """Write the segments from the base to the chain's end. Pieces that cannot be read, which others
    may have added without the key, are left out. If log is missing, the chain ends there: returns
    why, or raises it if not even the base is complete with the log before."""
    first = segment_start(base.redo)
    pieces = set(pieces_in(store.names(folder)))

    def write(piece: Piece) -> Damaged | WrongKey | None:
        try:
            content = b"".join(store.get(piece.name))
        except (Damaged, WrongKey) as error:
            return error
        if len(content) != piece.end - piece.start:
            return Damaged(f"{piece.name} has not the length that its name says")
        segment = chain.log / segment_name(chain.timeline, piece.start)
        with segment.open("r+b") as file:
            file.seek(piece.start % SEGMENT_SIZE)
            file.write(content)
        return None

    for start in range(first, chain.copied, SEGMENT_SIZE):
        size = min(SEGMENT_SIZE, chain.copied - start)
        with (chain.log / segment_name(chain.timeline, start)).open("wb") as file:
            file.truncate(size + -size % PAGE)
    with ThreadPoolExecutor(MAX_CONCURRENT_PIECES) as threads:
        written: set[Piece] = set()
        why: Damaged | WrongKey | None = None
        while new := set(chosen := _continuous(pieces, first, chain.copied)) - written:
            for piece, error in zip(new, threads.map(write, new), strict=True):
                report_progress()
                (pieces.remove if error else written.add)(piece)
                why = why or error
    reached = chosen[-1].end if chosen else first
    why = why or Damaged(f"the log from {reached:X} on is missing in the store")
    if reached < base.end:
        raise why
    gap, chain.copied = (why if reached < chain.copied else None), min(reached, chain.copied)
    for name in chain.segments():
        write_sum(chain.log / name)
    return gap


def _continuous(pieces: Iterable[Piece], start: int, end: int) -> list[Piece]:
    """Pieces that together have all log from `start` to `end`, or to the first gap. The same log
    may be in two pieces, if a worker ended before it had written the list."""
    chosen, reached = [], start
    by_start = sorted(pieces, key=lambda piece: (piece.start, -piece.end))
    for piece in by_start:
        if piece.start > reached:
            break
        if piece.end > reached and piece.start < end:
            chosen.append(piece)
            reached = piece.end
    return chosen

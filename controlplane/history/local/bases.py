"""Takes base copies of a branch's data directory, of a stopped one by copying it, of a running one
by `base_backup`; and measures how many bytes of the disk they take.

A base holds no log: that is in its chain. On a disk that shares blocks, a base takes almost no room
when it is taken, and what the branch changes from then on: those blocks that nothing else has. The
branch never gets a block back that it has overwritten, so a block that the next base lacks is in no
later base either. All bases together therefore take the sum of what each has and the next one has
not, and of what the last one has and the branch has not. Only the latter grows, and only while the
branch is written to. Elsewhere a base takes its size, and nothing is read to measure it.
"""

import fcntl
import functools
import json
import os
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path

from controlplane import clock, durable
from controlplane.compute.data.base_backup import BRANCH_FILES, back_up, positions_in
from controlplane.compute.data.branch_data import data_dir, require_space
from controlplane.compute.host.accounts import own_account
from controlplane.compute.host.cloning import clone_tree, shares_blocks, sync_clone
from controlplane.compute.host.filesystem import remove_tree
from controlplane.compute.host.foreign_files import read_regular
from controlplane.compute.host.tree import files_in, open_inside, tree_size
from controlplane.compute.host.wal import record_at
from controlplane.compute.processes.recovery import read_control
from controlplane.history.local import pulling
from controlplane.history.local.chain import (
    HISTORY,
    Base,
    Chain,
    Follows,
    history_dir,
    new_chain,
    open_chain,
)

# Names in a data directory that a base of a stopped compute leaves out.
NOT_IN_A_BASE = (*BRANCH_FILES, "pg_wal", "pg_wal/archive_status", "pg_wal/summaries")
# Bytes of log after which a further base is taken, where disks share blocks.
LOG_BYTES_PER_BASE = 32 << 20
MAX_LABEL_BYTES = 4096  # bytes
FIEMAP = 0xC020660B  # linux/fs.h
# linux/fiemap.h: start, length, flags, mapped extents, room for extents, reserved.
REQUEST = struct.Struct("<QQIIII")
# Logical and physical begin, length, flags.
EXTENT = struct.Struct("<QQQ16xI12x")
BATCH_SIZE = 256
# Flags of requests and of extents.
FLAG_SYNC, EXTENT_LAST = 0x1, 0x1
# Extents without a place on the disk yet.
NOT_PLACED = 0x2 | 0x4


class NoBase(Exception):
    """No base can be taken now; the message says why."""


def base_of_stopped(
    branch_id: str,
    *,
    at: datetime | None = None,
    follows: Follows | None = None,
    end: int | None = None,
) -> Chain:
    """Take a base of the branch, whose compute is stopped, and begin a chain with it if none is
    open. Returns the chain.

    `at` is the moment since when the data has been as it is, by default now. A chain that begins
    `follows` the position of an earlier one. The log ends at `end`; None if that is to be found
    out. The caller holds the branch's lock and its history
    lock, and has copied the log of an open chain. Raises NoBase, LogUnreadable,
    NotEnoughSpace, TreeUntrusted, OSError.
    """
    data = data_dir(branch_id)
    base, system_id = _base_in(data, at or clock.now(), end=end)

    def copy(target: Path) -> Base:
        require_space(data, target.parent, skip=NOT_IN_A_BASE)
        size = clone_tree(data, target, owner=own_account(), skip=NOT_IN_A_BASE)
        return replace(base, size=size)

    return _put_in_place(branch_id, system_id, copy, follows)


def base_of_running(branch_id: str, sockets: Path) -> Chain:
    """Take a base of the branch as its compute runs, and begin a chain with it if none is open.
    Returns the chain.

    The caller holds the branch's history lock. Raises NoBase, NotEnoughSpace, TreeUntrusted,
    psycopg.Error, OSError.
    """
    data = data_dir(branch_id)

    def copy(target: Path) -> Base:
        require_space(data, target.parent, skip=NOT_IN_A_BASE)
        end = back_up(data, sockets, target, own_account())
        base, _ = _base_in(target, clock.now(), end=end)
        base = replace(base, size=tree_size(target, skip=NOT_IN_A_BASE))
        for segment in (target / "pg_wal").iterdir():
            if segment.is_file():
                segment.unlink()
        return base

    return _put_in_place(branch_id, read_control(data).system_id, copy)


def begin_with_template(staging: Path, template: Path) -> None:
    """Begin the history of a branch that is being created from the template in the directory
    `staging`. The template is its base, so this copies nothing. Raises OSError."""
    base, system_id = _template_base(template)
    chain = new_chain(staging / HISTORY, base=replace(base, at=clock.now()), system_id=system_id)
    place = chain.place_of(base)
    place.mkdir(mode=0o700)
    (place / "base.json").write_text(json.dumps(replace(base, at=clock.now()).as_json()))
    chain.write()


@functools.cache
def _template_base(template: Path) -> tuple[Base, int]:
    base, system_id = _base_in(template, clock.now())
    return replace(base, template=template.name), system_id


def _base_in(data: Path, at: datetime, *, end: int | None = None) -> tuple[Base, int]:
    """What a data directory that does not run is as a base, but for its size, and its system
    identifier. Its log ends
    at `end`; None if that is to be found out. Raises NoBase, LogUnreadable, OSError."""
    control = read_control(data)
    # The copy of a running branch has the checkpoint that the copy began with.
    label = read_regular(data / "backup_label", MAX_LABEL_BYTES).decode()
    redo, lsn = positions_in(label) if label else (control.redo, control.checkpoint)
    with open_inside(data, "pg_wal") as log:
        checkpoint = record_at(log, control.timeline, lsn)
        end = end or pulling.end_of_stopped_log(data, log, since=redo)
    if checkpoint is None or end is None or end < checkpoint.end:
        raise NoBase("the log of the data is not complete")
    return Base(redo, end, control.timeline, at, checkpoint, size=0), control.system_id


def _put_in_place(
    branch_id: str, system_id: int, copy: Callable[[Path], Base], follows: Follows | None = None
) -> Chain:
    chain = open_chain(branch_id)
    if chain is not None and (chain.system_id != system_id):
        raise NoBase("the chain is another cluster's")
    place = history_dir(branch_id) / ".base"
    remove_tree(place)
    place.mkdir(mode=0o700, parents=True)
    try:
        taken = copy(place / "data")
        if chain is None:
            chain = new_chain(
                history_dir(branch_id), base=taken, system_id=system_id, follows=follows
            )
        elif chain.timeline != taken.timeline:
            raise NoBase("the chain is of another timeline")
        (place / "base.json").write_text(json.dumps(taken.as_json()))
        sync_clone(place)
        target = chain.place_of(taken)
        if not target.exists():
            durable.rename(place, target)
            chain.measured = None
            chain.write()
    finally:
        remove_tree(place)
    return chain.with_base()


def measure_bases(chain: Chain, branch_id: str) -> None:
    """Bring `chain.beside_next` and `chain.beside_branch` to what the bases take now; the caller
    writes the chain and holds the branch's history lock. Raises OSError, TreeUntrusted."""
    data = data_dir(branch_id)
    bases = [base for base in chain.bases() if not base.template]
    if not shares_blocks(data.parent.parent):
        chain.beside_next = {base.end: base.size for base in bases[:-1]}
        chain.beside_branch = bases[-1].size if bases else 0
        return
    known, chain.beside_next = chain.beside_next, {}
    for base, following in pairwise(bases):
        if base.end in known:
            chain.beside_next[base.end] = known[base.end]
        else:
            taken = _bytes_not_shared(chain.data_of(base), chain.data_of(following))
            chain.beside_next[base.end] = taken
    chain.beside_branch = _bytes_not_shared(chain.data_of(bases[-1]), data) if bases else 0


def _bytes_not_shared(tree: Path, other: Path) -> int:
    """Bytes of the disk that the tree has and the other tree has not."""
    others = list(_extents(other))
    return _length([*_extents(tree), *others]) - _length(others)


def _length(extents: Iterable[tuple[int, int]]) -> int:
    """Bytes that lie in at least one of the extents, which have a begin and an end."""
    total = reached = 0
    for begin, end in sorted(extents):
        total += max(0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def _extents(tree: Path) -> Iterator[tuple[int, int]]:
    """Where on the disk the files of the tree are: begin and end in bytes."""
    for file in files_in(tree, skip=NOT_IN_A_BASE):
        for _, begin, length, flags in extents_of(file):
            if not flags & NOT_PLACED:
                yield begin, begin + length


def extents_of(file: int, *, request: int = 0) -> Iterator[tuple[int, int, int, int]]:
    """Where the file is: for each extent its begin in the file and on the disk, its length, and its
    flags. `request` is 0 or FLAG_SYNC, which writes the file to the disk first. Raises OSError."""
    position, is_last = 0, os.fstat(file).st_size == 0
    while not is_last:
        answer = bytearray(REQUEST.size + BATCH_SIZE * EXTENT.size)
        REQUEST.pack_into(answer, 0, position, 2**64 - 1 - position, request, 0, BATCH_SIZE, 0)
        fcntl.ioctl(file, FIEMAP, answer)
        count = REQUEST.unpack_from(answer)[3]
        is_last = count == 0
        for number in range(count):
            logical, begin, length, flags = EXTENT.unpack_from(
                answer, REQUEST.size + number * EXTENT.size
            )
            yield logical, begin, length, flags
            position, is_last = logical + length, bool(flags & EXTENT_LAST)

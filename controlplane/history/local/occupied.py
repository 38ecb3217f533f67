"""How many bytes of the disk the base copies of a branch take.

On a disk that shares blocks, a base takes those blocks that nothing else has. The branch never gets
a block back that it has overwritten, so a block that the next base lacks is in no later base
either. All bases together therefore take the sum of what each has and the next one has not, and of
what the last one has and the branch has not. Only the latter grows, and only while the branch is
written to. Elsewhere a base takes its size, and nothing is read.
"""

import fcntl
import os
import struct
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path

from controlplane.compute.data.branch_data import data_dir
from controlplane.compute.host.cloning import shares_blocks
from controlplane.compute.host.tree import files_in
from controlplane.history.local.bases import NOT_IN_A_BASE
from controlplane.history.local.chain import Chain

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

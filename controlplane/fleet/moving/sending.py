"""Sends a branch to another host: its data, history and logs. The files of a running compute are
sent while it writes them, and its log with them (`streaming`); what the log does not have follows
once it has stopped.

The caller holds the locks of all branches that are sent over the connection, and of their
histories, until the last one was sent. Blocks that were sent before are not sent again, so that the
other host can share them too: a child shares blocks with its parent, and a base of the history with
its branch. They are known by their places on this host's disk (FIEMAP). So no file that was sent
may be changed or removed as long as others are being sent: its blocks could be another's then.
"""

import bisect
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from controlplane.compute.data.base_backup import PROCESS_FILES, RUNNING_FILES
from controlplane.compute.data.branch_data import branch_dir, data_dir
from controlplane.compute.host.steps import add_bytes
from controlplane.compute.host.tree import REGULAR, data_of, entries_in, open_file, tree_size
from controlplane.compute.processes.recovery import STANDBY
from controlplane.fleet.messages import CHUNK_BYTES, Link
from controlplane.fleet.moving.streaming import Stream
from controlplane.history.local.bases import FLAG_SYNC, NOT_IN_A_BASE, extents_of
from controlplane.history.local.chain import Base, Chain, chains_of, history_dir

DATA = "data"
# What is in no log: directories, which are sent whole, and a file.
_DIRECTORIES = ("pg_logical", "pg_replslot", "pg_stat", "pg_twophase")
_CONTROL = "global/pg_control"
NOT_SENT_AGAIN = (*PROCESS_FILES, "pg_wal")
_TIMELINE = re.compile("[0-9A-F]{8}[.]history")
_INIT = "_init"
# A file of a table or index: its main part, another fork, or a further gigabyte of one.
_FORK = re.compile(r"(base/\d+/\d+)(?:_[a-z]+)?(?:\.\d+)?")
# linux/fiemap.h
_UNWRITTEN, _SHARED = 0x800, 0x2000
# Extents whose place on the disk does not tell what is in them.
_UNKNOWN = 0x2 | 0x4 | 0x8 | 0x80 | 0x100 | 0x200 | 0x400
# Shorter pieces are sent: they cost less than the sharing.
_MIN_SHARED_BYTES = 4096


@dataclass(frozen=True)
class Part:
    """A part of a file: bytes from `offset` on. If `like` is set, it is the file that was sent
    before, and `at` the place in it, from which the part has the same blocks."""

    offset: int
    length: int
    like: str = ""
    at: int = 0


class SentBlocks:
    """The blocks of the files that were sent over one connection."""

    def __init__(self) -> None:
        # Sorted, and without overlaps: where on the disk each begins; its end, file and offset.
        self._begins: list[int] = []
        self._rest: list[tuple[int, str, int]] = []

    def parts(self, file: int, size: int, name: str) -> Iterator[Part]:
        """The parts that the first `size` bytes of a file consist of, without its holes; those that
        were not sent before count as sent from now on, as the file `name`."""
        try:
            extents = list(extents_of(file, request=FLAG_SYNC))
        except OSError:
            # The disk does not tell, as most of those that share no blocks.
            parts = data_of(file, size)
            extents = [(begin, 0, end - begin, _UNKNOWN) for begin, end in parts]
        for logical, physical, length, flags in extents:
            length = min(length, size - logical)
            if length <= 0 or flags & _UNWRITTEN:
                continue
            # Only blocks that several files have can be met again.
            if flags & _UNKNOWN or not flags & _SHARED:
                yield Part(logical, length)
                continue
            yield from self._known_and_new(logical, physical, length, name)

    def _known_and_new(self, logical: int, physical: int, length: int, name: str) -> Iterator[Part]:
        at, end, new = physical, physical + length, []
        while at < end:
            place = bisect.bisect_right(self._begins, at) - 1
            if place >= 0 and self._rest[place][0] > at:
                known_end, like, offset = self._rest[place]
                until = min(end, known_end)
                shift = at - self._begins[place]
                if until - at >= _MIN_SHARED_BYTES:
                    yield Part(logical + at - physical, until - at, like, offset + shift)
                else:
                    yield Part(logical + at - physical, until - at)
            else:
                following = place + 1
                until = end
                if following < len(self._begins):
                    until = min(end, self._begins[following])
                yield Part(logical + at - physical, until - at)
                new.append((at, until, logical + at - physical))
            at = until
        for begin, until, offset in new:
            place = bisect.bisect_left(self._begins, begin)
            self._begins.insert(place, begin)
            self._rest.insert(place, (until, name, offset))


def size_of(branch_id: str) -> int:
    """Bytes of the branch's data and history, as if they shared no blocks. Raises TreeUntrusted,
    OSError."""
    history = history_dir(branch_id)
    kept = tree_size(history) if history.exists() else 0
    return tree_size(data_dir(branch_id), skip=PROCESS_FILES) + kept


def send_branch(
    link: Link,
    branch_id: str,
    sent: SentBlocks,
    *,
    of_running: tuple[Stream, Path] | None = None,
    between: Callable[[], None] = lambda: None,
) -> None:
    """Send all that the branch has; returns once the other host has it durably in its place.

    If its compute runs, `of_running` is the stream of its log, and its data directory or a clone of
    it. `between` is called between two files. Raises LinkBroken, MoveRefused, TreeUntrusted,
    OSError, and of a running compute what its stream raises."""
    link.send(branch=branch_id)
    sender = _Sender(link, branch_id, sent, between)
    if of_running is None:
        sender.tree(data_dir(branch_id), DATA, skip=PROCESS_FILES)
    else:
        stream, data = of_running
        for name in (DATA, f"{DATA}/pg_wal"):
            link.send(directory=name)
        link.send(follow=branch_id)
        sender.tree(data, DATA, skip=RUNNING_FILES)
        # What its timeline goes back to.
        log = data_dir(branch_id) / "pg_wal"
        sender.tree(log, f"{DATA}/pg_wal", wanted=_TIMELINE.fullmatch)
        sender.content(stream.end_backup().encode(), f"{DATA}/backup_label")
        sender.content(b"", f"{DATA}/{STANDBY}")
        stream.send_new()
    for chain in chains_of(branch_id):
        sender.chain(chain)
    for path in sorted(branch_dir(branch_id).glob("*.log*")):
        if path.is_file() and not path.is_symlink():
            sender.own_file(path, path.name)
    link.send(complete=branch_id)
    link.receive()


def send_unlogged_files(link: Link, branch_id: str) -> None:
    """Send the files of a stopped compute that no replay of its log makes: unlogged tables, slots,
    statistics and the state of the cluster. Raises LinkBroken, TreeUntrusted, OSError."""
    data, sender = data_dir(branch_id), _Sender(link, branch_id, SentBlocks())
    # Every file of an unlogged table or index has a fork by which a crash empties it.
    forks = entries_in(data, skip=NOT_SENT_AGAIN, wanted=lambda path: path.endswith(_INIT))
    unlogged = {path.removesuffix(_INIT) for path, file in forks if file is not None}

    def is_wanted(path: str) -> bool:
        relation = _FORK.fullmatch(path)
        return (
            path == _CONTROL
            or path.partition("/")[0] in _DIRECTORIES
            or (relation is not None and relation[1] in unlogged and not path.endswith(_INIT))
        )

    for path, file in entries_in(data, skip=NOT_SENT_AGAIN, wanted=is_wanted):
        if file is not None:
            sender.file(file, f"{DATA}/{path}")
        elif path.partition("/")[0] in _DIRECTORIES:
            link.send(directory=f"{DATA}/{path}")
    link.send(complete=branch_id)


@dataclass
class _Sender:
    _link: Link
    _branch_id: str
    _sent: SentBlocks
    _between: Callable[[], None] = lambda: None

    def tree(
        self,
        source: Path,
        name: str,
        *,
        skip: tuple[str, ...] = (),
        wanted: Callable[[str], object] = lambda path: True,
    ) -> None:
        """Send the tree `source` as the directory `name` of the branch, with the `wanted` files."""
        self._link.send(directory=name)
        for inner, file in entries_in(source, skip=skip, wanted=wanted):
            if file is None:
                self._link.send(directory=f"{name}/{inner}")
            else:
                self.file(file, f"{name}/{inner}")

    def chain(self, chain: Chain) -> None:
        """Send a chain of the history. Its log is first made up of whole directories."""
        name = f"{chain.place.parent.name}/{chain.place.name}"
        for directory in (chain.place.parent.name, name, f"{name}/bases", f"{name}/log"):
            self._link.send(directory=directory)
        for base in chain.bases():
            self._base(chain, base, f"{name}/bases/{chain.place_of(base).name}")
        for path in sorted(chain.log.iterdir()):
            self.own_file(path, f"{name}/log/{path.name}")
        # Other blocks are shared there, so what the bases take has to be measured again.
        stored = {**json.loads((chain.place / "chain.json").read_text()), "measured": None}
        self.content(json.dumps(stored).encode(), f"{name}/chain.json")

    def _base(self, chain: Chain, base: Base, name: str) -> None:
        self._link.send(directory=name)
        data, stored = chain.data_of(base), base.as_json()
        if base.template:
            # The other host's template is another cluster: the base is sent as a copy.
            stored |= {"template": "", "size": tree_size(data, skip=NOT_IN_A_BASE)}
        self.tree(data, f"{name}/data", skip=NOT_IN_A_BASE)
        self.content(json.dumps(stored).encode(), f"{name}/base.json")

    def own_file(self, path: Path, name: str) -> None:
        """Send a file that no untrusted account can write to."""
        with open_file(path, REGULAR) as descriptor:
            self.file(descriptor, name)

    def file(self, file: int, name: str) -> None:
        self._link.heed()
        # A running compute may write more to it, which is also in its log.
        found = os.fstat(file)
        self._link.send(file=name, size=found.st_size, mode=found.st_mode & 0o777)
        for part in self._sent.parts(file, found.st_size, f"{self._branch_id}/{name}"):
            if part.like:
                self._link.send(at=part.offset, length=part.length, like=part.like, of=part.at)
                add_bytes(part.length)
            else:
                self._part(file, part)
        self._link.send(end=name)
        self._between()

    def content(self, content: bytes, name: str) -> None:
        self._link.send(file=name, size=len(content), mode=0o600)
        self._link.send(at=0, length=len(content))
        for start in range(0, len(content), CHUNK_BYTES):
            self._link.send_bytes(content[start : start + CHUNK_BYTES])
        self._link.send(end=name)

    def _part(self, file: int, part: Part) -> None:
        """Send the bytes of the part; zeros for those that the file has lost meanwhile."""
        self._link.send(at=part.offset, length=part.length)
        end = part.offset + part.length
        for offset in range(part.offset, end, CHUNK_BYTES):
            wanted = min(CHUNK_BYTES, end - offset)
            piece = os.pread(file, wanted, offset).ljust(wanted, b"\0")
            self._link.heed()
            self._link.send_bytes(piece)
            add_bytes(wanted)

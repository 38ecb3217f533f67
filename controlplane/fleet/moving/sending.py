"""Sends a branch to another host: its data, history and logs. The files of a running compute are
sent while it writes them, and its log with them (`streaming`); what the log does not have follows
once it has stopped.

The caller holds the locks of all branches that are sent over the connection, and of their
histories, until the last one was sent (`sharing`).
"""

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from controlplane.compute.data.base_backup import PROCESS_FILES, RUNNING_FILES
from controlplane.compute.data.branch_data import branch_dir, data_dir
from controlplane.compute.host.steps import add_bytes
from controlplane.compute.host.tree import REGULAR, entries_in, tree_size
from controlplane.compute.processes.recovery import STANDBY
from controlplane.fleet.messages import CHUNK_BYTES, Link
from controlplane.fleet.moving.sharing import Part, SentBlocks
from controlplane.fleet.moving.streaming import Stream
from controlplane.history.local.bases import NOT_IN_A_BASE
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


class _Sender:
    def __init__(
        self,
        link: Link,
        branch_id: str,
        sent: SentBlocks,
        between: Callable[[], None] = lambda: None,
    ) -> None:
        self._link = link
        self._branch_id = branch_id
        self._sent = sent
        self._between = between

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
        descriptor = os.open(path, REGULAR)
        try:
            self.file(descriptor, name)
        finally:
            os.close(descriptor)

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
        self._link.send(at=part.offset, length=part.length)
        for piece in _pieces(file, part):
            self._link.heed()
            self._link.send_bytes(piece)
            add_bytes(len(piece))


def _pieces(file: int, part: Part) -> Iterator[bytes]:
    """The bytes of the part; zeros for those that the file has lost meanwhile."""
    offset, end = part.offset, part.offset + part.length
    while offset < end:
        wanted = min(CHUNK_BYTES, end - offset)
        piece = os.pread(file, wanted, offset).ljust(wanted, b"\0")
        yield piece
        offset += wanted

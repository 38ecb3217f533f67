"""Receives a branch from another host (`sending`) and makes it here: in a staging directory, which
takes its place only when it is complete and on the disk.

A standby may have run on what was received before, and its account may have left links in place of
directories. So each directory is opened from that of the branch on, without following links.
"""

import fcntl
import os
import stat
import struct
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from controlplane import durable
from controlplane.compute import compute
from controlplane.compute.data.branch_data import MIN_BRANCH_BYTES, branch_dir, new_branch
from controlplane.compute.host.accounts import Account, account_of, own_account, set_owner
from controlplane.compute.host.cloning import NO_REFLINK
from controlplane.compute.host.filesystem import remove_tree
from controlplane.compute.host.space import require, require_reserve
from controlplane.compute.host.tree import NEW_FILE, REGULAR, TreeUntrusted, open_directory
from controlplane.compute.workshop import end_workshop
from controlplane.fleet.messages import Link, LinkBroken
from controlplane.fleet.moving.following import Follower
from controlplane.fleet.moving.sending import DATA

_FICLONERANGE = 0x4020940D  # linux/fs.h: source, its offset, length, the target's offset
_RANGE = struct.Struct("=qQQQ")
_COPY_CHUNK_BYTES = 1 << 20
_MAX_DEPTH = 16
# Files are at most so large: a message cannot make a larger one.
_MAX_FILE_BYTES = 1 << 40
# Bytes after which the disk's space is checked again.
_SPACE_CHECK_BYTES = 64 << 20
# What ALTER SYSTEM writes, which no client may. So it holds nothing, or what a compute that was
# taken over has put there to override the platform's settings.
_SETTINGS_OF_THE_CLUSTER = f"{DATA}/postgresql.auto.conf"


class Following:
    """The running computes that are followed over one connection."""

    def __init__(self) -> None:
        self._followers: dict[str, Follower] = {}

    def __getitem__(self, branch_id: str) -> Follower:
        try:
            return self._followers[branch_id]
        except KeyError:
            raise LinkBroken("the other host has sent log of a branch that is stopped") from None

    def add(self, branch_id: str, follower: Follower) -> None:
        self._followers[branch_id] = follower

    def close(self) -> None:
        """End all standbys."""
        with ExitStack() as closed:
            for follower in self._followers.values():
                closed.callback(follower.close)

    def receive_log(self, link: Link, message: Mapping[str, Any]) -> None:
        """Receive the part of a log that the message announces. Raises LinkBroken,
        NotEnoughSpace, OSError."""
        at, length = int(message["at"]), int(message["length"])
        self[str(message["log"])].receive_log(link, str(message["segment"]), at, length)


def receive_branch(
    link: Link, branch_id: str, received: Collection[str], following: Following
) -> None:
    """Make the branch, in place of any that is left of an earlier move. It may share blocks with
    the branches `received` before. If its compute runs on the other host, it is `following` that
    from now on. The caller holds the locks of all of these. Raises LinkBroken, MoveRefused,
    TreeUntrusted, NotEnoughSpace, AccountUnusable, OSError."""
    end_workshop(branch_id)
    compute.clear(branch_id)
    with new_branch(branch_id) as (staging, account):
        require(MIN_BRANCH_BYTES, at=staging, what="the branch")
        _Receiver(link, branch_id, received, staging, account, following).receive()


def receive_unlogged_files(link: Link, branch_id: str) -> None:
    """Receive, durably, what the log of a followed compute did not have. Raises LinkBroken,
    MoveRefused, NotEnoughSpace, OSError."""
    place = branch_dir(branch_id)
    account = account_of(place)
    receiver = _Receiver(link, branch_id, (), place, account, Following(), is_in_place=True)
    receiver.receive()
    # One after the other only now: most of it is then one write of the filesystem's journal.
    for name in (*receiver.changed, DATA):
        with suppress(FileNotFoundError), _directory_of(place, name) as (directory, last):
            durable.sync(last, dir_fd=directory)


def remove_received(branch_id: str) -> None:
    """Remove what this host has of the branch, whatever works on it. The caller holds its lock.
    Raises StopFailed, OSError."""
    end_workshop(branch_id)
    compute.remove(branch_id)


@dataclass
class _Receiver:
    _link: Link
    _branch_id: str
    _received: Collection[str]
    _staging: Path
    _account: Account
    _following: Following
    # Whether the files replace those of a branch that was received before.
    is_in_place: bool = False
    # In their order, the names of these files and of the directories that they are in.
    changed: dict[str, None] = field(default_factory=dict)
    _unlooked: int = 0

    def receive(self) -> None:
        while True:
            message = self._link.receive()
            if "directory" in message:
                self._make_directory(str(message["directory"]))
            elif "file" in message:
                self._receive_file(
                    str(message["file"]), size=int(message["size"]), mode=int(message["mode"])
                )
            elif "log" in message:
                self._following.receive_log(self._link, message)
            elif message.get("follow") == self._branch_id and not self.is_in_place:
                follower = Follower(self._branch_id, self._staging, self._account)
                self._following.add(self._branch_id, follower)
            elif message.get("complete") == self._branch_id:
                return
            else:
                raise LinkBroken("the other host has sent an unknown message")

    def _make_directory(self, name: str) -> None:
        with _directory_of(self._staging, name) as (place, last):
            if self.is_in_place:
                remove_tree(last, dir_fd=place)
                self.changed[name] = None
            with suppress(FileExistsError):
                os.mkdir(last, 0o700, dir_fd=place)
            with open_directory(last, dir_fd=place) as made:
                set_owner(made, self._owner_of(name))
                if last == "log" and not _is_data(name):
                    os.fchmod(made, 0o755)

    def _receive_file(self, name: str, *, size: int, mode: int) -> None:
        if size > _MAX_FILE_BYTES:
            raise TreeUntrusted(f"{name[:200]!a} is larger than any file of Postgres")
        if size < 0:
            raise LinkBroken("the other host has sent a file of no size")
        with _directory_of(self._staging, name) as (place, last):
            if self.is_in_place:
                with suppress(FileNotFoundError):
                    os.unlink(last, dir_fd=place)
                self.changed |= {name: None, str(PurePosixPath(name).parent): None}
            file = os.open(last, NEW_FILE & ~os.O_WRONLY | os.O_RDWR, 0o600, dir_fd=place)
        try:
            os.ftruncate(file, size)
            while "end" not in (message := self._link.receive()):
                self._receive_part(
                    file,
                    int(message["at"]),
                    int(message["length"]),
                    size=size,
                    like=str(message.get("like", "")),
                    of=int(message.get("of", 0)),
                )
            if name == _SETTINGS_OF_THE_CLUSTER:
                os.ftruncate(file, 0)
            set_owner(file, self._owner_of(name))
            os.fchmod(file, 0o600 if _is_data(name) else mode & 0o755)
        finally:
            os.close(file)

    def _receive_part(
        self, file: int, at: int, length: int, *, size: int, like: str, of: int
    ) -> None:
        if not 0 <= at <= at + length <= size:
            raise LinkBroken("the other host has sent a part outside of its file")
        self._check_space(file, length)
        if like:
            with self._opened(like) as source:
                _share(source, of, file, at, length)
            return
        self._link.receive_into(file, at, length)

    def _check_space(self, file: int, length: int) -> None:
        self._unlooked += length
        if self._unlooked >= _SPACE_CHECK_BYTES:
            self._unlooked = 0
            require_reserve(file)

    @contextmanager
    def _opened(self, like: str) -> Iterator[int]:
        """A file that was received before, of this branch or another one."""
        branch_id, _, name = like.partition("/")
        if branch_id == self._branch_id:
            place, account = self._staging, self._account
        elif branch_id in self._received:
            place = branch_dir(branch_id)
            account = account_of(place)
        else:
            raise LinkBroken("the other host shares blocks of a branch that it has not sent")
        with _directory_of(place, name) as (directory, last):
            file = os.open(last, REGULAR, dir_fd=directory)
        try:
            found = os.fstat(file)
            owner = account if _is_data(name) else own_account()
            if not stat.S_ISREG(found.st_mode) or found.st_uid != owner.uid:
                raise LinkBroken("the other host shares blocks of something else than such a file")
            yield file
        finally:
            os.close(file)

    def _owner_of(self, name: str) -> Account:
        return self._account if _is_data(name) else own_account()


def _is_data(name: str) -> bool:
    """Whether the file or directory belongs to the branch's own account."""
    return name == DATA or name.startswith(f"{DATA}/")


@contextmanager
def _directory_of(branch: Path, name: str) -> Iterator[tuple[int, str]]:
    """The open directory that `name`, a path within the branch's directory, is in, and its last
    part. Raises LinkBroken for a path that leads out of the branch, OSError for one through a
    link."""
    path = PurePosixPath(name)
    parts = path.parts
    if path.is_absolute() or not 0 < len(parts) <= _MAX_DEPTH or ".." in parts or "\0" in name:
        raise LinkBroken("the other host has sent a path that leads out of the branch")
    with ExitStack() as opened:
        place = opened.enter_context(open_directory(branch))
        for part in parts[:-1]:
            place = opened.enter_context(open_directory(part, dir_fd=place))
        yield place, path.name


def _share(source: int, offset: int, target: int, at: int, length: int) -> None:
    """Let the target share blocks of the source; where the disk cannot, copy them."""
    try:
        fcntl.ioctl(target, _FICLONERANGE, _RANGE.pack(source, offset, length, at))
    except OSError as error:
        if error.errno not in NO_REFLINK:
            raise
    else:
        return
    while length > 0:
        piece = os.pread(source, min(_COPY_CHUNK_BYTES, length), offset)
        if not piece:
            raise LinkBroken("the other host shares blocks behind the end of a file")
        written = os.pwrite(target, piece, at)
        offset, at, length = offset + written, at + written, length - written

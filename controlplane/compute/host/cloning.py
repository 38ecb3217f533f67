"""Copies a directory tree that belongs to an untrusted account, as `tree` reads it."""

import errno
import fcntl
import functools
import os
import tempfile
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from controlplane.compute.host.accounts import Account, set_owner
from controlplane.compute.host.patience import report_progress
from controlplane.compute.host.space import require_reserve
from controlplane.compute.host.steps import add_bytes
from controlplane.compute.host.tree import (
    MIN_FILE_BYTES,
    NEW_FILE,
    WAL,
    Claims,
    TreeUntrusted,
    bytes_held,
    data_of,
    is_recycled,
    named_entries,
    open_directory,
    open_regular,
)

FICLONE = 0x40049409  # linux/fs.h: share the source's extents, copying on write
NO_REFLINK = {errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.ENOSYS}
# Bytes copied between two reports of progress, and between two checks of the disk's space.
CHUNK_BYTES = 64 << 20


def clone_tree(source: Path, target: Path, *, owner: Account, skip: Collection[str] = ()) -> None:
    """Copy the directory `source`, which belongs to one account, to the new path `target`. `owner`
    gets the copy.

    Copies share their blocks if the disk allows it. `skip` names paths relative to `source`; a
    skipped directory is made but left empty. Anything but files and directories is left out. So is
    what vanishes meanwhile: a running Postgres may drop files, and replaying its log on the copy
    drops them there as well. Raises TreeUntrusted, NotEnoughSpace, OSError.
    """
    os.mkdir(target, 0o700)
    with open_directory(source) as reading, open_directory(target) as writing:
        _Clone(reading, owner, skip).directory(reading, writing, "")


def clone_file(name: str, *, source: int, target: int, owner: Account) -> None:
    """Copy the file `name` of the directory `source` into the directory `target`. Raises what
    clone_tree raises."""
    _Clone(source, owner, ()).file(name, source, target, "")


def copy_beginning(
    name: str, *, source: int, target: int, draft: str, size: int, owner: Account, share: bool
) -> None:
    """Copy the first `size` bytes of the file `name` of the directory `source` to the new file
    `draft` of the directory `target`, durably. With `share`, both share their blocks if the disk
    allows it: whoever then overwrites one of them has each block copied first. Raises what
    clone_tree raises."""
    clone = _Clone(source, owner, ())
    with open_regular(name, dir_fd=source) as (reading, found):
        clone.check(name, found)
        writing = os.open(draft, NEW_FILE, 0o644, dir_fd=target)
        try:
            os.fchmod(writing, 0o644)
            clone.content(reading, writing, min(size, found.st_size), share=share)
            os.ftruncate(writing, size)
            set_owner(writing, owner)
            os.fsync(writing)
        finally:
            os.close(writing)


@functools.cache
def shares_blocks(directory: Path) -> bool:
    """True if copies within the directory, which must be ours, share their blocks."""
    with (
        tempfile.TemporaryFile(dir=directory) as source,
        tempfile.TemporaryFile(dir=directory) as target,
    ):
        source.write(bytes(4096))
        source.flush()
        return _clone_blocks(source.fileno(), target.fileno())


class _Clone:
    def __init__(self, source: int, owner: Account, skip: Collection[str]) -> None:
        self.source_uid = os.fstat(source).st_uid
        self.claims = Claims(source)
        self.owner = owner
        self.skip = skip
        # Bytes copied since the disk's space was last checked.
        self.unlooked = 0

    def directory(self, reading: int, writing: int, place: str) -> None:
        set_owner(writing, self.owner)
        for entry in named_entries(reading, place):
            inner = f"{place}{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                self.subdirectory(entry.name, reading, writing, inner)
            elif inner not in self.skip and entry.is_file(follow_symlinks=False):
                with suppress(FileNotFoundError):
                    self.file(entry.name, reading, writing, place)

    def subdirectory(self, name: str, reading: int, writing: int, place: str) -> None:
        os.mkdir(name, 0o700, dir_fd=writing)
        with open_directory(name, dir_fd=writing) as made:
            if place in self.skip:
                set_owner(made, self.owner)
                return
            with suppress(FileNotFoundError), open_directory(name, dir_fd=reading) as found:
                self.directory(found, made, f"{place}/")

    def file(self, name: str, reading: int, writing: int, place: str) -> None:
        with open_regular(name, dir_fd=reading) as (source, found):
            if place == WAL and is_recycled(name, source):
                return
            self.check(name, found)
            target = os.open(name, NEW_FILE, 0o600, dir_fd=writing)
            try:
                self.content(source, target, found.st_size)
                set_owner(target, self.owner)
            finally:
                os.close(target)
        self.wrote(MIN_FILE_BYTES, writing)
        report_progress()

    def wrote(self, size: int, target: int) -> None:
        self.unlooked += size
        if self.unlooked >= CHUNK_BYTES:
            self.unlooked = 0
            require_reserve(target)

    def check(self, name: str, found: os.stat_result) -> None:
        # Root could read it, but a hard link to another account's file must not be copied.
        if found.st_uid != self.source_uid:
            raise TreeUntrusted(f'"{name}" belongs to another account')
        self.claims.add(found)

    def content(self, source: int, target: int, size: int, *, share: bool = True) -> None:
        """Copy the first `size` bytes, and keep their holes. What a running Postgres appends
        meanwhile is also in its log."""
        if share and _clone_blocks(source, target):
            add_bytes(bytes_held(os.fstat(source)))
            return
        end = 0
        for at, end in data_of(source, size):
            os.lseek(target, at, os.SEEK_SET)
            # copy_file_range would share blocks too, and fails between some filesystems.
            while copied := os.sendfile(target, source, at, min(CHUNK_BYTES, end - at)):
                at += copied
                add_bytes(copied)
                report_progress()
                self.wrote(copied, target)
        if end < size:
            os.ftruncate(target, size)


def _clone_blocks(source: int, target: int) -> bool:
    """Let the file `target` share all blocks of `source`. Returns False if the disk can't."""
    try:
        fcntl.ioctl(target, FICLONE, source)
    except OSError as error:
        if error.errno not in NO_REFLINK:
            raise
        return False
    return True

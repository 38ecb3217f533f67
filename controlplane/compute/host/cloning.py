"""Copies a directory tree that belongs to an untrusted account, as `tree` reads it."""

import errno
import fcntl
import functools
import os
import tempfile
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from controlplane import durable
from controlplane.compute.host.accounts import Account, set_owner
from controlplane.compute.host.filesystem import flush, sync_tree
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
    open_file,
    open_regular,
)

FICLONE = 0x40049409  # linux/fs.h: share the source's extents, copying on write
NO_REFLINK = {errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.ENOSYS}
# Bytes copied between two reports of progress, and between two checks of the disk's space.
CHUNK_BYTES = 64 << 20
# By disk (`_disk_of`), whether files there can share their blocks.
_shares_blocks: dict[tuple[int, int], bool] = {}


def clone_tree(source: Path, target: Path, *, owner: Account, skip: Collection[str] = ()) -> int:
    """Copy the directory `source`, which belongs to one account, to the new path `target`. `owner`
    gets the copy. Returns how many bytes its files hold.

    Copies share their blocks if the disk allows it. `skip` names paths relative to `source`; a
    skipped directory is made but left empty. Anything but files and directories is left out. So is
    what vanishes meanwhile: a running Postgres may drop files, and replaying its log on the copy
    drops them there as well. Raises TreeUntrusted, NotEnoughSpace, OSError.
    """
    os.mkdir(target, 0o700)
    with open_directory(source) as reading, open_directory(target) as writing:
        clone = _Clone(reading, owner, skip)
        clone.directory(reading, writing, "")
    return clone.held


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
        with open_file(draft, NEW_FILE, 0o644, dir_fd=target) as writing:
            os.fchmod(writing, 0o644)
            clone.content(reading, writing, min(size, found.st_size), share=share)
            os.ftruncate(writing, size)
            set_owner(writing, owner)
            durable.sync_open(writing)


def shares_blocks(directory: Path) -> bool:
    """True if copies within the directory, which must be ours, share their blocks."""
    disk = _disk_of(directory)
    if disk not in _shares_blocks:
        with (
            tempfile.TemporaryFile(dir=directory) as source,
            tempfile.TemporaryFile(dir=directory) as target,
        ):
            source.write(bytes(4096))
            source.flush()
            _shares_blocks[disk] = _clone_blocks(source.fileno(), target.fileno())
    return _shares_blocks[disk]


def sync_clone(path: Path) -> None:
    """Flush the tree at `path`, which the caller then renames by `durable.rename`. In the
    directories below those named `data`, `clone_tree` has made all files that were not flushed.
    Raises what `sync_tree` raises.

    Blocks that a copy shares were written before they were shared, so only the filesystem's journal
    is missing. If the disk keeps the order of changes, what flushes the rename flushes that too.
    """
    if not (shares_blocks(path.parent) and keeps_order(path)):
        sync_tree(path)
        return
    written = []
    for directory, inner, files in os.walk(path):
        written += [os.path.join(directory, name) for name in files]
        if os.path.basename(directory) == "data":
            inner.clear()
    flush(written)


def keeps_order(place: Path | int) -> bool:
    """True if the disk of the place never has a change of names or attributes without those before
    it. XFS promises that, Btrfs does not."""
    return _keeps_order(*_disk_of(place))


def _disk_of(place: Path | int) -> tuple[int, int]:
    """The number of the device, and what tells its filesystem from the one there before."""
    return os.stat(place).st_dev, os.statvfs(place).f_fsid


@functools.cache
def _keeps_order(device: int, _filesystem: int) -> bool:
    number = f"{os.major(device)}:{os.minor(device)}"
    with open("/proc/self/mountinfo") as mounts:
        return any(
            line.split()[2] == number and line.partition(" - ")[2].startswith("xfs ")
            for line in mounts
        )


class _Clone:
    def __init__(self, source: int, owner: Account, skip: Collection[str]) -> None:
        self.source_uid = os.fstat(source).st_uid
        self.claims = Claims(source)
        self.owner = owner
        self.skip = skip
        self.held = 0
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
            self.held += bytes_held(found)
            with open_file(name, NEW_FILE, 0o600, dir_fd=writing) as target:
                self.content(source, target, found.st_size)
                set_owner(target, self.owner)
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
        if share and keeps_order(target):
            # `sync_clone` takes it for shared.
            os.fsync(target)


def _clone_blocks(source: int, target: int) -> bool:
    """Let the file `target` share all blocks of `source`. Returns False if the disk can't."""
    try:
        fcntl.ioctl(target, FICLONE, source)
    except OSError as error:
        if error.errno not in NO_REFLINK:
            raise
        return False
    return True

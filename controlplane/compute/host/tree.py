"""Copies a directory tree that belongs to an untrusted account.

The owner of a directory may at any moment replace a file in it by a link to another account's file,
or by a pipe that keeps its reader waiting. So nothing here is opened by a path through such a
directory. Every file is opened relative to the descriptor of its directory, without following links
and without blocking, and is checked before it is read.
"""

import errno
import fcntl
import functools
import os
import re
import stat
import struct
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from controlplane.compute.host.accounts import Account, set_owner
from controlplane.compute.host.patience import report_progress
from controlplane.compute.host.space import require_reserve
from controlplane.compute.host.steps import add_bytes

FICLONE = 0x40049409  # linux/fs.h: share the source's extents, copying on write
NO_REFLINK = {errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.ENOSYS}
# Bytes that a file or directory takes at least: an empty one takes an inode.
MIN_FILE_BYTES = 4096
# Bytes copied between two reports of progress, and between two checks of the disk's space.
CHUNK_BYTES = 64 << 20
# Postgres makes no deeper directories; deeper ones were made by something else.
MAX_DEPTH = 8

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
REGULAR = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

WAL = "pg_wal/"
SEGMENT = re.compile("[0-9A-F]{24}")
SEGMENT_SIZE = 16 << 20  # bytes; initdb's own


def start_of(segment: str) -> int:
    """Where in the log the segment with this name begins."""
    return (int(segment[8:16], 16) << 32) + int(segment[16:], 16) * SEGMENT_SIZE


class TreeUntrusted(Exception):
    """A tree holds something that Postgres never put there; the message says what."""


@contextmanager
def open_directory(path: Path | str, *, within: int | None = None) -> Iterator[int]:
    """The directory's descriptor. With the descriptor `within`, `path` is a single name in that
    directory. Raises OSError, for a link too."""
    descriptor = os.open(path, DIRECTORY, dir_fd=within)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


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
        _Clone(os.fstat(reading).st_uid, owner, skip).directory(reading, writing, "")


def give_tree(place: Path, before: Account, after: Account) -> None:
    """Give the tree, in which no process of `before` works any more, to another account. Only files
    that belong to `before` and have no other name are given. Raises TreeUntrusted, OSError."""
    for _, directories, files, opened in os.fwalk(place, follow_symlinks=False):
        for name in (*directories, *files):
            found = os.stat(name, dir_fd=opened, follow_symlinks=False)
            is_linked = stat.S_ISREG(found.st_mode) and found.st_nlink > 1
            if found.st_uid != before.uid or is_linked:
                raise TreeUntrusted(f'"{name}" belongs to another account')
            os.chown(name, after.uid, after.gid, dir_fd=opened, follow_symlinks=False)
    os.chown(place, after.uid, after.gid, follow_symlinks=False)


def tree_size(source: Path, *, skip: Collection[str] = ()) -> int:
    """Bytes that clone_tree would write if the copy shared no blocks. Raises TreeUntrusted,
    OSError."""
    with open_directory(source) as reading:
        return _size_of(reading, "", skip, least=0)


def size_on_disk(source: Path, *, measured: Collection[str] = ()) -> int:
    """The same, but each file and directory counts as MIN_FILE_BYTES at least. In the directories
    `measured` the bytes of files are known: only what these lack to MIN_FILE_BYTES counts. Raises
    TreeUntrusted, OSError."""
    with open_directory(source) as reading:
        return _size_of(reading, "", (), {f"{one}/" for one in measured}, least=MIN_FILE_BYTES)


def files_in(source: Path, *, skip: Collection[str] = ()) -> Iterator[int]:
    """The descriptors of the tree's files, each of which is open until the next one is wanted. What
    vanishes meanwhile is left out. Raises TreeUntrusted, OSError."""
    with open_directory(source) as reading:
        yield from _files_of(reading, "", skip)


def clone_file(name: str, *, source: int, target: int, owner: Account) -> None:
    """Copy the file `name` of the directory `source` into the directory `target`. Raises what
    clone_tree raises."""
    _Clone(os.fstat(source).st_uid, owner, ()).file(name, source, target, "")


def copy_beginning(
    name: str, *, source: int, target: int, draft: str, size: int, owner: Account, share: bool
) -> None:
    """Copy the first `size` bytes of the file `name` of the directory `source` to the new file
    `draft` of the directory `target`, durably. With `share`, both share their blocks if the disk
    allows it: whoever then overwrites one of them has each block copied first. Raises what
    clone_tree raises."""
    clone = _Clone(os.fstat(source).st_uid, owner, ())
    with open_regular(name, within=source) as (reading, found):
        clone.require_owner(name, found)
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
    def __init__(self, source_uid: int, owner: Account, skip: Collection[str]) -> None:
        self.source_uid = source_uid
        self.owner = owner
        self.skip = skip
        # Bytes copied since the disk's space was last checked.
        self.unlooked = 0

    def directory(self, reading: int, writing: int, place: str) -> None:
        set_owner(writing, self.owner)
        check_depth(place)
        with os.scandir(reading) as entries:
            for entry in entries:
                inner = f"{place}{entry.name}"
                if entry.is_dir(follow_symlinks=False):
                    self.subdirectory(entry.name, reading, writing, inner)
                elif inner not in self.skip and entry.is_file(follow_symlinks=False):
                    with suppress(FileNotFoundError):
                        self.file(entry.name, reading, writing, place)

    def subdirectory(self, name: str, reading: int, writing: int, place: str) -> None:
        os.mkdir(name, 0o700, dir_fd=writing)
        with open_directory(name, within=writing) as made:
            if place in self.skip:
                set_owner(made, self.owner)
                return
            with suppress(FileNotFoundError), open_directory(name, within=reading) as found:
                self.directory(found, made, f"{place}/")

    def file(self, name: str, reading: int, writing: int, place: str) -> None:
        with open_regular(name, within=reading) as (source, found):
            if place == WAL and _is_recycled(name, source):
                return
            self.require_owner(name, found)
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

    def require_owner(self, name: str, found: os.stat_result) -> None:
        # Root could read it, but a hard link to another account's file must not be copied.
        if found.st_uid != self.source_uid:
            raise TreeUntrusted(f'"{name}" belongs to another account')

    def content(self, source: int, target: int, size: int, *, share: bool = True) -> None:
        """Copy the first `size` bytes. What a running Postgres appends meanwhile is also in its
        log."""
        if share and _clone_blocks(source, target):
            add_bytes(size)
            return
        # copy_file_range would share blocks too, and fails between some filesystems.
        while size > 0 and (copied := os.sendfile(target, source, None, min(CHUNK_BYTES, size))):
            size -= copied
            add_bytes(copied)
            report_progress()
            self.wrote(copied, target)


def _clone_blocks(source: int, target: int) -> bool:
    """Let the file `target` share all blocks of `source`. Returns False if the disk can't."""
    try:
        fcntl.ioctl(target, FICLONE, source)
    except OSError as error:
        if error.errno not in NO_REFLINK:
            raise
        return False
    return True


@contextmanager
def open_regular(path: Path | str, *, within: int | None) -> Iterator[tuple[int, os.stat_result]]:
    """The descriptor of the regular file. Raises FileNotFoundError if there is something else."""
    try:
        descriptor = os.open(path, REGULAR, dir_fd=within)
    except OSError as error:
        # A link or a socket: Postgres keeps no data in these.
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise FileNotFoundError(error.errno, f"{path} is not a regular file") from error
        raise
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise FileNotFoundError(errno.ENOENT, f"{path} is not a regular file")
        yield descriptor, found
    finally:
        os.close(descriptor)


def _is_recycled(name: str, segment: int) -> bool:
    """True if the segment of the log was only renamed for later use: its first page still has its
    old address. A copy does not need it."""
    if not SEGMENT.fullmatch(name):
        return False
    # XLogPageHeaderData: magic, flags and timeline, then the page's own address.
    (address,) = struct.unpack_from("8xQ", os.pread(segment, 16, 0).ljust(16, b"\0"))
    return bool(address != start_of(name))


def _files_of(directory: int, place: str, skip: Collection[str]) -> Iterator[int]:
    check_depth(place)
    with os.scandir(directory) as entries:
        for entry in entries:
            inner = f"{place}{entry.name}"
            if inner in skip:
                continue
            with suppress(FileNotFoundError):
                if entry.is_dir(follow_symlinks=False):
                    with open_directory(entry.name, within=directory) as subdirectory:
                        yield from _files_of(subdirectory, f"{inner}/", skip)
                elif entry.is_file(follow_symlinks=False):
                    with open_regular(entry.name, within=directory) as (file, _):
                        yield file


def check_depth(place: str) -> None:
    """Raise TreeUntrusted if no directory of Postgres is nested like the path, which ends with a
    slash."""
    if place.count("/") >= MAX_DEPTH:
        raise TreeUntrusted(f"{place} is nested deeper than any directory of Postgres")


def _size_of(
    directory: int,
    place: str,
    skip: Collection[str],
    measured: Collection[str] = (),
    *,
    least: int,
) -> int:
    check_depth(place)
    size, is_measured = least, place in measured
    with os.scandir(directory) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                inner = f"{place}{entry.name}"
                if inner in skip:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    with open_directory(entry.name, within=directory) as found:
                        size += _size_of(found, f"{inner}/", skip, measured, least=least)
                elif is_measured:
                    size += max(0, least - entry.stat(follow_symlinks=False).st_size)
                else:
                    size += max(least, _size_of_file(entry, directory, place))
    return size


def _size_of_file(entry: "os.DirEntry[str]", directory: int, place: str) -> int:
    if place == WAL:
        with open_regular(entry.name, within=directory) as (segment, found):
            return 0 if _is_recycled(entry.name, segment) else found.st_size
    return entry.stat(follow_symlinks=False).st_size


def entries_in(
    source: Path,
    *,
    skip: Collection[str] = (),
    wanted: Callable[[str], object] = lambda path: True,
) -> Iterator[tuple[str, int | None]]:
    """The directories and files of the tree, a directory before what is in it: the path relative to
    `source`, and for a file its descriptor, which is open until the next entry is wanted. Leaves
    out what `clone_tree` leaves out, and files whose path is not `wanted`. Raises TreeUntrusted,
    OSError."""
    with open_directory(source) as reading:
        yield from _entries_of(reading, "", os.fstat(reading).st_uid, skip, wanted)


def _entries_of(
    directory: int, place: str, owner: int, skip: Collection[str], wanted: Callable[[str], object]
) -> Iterator[tuple[str, int | None]]:
    check_depth(place)
    with os.scandir(directory) as entries:
        for entry in entries:
            inner = f"{place}{entry.name}"
            with suppress(FileNotFoundError):
                if entry.is_dir(follow_symlinks=False):
                    yield inner, None
                    if inner not in skip:
                        with open_directory(entry.name, within=directory) as found:
                            yield from _entries_of(found, f"{inner}/", owner, skip, wanted)
                elif inner not in skip and wanted(inner) and entry.is_file(follow_symlinks=False):
                    with open_regular(entry.name, within=directory) as (file, status):
                        if place == WAL and _is_recycled(entry.name, file):
                            continue
                        if status.st_uid != owner:
                            raise TreeUntrusted(f'"{entry.name}" belongs to another account')
                        yield inner, file

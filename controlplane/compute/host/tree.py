"""Reads a directory tree that belongs to an untrusted account; `cloning` copies one.

The owner of a directory may at any moment replace a file in it by a link to another account's file,
or by a pipe that keeps its reader waiting. So nothing here is opened by a path through such a
directory. Every file is opened relative to the descriptor of its directory, without following links
and without blocking, and is checked before it is read.
"""

import errno
import os
import re
import stat
import struct
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from controlplane.compute.host.accounts import Account

# Bytes that a file or directory takes at least: an empty one takes an inode.
MIN_FILE_BYTES = 4096
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


def is_recycled(name: str, segment: int) -> bool:
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
            return 0 if is_recycled(entry.name, segment) else found.st_size
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
                        if place == WAL and is_recycled(entry.name, file):
                            continue
                        if status.st_uid != owner:
                            raise TreeUntrusted(f'"{entry.name}" belongs to another account')
                        yield inner, file

"""Reads a directory tree that belongs to an untrusted account; `cloning` copies one.

The owner of a directory may at any moment replace a file in it by a link to another account's file,
or by a pipe that keeps its reader waiting. So nothing here is opened by a path through such a
directory. Every file is opened relative to the descriptor of its directory, without following links
and without blocking, and is checked before it is read.

What Postgres never makes is left out wherever a tree is copied, listed, summed or sent: links,
pipes, and names that not every list could hold. A tree whose files claim far more bytes than they
hold is refused.
"""

import errno
import os
import re
import stat
import struct
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from controlplane.compute.host.accounts import Account

# Bytes that a file or directory takes at least: an empty one takes an inode.
MIN_FILE_BYTES = 4096
# Postgres and its extensions give no other names.
NAME = re.compile(r"[A-Za-z0-9._-]+")
# The files of a tree may claim so many bytes, and for each that they hold so many more: pages of
# zeros take no room on disks that compress, and others little. Trees of our own were checked when
# they were copied, perhaps to a disk that compresses more.
FREE_CLAIM_BYTES, CLAIMED_PER_BYTE, CLAIMED_BY_OURS = 16 << 30, 64, 4096
# Bytes beyond its end that a disk may reserve for a growing file, besides its size once more, and
# the same for all files of a tree.
RESERVED_BYTES, MAX_RESERVED_BYTES = 1 << 20, 64 << 20
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
def open_file(
    path: Path | str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None
) -> Iterator[int]:
    """The descriptor of the file, as `os.open` opens it; it is closed at the end. Raises
    OSError."""
    descriptor = os.open(path, flags, mode, dir_fd=dir_fd)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def open_directory(path: Path | str, *, dir_fd: int | None = None) -> AbstractContextManager[int]:
    """The directory's descriptor. With the descriptor `dir_fd`, `path` is a single name in that
    directory. Raises OSError, for a link too."""
    return open_file(path, DIRECTORY, dir_fd=dir_fd)


@contextmanager
def open_inside(path: Path, name: str) -> Iterator[int]:
    """The descriptor of the directory `name` of a compute's account in the directory `path`. Raises
    OSError."""
    with open_directory(path) as outer, open_directory(name, dir_fd=outer) as inner:
        yield inner


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


def files_in(source: Path, *, skip: Collection[str] = ()) -> Iterator[int]:
    """The descriptors of the tree's files, each of which is open until the next one is wanted. What
    vanishes meanwhile is left out. Raises TreeUntrusted, OSError."""
    yield from (file for _, file in entries_in(source, skip=skip) if file is not None)


def tree_size(source: Path, *, skip: Collection[str] = ()) -> int:
    """Bytes that clone_tree would write if the copy shared no blocks. Raises TreeUntrusted,
    OSError."""
    return sum(bytes_held(os.fstat(file)) for file in files_in(source, skip=skip))


def size_on_disk(source: Path) -> int:
    """Bytes that the tree takes of the disk, with all that anybody has put there. A file or
    directory takes MIN_FILE_BYTES at least. A tree that is deeper than any of Postgres is not gone
    through: it counts as all that its disk holds, so that nobody escapes a limit by it. Raises
    OSError."""
    return sizes_on_disk(source, measured=())[0]


def sizes_on_disk(source: Path, *, measured: Collection[str]) -> tuple[int, Mapping[str, int], int]:
    """The same without what the files directly in the directories `measured` take within their
    sizes, this for each of these directories, and `count_files`. Raises OSError."""
    with open_directory(source) as reading:
        sizes = _Sizes(measured)
        try:
            sizes.add_directory(reading, "")
        except TreeUntrusted:
            return _used_of_disk(reading), dict.fromkeys(measured, 0), _used_inodes(reading)
        return sizes.beside(), sizes.of_measured, sizes.count


def count_files(source: Path) -> int:
    """Files and directories of the tree, by their names, which is far faster than their sizes. A
    tree that is deeper than any of Postgres counts as all inodes that its disk has in use. Raises
    OSError."""
    with open_directory(source) as reading:
        names = _Sizes((), count_only=True)
        try:
            names.add_directory(reading, "")
        except TreeUntrusted:
            return _used_inodes(reading)
        return names.count


def _used_of_disk(directory: int) -> int:
    disk = os.fstatvfs(directory)
    return (disk.f_blocks - disk.f_bfree) * disk.f_frsize


def _used_inodes(directory: int) -> int:
    disk = os.fstatvfs(directory)
    return disk.f_files - disk.f_ffree


def bytes_held(found: os.stat_result) -> int:
    """Bytes of the file's content that are on the disk: its size without its holes."""
    return min(found.st_size, found.st_blocks * 512)


def data_of(file: int, size: int) -> Iterator[tuple[int, int]]:
    """Where each part of the data in the first `size` bytes of the file begins and ends; between
    these are holes. Raises OSError."""
    if os.fstat(file).st_blocks * 512 >= size:
        yield 0, size
        return
    end = 0
    while end < size:
        try:
            begin = os.lseek(file, end, os.SEEK_DATA)
            # Its owner may change it meanwhile: this goes on all the same.
            end = max(begin + 1, os.lseek(file, begin, os.SEEK_HOLE))
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return  # no data follows
        if begin < size:
            yield begin, min(end, size)


class Claims:
    """What the files of the tree with this open directory claim to contain, as far as it was gone
    through. A file of exabytes may take no block of the disk, and whoever reads it never comes
    back."""

    def __init__(self, directory: int) -> None:
        self._claimed = self._held = 0
        is_own = os.fstat(directory).st_uid == os.geteuid()
        self._per_byte = CLAIMED_BY_OURS if is_own else CLAIMED_PER_BYTE
        # Files that share blocks with each other hold more together than there is.
        self._used = _used_of_disk(directory)

    def add(self, found: os.stat_result) -> None:
        """Count a file of the tree. Raises TreeUntrusted."""
        self._claimed += found.st_size
        self._held += bytes_held(found)
        if self._claimed > FREE_CLAIM_BYTES + self._per_byte * min(self._held, self._used):
            raise TreeUntrusted("its files claim far more bytes than they hold")


@contextmanager
def open_regular(path: Path | str, *, dir_fd: int | None) -> Iterator[tuple[int, os.stat_result]]:
    """The descriptor of the regular file. Raises FileNotFoundError if there is something else."""
    try:
        descriptor = os.open(path, REGULAR, dir_fd=dir_fd)
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


def check_depth(place: str) -> None:
    """Raise TreeUntrusted if no directory of Postgres is nested like the path, which ends with a
    slash."""
    if place.count("/") >= MAX_DEPTH:
        raise TreeUntrusted(f"{place!a} is nested deeper than any directory of Postgres")


def named_entries(directory: int, place: str) -> "Iterator[os.DirEntry[str]]":
    """The entries of an open directory that have names as Postgres gives them. `place` is its path
    in the tree, which is empty or ends with a slash. Raises TreeUntrusted, OSError."""
    check_depth(place)
    with os.scandir(directory) as entries:
        yield from (entry for entry in entries if NAME.fullmatch(entry.name))


class _Sizes:
    """Sums up what a tree takes of the disk, in bytes, and counts its files and directories."""

    def __init__(self, measured: Collection[str], *, count_only: bool = False) -> None:
        self._count_only = count_only
        self.of_measured = dict.fromkeys(measured, 0)
        self.count = self._beside = self._held = self._reserved = 0

    def beside(self) -> int:
        """What is not in `of_measured`."""
        return self._beside + max(0, self._reserved - self._held - MAX_RESERVED_BYTES)

    def add_directory(self, directory: int, place: str) -> None:
        """`place` is as for `named_entries`. Raises TreeUntrusted, OSError."""
        check_depth(place)
        self.count += 1
        # One that held many names keeps its blocks.
        self._beside += max(MIN_FILE_BYTES, os.fstat(directory).st_blocks * 512)
        with os.scandir(directory) as entries:
            for entry in entries:
                is_directory = entry.is_dir(follow_symlinks=False)
                if self._count_only and not is_directory:
                    self.count += 1
                    continue
                # Its owner may put something else in place of a directory meanwhile.
                with suppress(FileNotFoundError, NotADirectoryError):
                    if is_directory:
                        with open_directory(entry.name, dir_fd=directory) as found:
                            self.add_directory(found, f"{place}{entry.name}/")
                    else:
                        self._add_file(entry.stat(follow_symlinks=False), place[:-1])

    def _add_file(self, found: os.stat_result, place: str) -> None:
        allocated, held = found.st_blocks * 512, bytes_held(found)
        # Whoever reserves more than the disk itself does, takes it from the others.
        if not found.st_size or allocated > 2 * found.st_size + RESERVED_BYTES:
            held = allocated
        self.count += 1
        self._held += held
        self._reserved += allocated - held
        taken = max(MIN_FILE_BYTES, held)
        if place in self.of_measured:
            counted = min(taken, found.st_size)
            self.of_measured[place] += counted
            taken -= counted
        self._beside += taken


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
        yield from entries_of(reading, skip=skip, wanted=wanted)


def entries_of(
    directory: int,
    *,
    skip: Collection[str] = (),
    wanted: Callable[[str], object] = lambda path: True,
    all_of: bool = False,
) -> Iterator[tuple[str, int | None]]:
    """The same of an open directory. With `all_of`, raises FileNotFoundError for what vanishes
    meanwhile, which is otherwise left out."""
    owner, claims = os.fstat(directory).st_uid, Claims(directory)
    missing = () if all_of else (FileNotFoundError,)

    def entries(inside: int, place: str) -> Iterator[tuple[str, int | None]]:
        found = named_entries(inside, place)
        # What vanishes after the list was read is noticed.
        for entry in found if missing else list(found):
            path = f"{place}{entry.name}"
            with suppress(*missing):
                if entry.is_dir(follow_symlinks=False):
                    yield path, None
                    if path not in skip:
                        with open_directory(entry.name, dir_fd=inside) as inner:
                            yield from entries(inner, f"{path}/")
                elif path not in skip and wanted(path) and entry.is_file(follow_symlinks=False):
                    yield from regular(entry.name, inside, place)

    def regular(name: str, inside: int, place: str) -> Iterator[tuple[str, int]]:
        with open_regular(name, dir_fd=inside) as (file, status):
            if place == WAL and is_recycled(name, file):
                return
            if status.st_uid != owner:
                raise TreeUntrusted(f'"{name}" belongs to another account')
            claims.add(status)
            yield f"{place}{name}", file

    yield from entries(directory, "")

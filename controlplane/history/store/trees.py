"""A directory as one stream: a tar archive of its directories and regular files; and the scratch
directories that hold what is copied."""

import io
import os
import tarfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from django.conf import settings

from controlplane.compute.host.filesystem import remove_tree
from controlplane.compute.host.tree import entries_of
from controlplane.history.store.packing import Damaged, reader_of

# Bytes read at once.
CHUNK_BYTES = 1 << 20
BLOCK = tarfile.BLOCKSIZE
END = bytes(2 * BLOCK)


class TreeChanged(Exception):
    """The directory changed while it was read."""


@contextmanager
def scratch_directory(name: str) -> Iterator[Path]:
    """An empty directory of this name in the state directory, which only Perch can read. It is
    removed at the end; one that a killed process has left is emptied first."""
    place = Path(settings.STATE_DIR) / name
    remove_tree(place)
    place.mkdir(mode=0o700)
    try:
        yield place
    finally:
        remove_tree(place)


def tree_stream(directory: int, *, skip: Collection[str] = ()) -> Iterator[bytes]:
    """The tar archive of the open directory, in parts. `skip` names paths in it; a skipped
    directory is in the archive, but empty. Raises TreeChanged, TreeUntrusted, OSError."""
    for name, file in entries_of(directory, skip=skip, all_of=True):
        if file is None:
            yield _header(name, tarfile.DIRTYPE, 0)
        else:
            yield from _content(file, name)
    yield END


# Python 3.11 has the filter since 3.11.4; Debian 12 has 3.11.2.
FILTER: Mapping[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}


def _plain_members(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """The archive's members, which are directories and files within the target. Raises Damaged."""
    for member in archive:
        path = PurePosixPath(member.name)
        if path.is_absolute() or ".." in path.parts or not (member.isdir() or member.isreg()):
            raise Damaged(f"it contains {member.name!r}, which no tree contains")
        yield member


def write_tree(parts: Iterable[bytes], target: Path) -> None:
    """Make the directory `target` from the parts of its archive. Raises Damaged, OSError, and what
    `parts` raises."""
    target.mkdir(mode=0o700, parents=True)
    try:
        with tarfile.open(fileobj=_Source(parts), mode="r|", bufsize=CHUNK_BYTES) as archive:
            archive.extractall(target, members=_plain_members(archive), **FILTER)  # noqa: S202
    except tarfile.TarError as error:
        raise Damaged(f"it is no archive: {error}") from error


def _content(file: int, name: str) -> Iterator[bytes]:
    size = left = os.fstat(file).st_size
    yield _header(name, tarfile.REGTYPE, size)
    while left:
        part = os.read(file, min(CHUNK_BYTES, left))
        if not part:
            raise TreeChanged(f"{name} became shorter")
        left -= len(part)
        yield part
    yield bytes(-size % BLOCK)


def _header(name: str, kind: bytes, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, size
    info.mode = 0o700 if kind == tarfile.DIRTYPE else 0o600
    return info.tobuf(tarfile.GNU_FORMAT)


class _Source(io.RawIOBase):
    """The parts as the file that tarfile reads."""

    def __init__(self, parts: Iterable[bytes]) -> None:
        self._read = reader_of(parts)

    def read(self, size: int = -1) -> bytes:
        return self._read(size)

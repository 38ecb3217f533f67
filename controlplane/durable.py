"""Renames and small files that survive a power failure. Any layer may import this module.

A rename or a new file is on the disk only after its directory was flushed (fsync). The content of a
file is on the disk only after the file was flushed. A caller must report nothing as done that
depends on them before that.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

_is_left = ContextVar("_is_left", default=False)


@contextmanager
def flushing_later() -> Iterator[None]:
    """Within the block nothing is flushed here: the caller flushes all of it afterwards."""
    token = _is_left.set(True)
    try:
        yield
    finally:
        _is_left.reset(token)


def rename(source: Path, target: Path) -> None:
    """Rename `source`, which has been flushed, to `target`. Raises OSError."""
    source.rename(target)
    for directory in {source.parent, target.parent}:
        sync(directory)


def write_new(path: Path, content: str, mode: int) -> bool:
    """Create the file atomically. Returns False if the file exists already, also if another process
    created it in the meantime. Raises OSError."""
    draft = _draft(path, content.encode(), mode)
    try:
        os.link(draft, path)
    except FileExistsError:
        return False
    finally:
        draft.unlink()
    sync(path.parent)
    return True


def write(path: Path, content: bytes, mode: int) -> None:
    """Write the file atomically, replacing an existing one. Raises OSError."""
    draft = _draft(path, content, mode)
    try:
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    sync(path.parent)


def sync(place: Path | str, *, dir_fd: int | None = None) -> None:
    """Flush a file's content, or a directory's entries, to the disk. With the descriptor `dir_fd`,
    `place` is a single name in that directory. Raises OSError."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(place, flags, dir_fd=dir_fd)
    try:
        sync_open(descriptor)
    finally:
        os.close(descriptor)


def sync_open(descriptor: int) -> None:
    """The same of an open file or directory. Raises OSError."""
    if not flushes_later():
        os.fsync(descriptor)


def flushes_later() -> bool:
    """Whether this runs within `flushing_later`."""
    return _is_left.get()


def _draft(path: Path, content: bytes, mode: int) -> Path:
    """Create a flushed temporary file in the directory of `path` that no other process writes
    to."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)
            file.write(content)
            file.flush()
            sync_open(descriptor)
    except BaseException:
        Path(name).unlink()
        raise
    return Path(name)

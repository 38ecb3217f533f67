"""Names and small files that outlive a power cut: beside the floors, for all of them.

A rename, or a new file, is on the disk only once its directory was flushed; what a file holds, once
the file was. Whoever reports something as done that rests on them does so after that.
"""

import os
import tempfile
from pathlib import Path


def rename(source: Path, target: Path) -> None:
    """Rename `source`, which has been flushed, to `target`. Raises OSError."""
    source.rename(target)
    for directory in {source.parent, target.parent}:
        sync(directory)


def write_new(path: Path, content: str, mode: int) -> bool:
    """Make the file, whole or not at all; False where there is one already, of whoever was first.
    Raises OSError."""
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
    """Put the file in the place of the one that may be there, whole or not at all. Raises
    OSError."""
    draft = _draft(path, content, mode)
    try:
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    sync(path.parent)


def sync(place: Path) -> None:
    """Flush the file, or which names the directory holds. Raises OSError."""
    descriptor = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _draft(path: Path, content: bytes, mode: int) -> Path:
    """A flushed file beside `path` that nobody else writes to."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)
            file.write(content)
            file.flush()
            os.fsync(descriptor)
    except BaseException:
        Path(name).unlink()
        raise
    return Path(name)

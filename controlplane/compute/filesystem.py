"""Locks and flushes directories that no stranger can write to, and removes also those that one
can. What strangers own is read through `tree`."""

import errno
import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from django.conf import settings

from controlplane.compute.patience import heed_cancel, remaining
from controlplane.compute.tree import open_directory

# Times that a directory is gone through until it is empty. Some filesystems pass over entries while
# others are removed, and whoever still works there may add some.
MOST_PASSES = 5


class LockTimeout(Exception):
    """Somebody else holds the branch's lock."""


def sync_tree(path: Path) -> None:
    """Bring everything below `path` to the disk, so that it outlives a power cut.

    First every file's pages are set on their way, then each is waited for: three times as
    fast as one by one, and unlike syncfs it waits for nobody else's pages. Raises
    patience.Cancelled.
    """
    directories = [directory for directory, _, _ in os.walk(path)]
    entries = (entry for directory in directories for entry in os.scandir(directory))
    files = [entry.path for entry in entries if entry.is_file(follow_symlinks=False)]
    for start_writing, places in ((True, files), (False, files), (False, directories)):
        for place in places:
            heed_cancel()
            descriptor = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                if start_writing:
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                else:
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)


def remove_tree(path: Path) -> None:
    """Remove the directory `path` and all below it; no harm if it, or some of it, is gone.

    What lies below may be a stranger's: a tree as deep as the disk has room for, or one in which
    something is moved meanwhile. So nothing is opened by a path or through a link, and nothing is
    done by recursion: what a subdirectory holds of directories is moved up to `path` first. Raises
    OSError.
    """
    try:
        for _ in range(MOST_PASSES):
            with open_directory(path) as top:
                _empty(top)
            if _is_removed(path):
                return
        path.rmdir()
    except FileNotFoundError:
        return


def _empty(top: int) -> None:
    waiting = _clear(top, top)
    while waiting:
        name = waiting.pop()
        with suppress(FileNotFoundError):
            with open_directory(name, within=top) as directory:
                waiting += _clear(directory, top)
            # What is not empty yet, or again, is met by the next pass.
            _is_removed(name, within=top)


def _clear(directory: int, top: int) -> list[str]:
    """Remove the files of the directory, and move its directories to `top`; their names there."""
    moved = []
    with os.scandir(directory) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                if not entry.is_dir(follow_symlinks=False):
                    os.unlink(entry.name, dir_fd=directory)
                elif directory == top:
                    moved.append(entry.name)
                elif not _is_removed(entry.name, within=directory):
                    name = f".moved-{secrets.token_hex(8)}"
                    os.rename(entry.name, name, src_dir_fd=directory, dst_dir_fd=top)
                    moved.append(name)
    return moved


def _is_removed(directory: Path | str, *, within: int | None = None) -> bool:
    """Remove the directory, if it is empty."""
    try:
        os.rmdir(directory, dir_fd=within)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False
    return True


@contextmanager
def lock_branches(*branch_ids: str, timeout: float = 60.0) -> Iterator[None]:
    """Hold the branches' directories against every other thread and process of this host.

    The kernel lets go when the holder dies, so a lock never outlives its work, and work
    that was wrongly taken for dead is not done twice at once. `timeout` is in seconds.

    Raises LockTimeout, patience.OutOfPatience.
    """
    deadline = time.monotonic() + timeout
    directory = settings.STATE_DIR / "locks"
    directory.mkdir(mode=0o700, exist_ok=True)
    with ExitStack() as stack:
        for branch_id in sorted(set(branch_ids)):
            stack.enter_context(_lock_file(directory / branch_id, deadline))
        yield


def catalog_lock(branch_id: str) -> str:
    """The name of the lock on what is known of a branch's catalog; see `operations.by_sql`."""
    return f"catalog-{branch_id}"


def forget_lock(branch_id: str) -> None:
    """Remove the lock files of a branch that is gone. The caller holds its lock."""
    for name in (branch_id, catalog_lock(branch_id)):
        (settings.STATE_DIR / "locks" / name).unlink(missing_ok=True)


def forget_catalog_lock(branch_id: str) -> None:
    """Remove that file alone, of a branch that is gone. The caller holds the lock."""
    (settings.STATE_DIR / "locks" / catalog_lock(branch_id)).unlink(missing_ok=True)


@contextmanager
def _lock_file(path: Path, deadline: float) -> Iterator[None]:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            _wait_for_lock(descriptor, path.name, deadline)
            # Its last holder may have removed the file: whoever comes next locks a new one.
            if _is_at(path, descriptor):
                yield
                return
        finally:
            os.close(descriptor)


def _wait_for_lock(descriptor: int, name: str, deadline: float) -> None:
    """Raises LockTimeout, patience.OutOfPatience."""
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            remaining()
            if time.monotonic() >= deadline:
                raise LockTimeout(f"{name} is busy with other work") from None
            time.sleep(0.01)


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False

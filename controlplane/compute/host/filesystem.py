"""Locks and flushes directories that no untrusted account can write to, and removes directories
whether or not one can. Lists those that rounds ask for again and again. `tree` reads what untrusted
accounts own."""

import errno
import fcntl
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from django.conf import settings

from controlplane import durable
from controlplane.compute.host.patience import check_cancelled, remaining
from controlplane.compute.host.tree import REGULAR, open_directory, open_file

# How often a directory is gone through until it is empty. Some filesystems skip entries while
# others are removed, and a process that still works there may add some.
MAX_PASSES = 5
MAX_CONCURRENT_FLUSHES = 32
MAX_DIRTY_KIB = 64 << 10
# What the names of the other locks of a branch begin with.
CATALOG, HISTORY, POOLER, STANDBY = "catalog-", "history-", "pooler-", "standby-"
WORKSHOP = "."  # as `branch_data.staging_id` begins
# Nanoseconds. The kernel writes a directory's time of change by a clock that advances some hundred
# times a second, so a second change at the same tick would leave the time as it is.
SETTLED_AFTER_NS = 1_000_000_000


class LockTimeout(Exception):
    """Another thread or process holds the branch's lock."""


def branch_dir(branch_id: str) -> Path:
    """Where the branch is, or will be (`branch_data`)."""
    return Path(settings.STATE_DIR) / "branches" / branch_id


def sync_tree(path: Path) -> None:
    """Flush everything below `path` to the disk, so that it survives a power cut. Raises what
    `flush` raises."""
    directories = [directory for directory, _, _ in os.walk(path)]
    entries = (entry for directory in directories for entry in os.scandir(directory))
    files = [entry.path for entry in entries if entry.is_file(follow_symlinks=False)]
    flush(files, directories)


def flush(files: Sequence[str], directories: Sequence[str] = ()) -> None:
    """Flush the files, and then the directories.

    First the writing of every file's pages is started, then each file is waited for. Flushes that
    wait at the same time share a commit of the filesystem's journal: this is ten times as fast as
    one file after the other. Unlike syncfs it does not wait for other programs' pages. Raises
    OSError or patience.Cancelled.
    """
    if durable.flushes_later():
        return
    with ThreadPoolExecutor(MAX_CONCURRENT_FLUSHES) as pool:
        for flush, places in (
            (_start_writing, files),
            (durable.sync, files),
            (durable.sync, directories),
        ):
            for _ in pool.map(flush, places):
                check_cancelled()


def _start_writing(file: str) -> None:
    with open_file(file, REGULAR) as descriptor:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def is_little_dirty() -> bool:
    """Whether so little waits to be written to this host's disks that flushing a whole filesystem
    is faster than flushing the files of a small branch one by one."""
    with open("/proc/meminfo") as lines:
        sizes = dict(line.split(":") for line in lines)
    return sum(int(sizes[name].split()[0]) for name in ("Dirty", "Writeback")) < MAX_DIRTY_KIB


def remove_tree(path: Path | str, *, dir_fd: int | None = None) -> None:
    """Remove the directory `path` and all below it; no error if it, or some of it, is gone. With
    the descriptor `dir_fd`, `path` is a single name in that directory.

    The content is untrusted: the tree may be as deep as the disk has room for, or processes may
    move entries meanwhile. So nothing is opened by a path or through a link, and there is no
    recursion: directories inside a subdirectory are first moved up to `path`. Raises OSError.
    """
    try:
        for _ in range(MAX_PASSES):
            with open_directory(path, dir_fd=dir_fd) as top:
                _empty(top)
            if _is_removed(path, dir_fd=dir_fd):
                return
        os.rmdir(path, dir_fd=dir_fd)
    except FileNotFoundError:
        return


def _empty(top: int) -> None:
    waiting = _clear(top, top)
    while waiting:
        name = waiting.pop()
        with suppress(FileNotFoundError):
            with open_directory(name, dir_fd=top) as directory:
                waiting += _clear(directory, top)
            # If the directory is not empty, the next pass finds it again.
            _is_removed(name, dir_fd=top)


def _clear(directory: int, top: int) -> list[str]:
    """Remove the files in `directory` and move its subdirectories to `top`. Returns the names of
    the directories that are now in `top`."""
    moved = []
    with os.scandir(directory) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                if not entry.is_dir(follow_symlinks=False):
                    os.unlink(entry.name, dir_fd=directory)
                elif directory == top:
                    moved.append(entry.name)
                elif not _is_removed(entry.name, dir_fd=directory):
                    name = f".moved-{secrets.token_hex(8)}"
                    os.rename(entry.name, name, src_dir_fd=directory, dst_dir_fd=top)
                    moved.append(name)
    return moved


def _is_removed(directory: Path | str, *, dir_fd: int | None = None) -> bool:
    """Remove the directory if it is empty; True if it was."""
    try:
        os.rmdir(directory, dir_fd=dir_fd)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False
    return True


@contextmanager
def lock_branches(
    *branch_ids: str, timeout: float = 60.0, directory: Path | None = None
) -> Iterator[None]:
    """Hold the branches' locks against every other thread and process on this host.

    The kernel releases a lock when its holder dies. So a lock never outlives its work, and work
    that was wrongly taken for dead is not done twice at once. `timeout` is in seconds. If a branch
    has no directory at the end, its lock file is removed. The files are in `directory`, by default
    that of the state directory.

    Raises LockTimeout, patience.OutOfPatience.
    """
    deadline = time.monotonic() + timeout
    directory = directory or settings.STATE_DIR / "locks"
    directory.mkdir(mode=0o700, exist_ok=True)
    with ExitStack() as stack:
        for branch_id in sorted(set(branch_ids)):
            stack.enter_context(_lock_file(directory / branch_id, deadline))
        yield


def catalog_lock(branch_id: str) -> str:
    """The name of the lock on the rows of a branch's catalog; see
    `operations.catalog.importing`."""
    return CATALOG + branch_id


def history_lock(branch_id: str) -> str:
    """The name of the lock on a branch's history; see `history.local`."""
    return HISTORY + branch_id


def pooler_lock(branch_id: str) -> str:
    """The name of the lock under which a branch's pooler is started, and its clients are shut out.
    A start does not hold the branch's own lock, which a copy may hold for long while the compute
    runs on. Who holds both has acquired the branch's own first."""
    return POOLER + branch_id


def standby_lock(branch_id: str) -> str:
    """The name of the lock on a branch's configuration file; see `standby.configuration_lock`."""
    return STANDBY + branch_id


def forget_lock(branch_id: str) -> None:
    """Remove the lock files of a branch that is gone, also that of its workshop, which work that
    was killed leaves. The caller holds the branch's lock."""
    for kind in ("", WORKSHOP, CATALOG, HISTORY, POOLER, STANDBY):
        name = kind + branch_id
        (settings.STATE_DIR / "locks" / name).unlink(missing_ok=True)


def forget_catalog_lock(branch_id: str) -> None:
    """Remove only the catalog's lock file of a branch that is gone. The caller holds that lock."""
    (settings.STATE_DIR / "locks" / catalog_lock(branch_id)).unlink(missing_ok=True)


@contextmanager
def _lock_file(path: Path, deadline: float) -> Iterator[None]:
    while True:
        with open_file(path, os.O_RDWR | os.O_CREAT, 0o600) as descriptor:
            _wait_for_lock(descriptor, path.name, deadline)
            # The last holder may have removed the file; later callers then lock a new one.
            if _is_at(path, descriptor):
                try:
                    yield
                finally:
                    # The file would stay forever where a process acquires the lock just after the
                    # branch was removed. If it is removed already, the file here is another's.
                    if _is_of_gone_branch(path) and _is_at(path, descriptor):
                        path.unlink(missing_ok=True)
                return


def _is_of_gone_branch(lock: Path) -> bool:
    branch_id = lock.name
    for kind in (CATALOG, HISTORY, POOLER, STANDBY):
        branch_id = branch_id.removeprefix(kind)
    is_of_branch = branch_id != lock.name or branch_id.startswith("br-")
    return is_of_branch and not (settings.STATE_DIR / "branches" / branch_id).exists()


def _wait_for_lock(descriptor: int, name: str, deadline: float) -> None:
    """Raises LockTimeout, patience.OutOfPatience."""
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            remaining()
            if time.monotonic() >= deadline:
                raise LockTimeout(f"{_locked_by(name)} is busy with other work") from None
            time.sleep(0.01)


def _locked_by(name: str) -> str:
    """What a lock of this name locks, in words for users."""
    _, is_branch, rest = name.partition("br-")
    return f"the branch br-{rest}" if is_branch else "the host"


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


class Listing:
    """The names in a directory that seldom changes and may have tens of thousands of entries. It is
    read again only if it has changed since. Threads may share this. A directory that does not exist
    has no names."""

    def __init__(self, keeps: Callable[[str], bool] = bool) -> None:
        # Whether a name counts.
        self._keeps = keeps
        self._lock = threading.Lock()
        self._read: tuple[Path, int, int] | None = None
        self._names: frozenset[str] = frozenset()

    def names(self, place: Path) -> frozenset[str]:
        """Raises OSError."""
        with self._lock:
            began = time.time_ns()
            try:
                found = os.stat(place)
            except FileNotFoundError:
                return frozenset()
            # The inode too, in case that another directory was put in its place.
            key = (place, found.st_ino, found.st_mtime_ns)
            if key != self._read:
                try:
                    listed = os.listdir(place)
                except FileNotFoundError:
                    return frozenset()
                self._names = frozenset(filter(self._keeps, listed))
                self._read = key if began - found.st_mtime_ns > SETTLED_AFTER_NS else None
            return self._names

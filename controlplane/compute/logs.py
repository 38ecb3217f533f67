"""What computes log, kept in files that cannot grow without end.

A stranger's SQL may log as fast as the machine can write. So a compute's standard error is no file
but a pipe with a name in the branch's directory, opened so that writing never waits: what does not
fit is dropped, and the compute goes on. One thread of the worker takes from all pipes, from each
at most RATE, and appends to files of which each is put aside at LONGEST; the one before goes then.

The compute itself holds both ends of its pipe. So it outlives the worker, whose successor finds
the pipe by its name, with what was logged last still in it. Nobody but us may open the pipe or the
files: they lie in a directory that is ours.
"""

import functools
import os
import select
import stat
import threading
import time
from contextlib import suppress
from pathlib import Path

from django.conf import settings

LONGEST = 5 << 20  # bytes
# Bytes taken from a pipe at once, the most that one holds, and seconds between: 1.3 MB a second.
TAKEN, PAUSE = 1 << 16, 0.05
# Of a compute that goes on logging no more than this is waited for where its words are wanted.
MOST_FLUSHED = 16 * TAKEN

PIPE = ".pipe"
# What reading a pipe gives once nobody has it open for writing.
ENDED = b""
APPENDED = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


def open_log(log_file: Path) -> int:
    """A descriptor to be a process's standard error, what it writes there appended to `log_file`;
    the caller closes its own. Nobody else has a process writing there. Raises OSError."""
    pipe = log_file.with_suffix(PIPE)
    pipe.unlink(missing_ok=True)
    os.mkfifo(pipe, 0o600)
    descriptor = os.open(pipe, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    _reader().follow(pipe)
    return descriptor


def flush_log(log_file: Path) -> None:
    """See that `log_file` holds what was logged so far."""
    _reader().flush(log_file)


def follow_logs() -> None:
    """Take in also what those computes log that another worker has started."""
    for branch in list((Path(settings.STATE_DIR) / "branches").iterdir()):
        with suppress(OSError):  # a branch that goes, a pipe that is just being made
            for pipe in branch.glob(f"*{PIPE}"):
                _reader().follow(pipe)


class _Reader:
    """The thread that reads, begun with the first pipe. Whatever is done with a pipe is done
    under the lock, so that lines stay in order."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.epoll = select.epoll()
        self.log_files: dict[int, Path] = {}
        self.followed: dict[int, int] = {}  # inode: descriptor
        self.thread: threading.Thread | None = None

    def follow(self, pipe: Path) -> None:
        """Read the pipe until its last writer has gone. Does nothing where there is none."""
        with self.lock:
            if pipe.lstat().st_ino in self.followed:
                return
            descriptor = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
            found = os.fstat(descriptor)
            if not stat.S_ISFIFO(found.st_mode):
                os.close(descriptor)
                return
            self.epoll.register(descriptor, select.EPOLLIN)
            self.followed[found.st_ino] = descriptor
            self.log_files[descriptor] = pipe.with_suffix(".log")
            if self._take(descriptor) == ENDED:
                self._forget(descriptor)
            elif self.thread is None:
                self.thread = threading.Thread(target=self._run, daemon=True, name="logs")
                self.thread.start()

    def flush(self, log_file: Path) -> None:
        with self.lock:
            for descriptor in [fd for fd, path in self.log_files.items() if path == log_file]:
                for _ in range(MOST_FLUSHED // TAKEN):
                    if not self._take(descriptor):
                        break

    def _run(self) -> None:
        while True:
            for descriptor, _ in self.epoll.poll():
                with self.lock:
                    # Another thread may have seen its end since.
                    if descriptor in self.log_files and self._take(descriptor) == ENDED:
                        self._forget(descriptor)
            time.sleep(PAUSE)

    def _take(self, descriptor: int) -> bytes | None:
        """Move what the pipe holds to its file; None where it holds nothing now."""
        try:
            taken = os.read(descriptor, TAKEN)
        except BlockingIOError:
            return None
        if taken:
            with suppress(OSError):  # the branch is gone, or the disk is full: words are dropped
                _append(self.log_files[descriptor], taken)
        return taken

    def _forget(self, descriptor: int) -> None:
        self.epoll.unregister(descriptor)
        del self.followed[os.fstat(descriptor).st_ino], self.log_files[descriptor]
        os.close(descriptor)


def _append(log_file: Path, text: bytes) -> None:
    with suppress(FileNotFoundError):
        if log_file.lstat().st_size + len(text) > LONGEST:
            log_file.rename(log_file.with_suffix(".log.1"))
    descriptor = os.open(log_file, APPENDED, 0o600)
    try:
        os.write(descriptor, text)
    finally:
        os.close(descriptor)


@functools.cache
def _reader() -> _Reader:
    """Made by the first who starts or follows a compute: the API, whose threads are gevent's and
    which has no epoll, does neither."""
    return _Reader()

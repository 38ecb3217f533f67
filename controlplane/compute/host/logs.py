"""Keeps what computes log in files of limited size.

A client's SQL may log as fast as the machine can write. So a compute's standard error is not a file
but a named pipe in the branch's directory, opened so that writing never blocks: what does not fit
is dropped, and the compute goes on. One thread of the worker reads all pipes, at most CHUNK_BYTES
per READ_INTERVAL from each, and appends to log files. A file that reaches MAX_LOG_BYTES is renamed
to `.log.1`, which replaces the previous one.

With PERCH_COMPUTE_LOGS_TO_STDOUT the lines are also written to this process's standard output, as
JSON. A thread of its own does that: if nobody reads the output, lines are left out of it.

The compute itself holds both ends of its pipe. So it outlives the worker; the next worker finds the
pipe by its name, with the last words still in it. Only we may open the pipe or the files: they are
in a directory of ours.
"""

import functools
import json
import os
import queue
import select
import stat
import sys
import threading
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from django.conf import settings

from controlplane.compute.host.log_lines import parse
from controlplane.compute.host.tree import open_file

MAX_LOG_BYTES = 5 << 20  # bytes
# Bytes read from a pipe at once, which is a pipe's capacity, and seconds between reads: 1.3 MB/s.
CHUNK_BYTES, READ_INTERVAL = 1 << 16, 0.05
# Bytes that `flush_log` reads at most, since the compute may keep logging meanwhile.
MAX_FLUSHED_BYTES = 16 * CHUNK_BYTES

# Lines that may wait for standard output to be read.
MAX_UNREAD_LINES = 10_000

PIPE = ".pipe"
# What reading a pipe returns when no process has it open for writing.
ENDED = b""
APPENDED = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


def open_log(log_file: Path) -> int:
    """A descriptor for a process's standard error; what is written there is appended to `log_file`.
    The caller closes it. No other process writes to this log. Raises OSError."""
    pipe = log_file.with_suffix(PIPE)
    pipe.unlink(missing_ok=True)
    os.mkfifo(pipe, 0o600)
    descriptor = os.open(pipe, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    _reader().follow(pipe)
    return descriptor


def flush_log(log_file: Path) -> None:
    """Make `log_file` hold what was logged so far."""
    _reader().flush(log_file)


def follow_logs(branch_ids: Collection[str] | None = None) -> None:
    """Also read the pipes of computes that another worker has started, on these branches, or on all
    of the host."""
    branches = Path(settings.STATE_DIR) / "branches"
    places = list(branches.iterdir()) if branch_ids is None else map(branches.joinpath, branch_ids)
    for branch in places:
        with suppress(OSError):  # a branch that is being removed, a pipe that is being made
            for pipe in branch.glob(f"*{PIPE}"):
                _reader().follow(pipe)


class _Reader:
    """The thread that reads the pipes; it starts with the first pipe. All work on a pipe is done
    under the lock, so that lines stay in order."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.epoll = select.epoll()
        self.log_files: dict[int, Path] = {}
        self.followed: dict[int, int] = {}  # inode: descriptor
        self.thread: threading.Thread | None = None
        self.output = _Output() if settings.COMPUTE_LOGS_TO_STDOUT else None

    def follow(self, pipe: Path) -> None:
        """Read the pipe until its last writer is gone. Does nothing if it is no pipe."""
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
                for _ in range(MAX_FLUSHED_BYTES // CHUNK_BYTES):
                    if not self._take(descriptor):
                        break

    def _run(self) -> None:
        while True:
            for descriptor, _ in self.epoll.poll():
                with self.lock:
                    # Another thread may have reached its end meanwhile.
                    if descriptor in self.log_files and self._take(descriptor) == ENDED:
                        self._forget(descriptor)
            time.sleep(READ_INTERVAL)

    def _take(self, descriptor: int) -> bytes | None:
        """Move what the pipe holds, at most CHUNK_BYTES, to its file. None if it is empty now."""
        try:
            taken = os.read(descriptor, CHUNK_BYTES)
        except BlockingIOError:
            return None
        if taken:
            with suppress(OSError):  # branch gone or disk full: the words are dropped
                _append(self.log_files[descriptor], taken)
            if self.output is not None:
                self.output.take(self.log_files[descriptor], taken)
        return taken

    def _forget(self, descriptor: int) -> None:
        if self.output is not None:
            self.output.forget(self.log_files[descriptor])
        self.epoll.unregister(descriptor)
        del self.followed[os.fstat(descriptor).st_ino], self.log_files[descriptor]
        os.close(descriptor)


class _Output:
    """Writes lines to standard output. `take` and `forget` are called under the reader's lock."""

    def __init__(self) -> None:
        # The beginning of each log's line that is not complete yet.
        self.begun: dict[Path, bytes] = {}
        self.lines: queue.Queue[str] = queue.Queue(MAX_UNREAD_LINES)
        threading.Thread(target=self._run, daemon=True, name="log output").start()

    def take(self, log_file: Path, taken: bytes) -> None:
        *lines, rest = (self.begun.get(log_file, b"") + taken).split(b"\n")
        self.begun[log_file] = rest[:CHUNK_BYTES]
        for raw in lines:
            line = parse(raw.decode(errors="replace"), log_file.stem)
            if settings.COMPUTE_LOGS_TO_STDOUT == "redacted":
                line = line.redacted()
            with suppress(queue.Full):
                self.lines.put_nowait(
                    json.dumps({"branch": log_file.parent.name, **line.as_json()})
                )

    def forget(self, log_file: Path) -> None:
        self.begun.pop(log_file, None)

    def _run(self) -> None:
        while True:
            sys.stdout.write(f"{self.lines.get()}\n")
            sys.stdout.flush()


def _append(log_file: Path, text: bytes) -> None:
    with suppress(FileNotFoundError):
        if log_file.lstat().st_size + len(text) > MAX_LOG_BYTES:
            log_file.rename(log_file.with_suffix(".log.1"))
    with open_file(log_file, APPENDED, 0o600) as descriptor:
        os.write(descriptor, text)


@functools.cache
def _reader() -> _Reader:
    """Made when a process first starts or follows a compute. The API does neither: its threads are
    gevent's, which removes `select.epoll`."""
    return _Reader()

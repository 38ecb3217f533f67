"""Observes from outside whether a Postgres that starts or stops makes progress.

A start may have a long log to redo, a stop all of the memory to write. They get the time that they
need as long as they work. What counts is the work of the processes that do this, and every process
that ends. The backends of clients do not count: one may be busy for ever with useless work.
"""

import enum
import os
import re
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from controlplane.compute.host.foreign_files import process_file
from controlplane.compute.host.patience import UNBOUNDED, remaining, report_progress

# How often to poll whether it is over: after a share of the time taken so far, within bounds in
# seconds. Many waits may run at once, and each poll costs CPU time.
POLL_FRACTION, MIN_POLL_INTERVAL, MAX_POLL_INTERVAL = 0.02, 0.001, 0.02
# Seconds between looks at what the processes have done; most starts and stops end before the first.
LOOK_INTERVAL = 0.25
# The processes that redo the log and write the memory. The cluster's name comes first. A client's
# backend has the names of its role and database there, any text, and then its address.
WORKING = re.compile(rb"postgres: (\S+: )?(startup|checkpointer)\b(?!.* \[local\])", re.DOTALL)
PROC = Path("/proc")


class Movement(enum.Enum):
    """What a look has found, compared with the one before."""

    GETS_ON = enum.auto()
    # In an uninterruptible wait: a kill would not help, and it is no proof of progress.
    WAITS_FOR_DISK = enum.auto()
    STANDS_STILL = enum.auto()


@dataclass
class Watch:
    """Looks at a postmaster and its children."""

    postmaster: int
    # The children at the first look. Only their ends count, as new ones come with every client.
    _first: set[int] | None = None
    _seen: dict[int, int] = field(default_factory=dict)

    def look(self) -> Movement:
        """Compare with the last look. Continues stopped processes, so that they can end."""
        children = children_of(self.postmaster)
        if self._first is None:
            self._first = set(children)
        labourers = [pid for pid in children if WORKING.match(cmdline_of(pid))]
        works = {pid: work for pid in labourers or [self.postmaster] if (work := _work(pid))}
        for pid in (self.postmaster, *children):
            continue_if_stopped(pid)
        seen = {pid: done for pid, (_, done) in works.items()}
        ended = self._first - set(children)
        self._first -= ended
        before, self._seen = self._seen, seen
        if ended or seen != before:
            return Movement.GETS_ON
        if any(state == "D" for state, _ in works.values()):
            return Movement.WAITS_FOR_DISK
        return Movement.STANDS_STILL


def wait_while_progressing(
    is_over: Callable[[], bool],
    look: Callable[[], Movement],
    *,
    stall_timeout: float,
    until: float = UNBOUNDED,
) -> bool:
    """Wait until `is_over`; False once nothing has moved for `stall_timeout` seconds, or at the
    time `until` of the monotonic clock: a process that was taken over can seem to work for ever.

    While there is progress, the bound of the work under way begins again. Raises OutOfPatience.
    """
    began = moved_at = time.monotonic()
    next_look = began + LOOK_INTERVAL
    while not is_over():
        now = time.monotonic()
        if now >= until:
            return False
        if now >= next_look:
            next_look = now + LOOK_INTERVAL
            movement = look()
            if movement is Movement.GETS_ON:
                report_progress()
            if movement is not Movement.STANDS_STILL:
                moved_at = now
            elif now - moved_at >= stall_timeout:
                return False
            remaining()
        # The longer it has taken, the less some more milliseconds matter.
        time.sleep(min(max(POLL_FRACTION * (now - began), MIN_POLL_INTERVAL), MAX_POLL_INTERVAL))
    return True


def continue_if_stopped(pid: int) -> None:
    """Continue a process that a signal has stopped, since it cannot end in order otherwise."""
    if _state_and_ticks(pid)[0] == "T":
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def children_of(pid: int) -> list[int]:
    try:
        return [int(child) for child in (PROC / f"{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:  # a kernel without this list
        with suppress(psutil.NoSuchProcess):
            return [child.pid for child in psutil.Process(pid).children()]
    return []


def cmdline_of(pid: int) -> bytes:
    return process_file(pid, "cmdline")


def _work(pid: int) -> tuple[str, int] | None:
    """The process's state, and a measure of its work: CPU ticks plus its I/O counters."""
    state, ticks = _state_and_ticks(pid)
    try:
        moved = (PROC / f"{pid}/io").read_text()
    except OSError:
        moved = ""
    done = ticks + sum(int(line.partition(":")[2]) for line in moved.splitlines())
    return (state, done) if state else None


def _state_and_ticks(pid: int) -> tuple[str, int]:
    try:
        fields = (PROC / f"{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "", 0
    return fields[0], int(fields[11]) + int(fields[12])

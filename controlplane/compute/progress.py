"""Whether a Postgres that starts or stops gets on, seen from outside.

A start may have a long log to redo, a stop all of the memory to write: for as long as they work
they get their time. What counts is the work of those that do it, and every process that ends. The
backends of clients do not count: one may be busy for ever with what nobody waits for.
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

from controlplane.compute.patience import progressed, remaining

# Seconds between two looks at whether it is over: a share of what it has taken so far, within
# bounds. Many may wait at once, and each look costs the same processor.
POLL_SHARE, POLL_INTERVAL, LONGEST_POLL_INTERVAL = 0.02, 0.001, 0.02
# Between looks at what the processes have done; most starts and stops are over before the first.
LOOK_INTERVAL = 0.25
# Those that redo the log, and write what is in memory. Their titles begin with the cluster's name.
LABOURER = re.compile(rb"postgres: (\S+: )?(startup|checkpointer)\b(?! \S+ \[)")
PROC = Path("/proc")


class Movement(enum.Enum):
    """What a look has found, against the one before."""

    GETS_ON = enum.auto()
    # In the kernel's hands: killing it would not help, nor does it prove that it gets on.
    WAITS_FOR_DISK = enum.auto()
    STANDS_STILL = enum.auto()


@dataclass
class Watch:
    """Looks at a postmaster and its children."""

    postmaster: int
    # Those of the first look: only these count when they end, as new ones come with every client.
    _first: set[int] | None = None
    _seen: dict[int, int] = field(default_factory=dict)

    def look(self) -> Movement:
        """Compare with the last look. What was stopped is continued, so that it can end."""
        children = children_of(self.postmaster)
        if self._first is None:
            self._first = set(children)
        labourers = [pid for pid in children if LABOURER.match(title_of(pid))]
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


def wait_while_it_gets_on(
    is_over: Callable[[], bool], look: Callable[[], Movement], *, still: float
) -> bool:
    """Wait until `is_over`; False once it has stood still for `still` seconds.

    What gets on has the bound of the work under way begin again. Raises OutOfPatience.
    """
    began = moved_at = time.monotonic()
    next_look = began + LOOK_INTERVAL
    while not is_over():
        now = time.monotonic()
        if now >= next_look:
            next_look = now + LOOK_INTERVAL
            movement = look()
            if movement is Movement.GETS_ON:
                progressed()
            if movement is not Movement.STANDS_STILL:
                moved_at = now
            elif now - moved_at >= still:
                return False
            remaining()
        # What has taken long already is not missed by some milliseconds more.
        time.sleep(min(max(POLL_SHARE * (now - began), POLL_INTERVAL), LONGEST_POLL_INTERVAL))
    return True


def continue_if_stopped(pid: int) -> None:
    """Let a process go on that a signal has stopped: only so it can end in order."""
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


def title_of(pid: int) -> bytes:
    try:
        return (PROC / f"{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _work(pid: int) -> tuple[str, int] | None:
    """The process's state, and how much it has done: time computed and bytes moved."""
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

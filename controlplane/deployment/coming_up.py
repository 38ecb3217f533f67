"""Waits for the processes that `up` has started, for as long as they make progress.

On a busy host, a start may take minutes. So what is limited is the time in which nothing moves: no
process under the supervisor runs, waits for a processor, or waits for the disk. A program that ends
again and again is reported earlier.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from django.core.management.base import CommandError

from controlplane.compute.host.progress import children_of
from controlplane.deployment.supervision import Supervisor

# Seconds without progress after which the start counts as stuck.
STALL_TIMEOUT = 60.0
# How many seconds of work in a second count as progress. Processes that only wait do less.
MIN_CPU_FRACTION = 0.1
# How often one program may end while the service starts.
MAX_DEATHS = 5
# Seconds between two checks of the condition, and of the processes.
POLL_INTERVAL, LOOK_INTERVAL = 0.05, 1.0
# Seconds between messages that tell the user what the start waits for.
MESSAGE_INTERVAL = 60.0
PROC = Path("/proc")


@dataclass
class ComingUp:
    """Waits for one `up`."""

    supervisor: Supervisor
    stopped: threading.Event
    say: Callable[[str], object]

    def wait_for(self, condition: Callable[[], bool], what: str) -> bool:
        """Wait until `condition` holds; False once `stopped` is set.

        Raises CommandError if the supervisor has died, a program has ended too often, or nothing
        has moved for STALL_TIMEOUT seconds. `what` names the condition in messages.
        """
        watch = _Watch(self.supervisor, what)
        next_look, next_word = time.monotonic(), time.monotonic() + MESSAGE_INTERVAL
        while not condition():
            if self.stopped.wait(POLL_INTERVAL):
                return False
            if not self.supervisor.is_running():
                raise CommandError(f"the supervisor has exited; see {self.supervisor.log_dir}")
            if time.monotonic() >= next_look:
                watch.look()
                next_look = time.monotonic() + LOOK_INTERVAL
            if time.monotonic() >= next_word:
                self.say(f"Still starting: waiting for {what}.")
                next_word = time.monotonic() + MESSAGE_INTERVAL
        return True


@dataclass
class _Watch:
    """Looks repeatedly at the processes under the supervisor."""

    supervisor: Supervisor
    what: str
    stalled: float = 0.0  # seconds
    _looked_at: float = field(default_factory=time.monotonic)
    _work: dict[str, int] = field(default_factory=dict)
    _pids: dict[str, int] = field(default_factory=dict)
    _deaths: dict[str, int] = field(default_factory=dict)

    def look(self) -> None:
        """Raises CommandError; see `ComingUp.wait_for`."""
        self._count_deaths()
        now, work = time.monotonic(), dict(_work_of(self.supervisor.pid))
        passed, self._looked_at = now - self._looked_at, now
        done = sum(spent - self._work.get(task, 0) for task, spent in work.items()) / 1e9
        self._work = work
        if _waits_for_disk(work) or done >= MIN_CPU_FRACTION * passed:
            self.stalled = 0.0
        else:
            self.stalled += passed
        if self.stalled > STALL_TIMEOUT:
            raise CommandError(
                f"{self.what} does not start, and has made no progress for "
                f"{STALL_TIMEOUT:.0f} s; see {self.supervisor.log_dir}"
            )

    def _count_deaths(self) -> None:
        for name, pid in self.supervisor.processes().items():
            before, self._pids[name] = self._pids.get(name, 0), pid
            if before in (0, pid):
                continue
            self._deaths[name] = self._deaths.get(name, 0) + 1
            if self._deaths[name] >= MAX_DEATHS:
                log_file = self.supervisor.log_dir / f"{name}.log"
                raise CommandError(
                    f"{name} has exited {MAX_DEATHS} times while it started, the last time with: "
                    f"{_last_error(log_file)}; see {log_file}"
                )


def _work_of(pid: int) -> Iterator[tuple[str, int]]:
    """Yields each thread of the process and of its descendants, with how many nanoseconds it has
    run or waited for a processor."""
    for task in _entries(PROC / str(pid) / "task"):
        with suppress(OSError, ValueError, IndexError):
            ran, waited = (task / "schedstat").read_text().split()[:2]
            yield str(task), int(ran) + int(waited)
    for child in children_of(pid):
        yield from _work_of(child)


def _waits_for_disk(tasks: dict[str, int]) -> bool:
    for task in tasks:
        with suppress(OSError):
            if (Path(task) / "stat").read_text().rpartition(")")[2].split()[0] == "D":
                return True
    return False


def _entries(directory: Path) -> list[Path]:
    try:
        return list(directory.iterdir())
    except OSError:
        return []


def _last_error(log_file: Path) -> str:
    """The last two lines: Postgres's last line is often only the detail of an error."""
    with suppress(OSError):
        lines = [line for line in log_file.read_text(errors="replace").splitlines() if line.strip()]
        return " ".join(lines[-2:]) or "no words"
    return "no words"

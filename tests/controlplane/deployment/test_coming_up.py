"""How long `up` waits for the processes that it has started."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from django.core.management.base import CommandError

from controlplane.deployment import coming_up
from controlplane.deployment.coming_up import ComingUp
from tests.selection import first_of

pytestmark = pytest.mark.slow

STILL = 0.8
# Seconds: far longer than a start without progress is allowed.
SLOW = "import time; end = time.process_time() + 2.8\nwhile time.process_time() < end: pass"
IN_A_CHILD = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SLOW!r}])"
HANGS = "import sys; sys.stdin.read()"


@dataclass
class FakeSupervisor:
    """A fake supervisor with a real process."""

    process: "subprocess.Popen[bytes]"
    log_dir: Path
    # What each call returns; the last value is repeated.
    looks: list[dict[str, int]] = field(default_factory=lambda: [{"api": 7}])

    @property
    def pid(self) -> int:
        return self.process.pid

    def is_running(self) -> bool:
        return self.process.poll() is None

    def processes(self) -> dict[str, int]:
        return self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coming_up, "STALL_TIMEOUT", STILL)
    monkeypatch.setattr(coming_up, "LOOK_INTERVAL", 0.05)


@contextmanager
def supervising(program: str, log_dir: Path) -> Iterator[Any]:
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        try:
            yield FakeSupervisor(process, log_dir)
        finally:
            process.kill()


def waiting(supervisor: Any, said: list[str] | None = None) -> ComingUp:
    words = [] if said is None else said
    return ComingUp(supervisor, threading.Event(), words.append)


@pytest.mark.parametrize("program", first_of([IN_A_CHILD, SLOW]))
def test_a_start_with_progress_is_waited_for(tmp_path: Path, program: str) -> None:
    with supervising(f"{program}\n{HANGS}", tmp_path) as supervisor:
        came_up_at = time.monotonic() + 3 * STILL
        assert waiting(supervisor).wait_for(lambda: time.monotonic() > came_up_at, "it")


@pytest.mark.thorough
def test_a_start_without_progress_is_reported(tmp_path: Path) -> None:
    with supervising(HANGS, tmp_path) as supervisor:
        with pytest.raises(CommandError, match=r"the API does not start, and has made no progress"):
            waiting(supervisor).wait_for(lambda: False, "the API")
        assert supervisor.is_running()


@pytest.mark.thorough
def test_a_program_that_exits_repeatedly_is_reported_with_its_last_output(tmp_path: Path) -> None:
    (tmp_path / "metadata.log").write_text("starting\nFATAL:  no room\n\n")
    with supervising(SLOW, tmp_path) as supervisor:
        lives = [{"metadata": pid, "api": 7} for pid in (0, 11, 0, 12, 13, 0, 14, 15, 16)]
        supervisor.looks = lives
        with pytest.raises(CommandError, match=r"metadata has exited 5 times .* FATAL:  no room;"):
            waiting(supervisor).wait_for(lambda: False, "Postgres")


def test_a_dead_supervisor_is_reported(tmp_path: Path) -> None:
    with (
        supervising("pass", tmp_path) as supervisor,
        pytest.raises(CommandError, match="the supervisor has exited"),
    ):
        waiting(supervisor).wait_for(lambda: False, "Postgres")


def test_a_long_start_is_announced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coming_up, "MESSAGE_INTERVAL", 0.1)
    said: list[str] = []
    with supervising(SLOW, tmp_path) as supervisor:
        assert waiting(supervisor, said).wait_for(lambda: len(said) > 1, "Postgres")
    assert said[0] == "Still starting: waiting for Postgres."


def test_a_stop_ends_the_wait(tmp_path: Path) -> None:
    with supervising(HANGS, tmp_path) as supervisor:
        wait = waiting(supervisor)
        wait.stopped.set()
        assert not wait.wait_for(lambda: False, "Postgres")

"""`manage.py computes stop --all`: a host can be put down without `up`."""

import subprocess
import sys
from pathlib import Path

import pytest

from controlplane.management.replacing import MAKE_ROOM
from tests.support.processes import is_alive
from tests.support.service import Service
from tests.support.stack import ROOT, Stack
from tests.support.waiting import wait_for


def stop_all(state_dir: Path) -> "subprocess.CompletedProcess[str]":
    program = [sys.executable, str(ROOT / "manage.py"), "computes", "stop", "--all"]
    return subprocess.run(
        [*program, "--state-dir", str(state_dir)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_it_is_refused_while_up_runs(stack: Stack) -> None:
    done = stop_all(stack.state_dir)
    assert done.returncode == 1
    assert "Perch is already running" in done.stderr


@pytest.mark.thorough
def test_it_stops_what_an_up_has_left(state_dir: Path) -> None:
    service = Service(state_dir)
    try:
        project = service.project()
        project.sql("CREATE TABLE kept AS SELECT 7 AS number")
        postmaster = project.postmaster()
        service.stack.process.send_signal(MAKE_ROOM)
        assert service.stack.process.wait(60) == 0
        assert is_alive(postmaster)
        done = stop_all(state_dir)
        assert (done.returncode, done.stdout) == (0, "Computes stopped: 1.\n"), done.stderr
        assert not is_alive(postmaster)
        service.up()
        wait_for(lambda: project.endpoint()["current_state"] == "idle", "the row to be right")
        project.start()
        assert project.sql("SELECT number FROM kept") == [(7,)]
    finally:
        service.down()

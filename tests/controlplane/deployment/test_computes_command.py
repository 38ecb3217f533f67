"""`manage.py computes`: a host can be put down without `up`, and computes that a new minor release
of Postgres left behind are restarted."""

import subprocess
import sys
from pathlib import Path

import pytest

from controlplane.deployment.host_resources import MAKE_ROOM
from tests.support.client import Client
from tests.support.majors import programs_of
from tests.support.processes import is_alive
from tests.support.service import Service
from tests.support.stack import ROOT, Stack
from tests.support.waiting import wait_for


def computes(*arguments: str, of: Path) -> "subprocess.CompletedProcess[str]":
    program = [sys.executable, str(ROOT / "manage.py"), "computes", *arguments]
    return subprocess.run(
        [*program, "--state-dir", str(of)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_it_is_refused_while_up_runs(stack: Stack) -> None:
    assert "needs --all" in computes("stop", of=stack.state_dir).stderr
    done = computes("stop", "--all", of=stack.state_dir)
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
        done = computes("stop", "--all", of=state_dir)
        assert (done.returncode, done.stdout) == (0, "Computes stopped: 1.\n"), done.stderr
        assert not is_alive(postmaster)
        service.up()
        wait_for(lambda: project.endpoint()["current_state"] == "idle", "the row to be right")
        project.start()
        assert project.sql("SELECT number FROM kept") == [(7,)]
    finally:
        service.down()


@pytest.mark.thorough
def test_it_restarts_what_runs_on_a_replaced_minor_release(state_dir: Path) -> None:
    service = Service(state_dir, PERCH_POSTGRES_BIN=str(programs_of("18.4")))
    try:
        behind, idle = service.project(), service.project()
        idle.suspend()
        assert behind.sql("SHOW server_version") == [("18.4",)]
        service.stack.process.send_signal(MAKE_ROOM)
        assert service.stack.process.wait(60) == 0
        service.replace_environment(PERCH_POSTGRES_BIN="")
        service.up()
        operator = Client(service.stack.api_url, (state_dir / "api-key").read_text().strip())

        def named() -> list[str]:
            return list(operator.get("/status/hosts")["hosts"][0]["on_replaced_postgres"])

        wait_for(lambda: named() == [behind.endpoint_id], "it to be noticed")
        done = computes("restart", of=state_dir)
        assert f"{behind.endpoint_id} has Postgres 18.4: restarting" in done.stdout, done.stderr
        wait_for(lambda: named() == [], "the restart")
        for project in (behind, idle):
            project.stack = service.stack
            project.start()
            assert project.sql("SHOW server_version") != [("18.4",)]
        assert computes("restart", of=state_dir).stdout.startswith("No compute runs on a replaced")
    finally:
        service.down()

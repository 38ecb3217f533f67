"""Perch's own database does not answer: what commands and the worker say."""

import asyncio
import logging
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from django.db import OperationalError

from controlplane.features import Round
from controlplane.management.commands import worker
from controlplane.models import Host
from tests.support.stack import ROOT


def manage(*arguments: str, state_dir: Path, **given: str) -> str:
    """Run a command that fails, and return its only line."""
    known = {name: value for name, value in os.environ.items() if "DJANGO" not in name}
    known.pop("DATABASE_URL", None)
    done = subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=ROOT,
        env={**known, "PERCH_STATE_DIR": str(state_dir), **given},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    return line


def test_commands_without_a_database_say_what_is_missing(tmp_path: Path) -> None:
    for command in (["accounts"], ["hosts"], ["psql", "ep-quiet-heron-123456"]):
        line = manage(*command, state_dir=tmp_path)
        assert line.startswith("DATABASE_URL is not set, and the Postgres that `up` runs does not")
        assert f"The state directory of this command is {tmp_path}" in line


def test_a_command_whose_database_is_away_says_why(tmp_path: Path) -> None:
    url = f"host={tmp_path} dbname=perch"
    line = manage("accounts", state_dir=tmp_path, DATABASE_URL=url)
    assert line.startswith("The database of DATABASE_URL does not answer: ")
    assert str(tmp_path) in line


def test_a_backup_makes_no_database(tmp_path: Path) -> None:
    line = manage("backup", str(tmp_path / "backup"), state_dir=tmp_path / "state")
    assert "set DATABASE_URL" in line or "--state-dir" in line
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "identity").write_text("0f1d6f52-7f63-4a5e-9df1-6a0c7a9f3a53\n")
    manage("backup", str(tmp_path / "backup"), state_dir=tmp_path / "used")
    assert not (tmp_path / "used" / "metadata").exists()


def test_an_outage_is_told_once_and_so_is_its_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    is_away = True

    def publish(_: Host) -> None:
        if is_away:
            raise OperationalError("no answer\n")

    def other(host: Host) -> None:
        publish(host)

    monkeypatch.setattr(worker, "publish", publish)
    host: Any = None

    async def run() -> None:
        nonlocal is_away
        rounds = [asyncio.create_task(worker.repeat(Round(0.01, do), host))
                  for do in (publish, other)]  # fmt: skip
        await asyncio.sleep(0.3)
        is_away = False
        await asyncio.sleep(0.3)
        for task in rounds:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    with caplog.at_level(logging.INFO, worker.log.name):
        asyncio.run(run())
    told = [(record.levelname, record.message) for record in caplog.records]
    assert told == [
        ("WARNING", "database does not answer"),
        ("INFO", "database answers again"),
    ]

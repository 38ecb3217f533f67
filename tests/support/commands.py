"""Runs the commands of `manage.py` as an operator does."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support.stack import ROOT


def begun(*arguments: str | Path, **environment: str) -> "subprocess.Popen[str]":
    """Begin the command, in this process's environment with these changes. It writes what it says
    to one pipe."""
    known = {name: value for name, value in os.environ.items() if "DJANGO" not in name}
    return subprocess.Popen(
        [sys.executable, ROOT / "manage.py", *arguments],
        cwd=ROOT,
        env={**known, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def output_of(process: "subprocess.Popen[str]", *, status: int = 0) -> str:
    """Return the output of the command, which must end with the status and without a traceback."""
    output, _ = process.communicate(timeout=300)
    assert process.returncode == status, output
    assert "Traceback" not in output, output
    return output


def ran(*arguments: str | Path, status: int = 0, **environment: str) -> str:
    return output_of(begun(*arguments, **environment), status=status)

"""The clients from npm, and the programs that run them."""

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
MODULES = HERE / "node_modules"
# Below `node_modules`: the hash of the package.json that the installed packages belong to.
INSTALLED = ".perch-installed"


class NoNode(Exception):
    """This machine has no recent enough Node.js, or it cannot install packages."""


@dataclass(frozen=True)
class Ran:
    """The result of a program."""

    status: int
    output: str
    # Warnings, notices and errors.
    told: str


def install(where: Path = HERE) -> None:
    """Install what the package.json of that folder names, the clients by default, into its
    `node_modules`, unless it is there. Raises NoNode."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            raise NoNode(f"{program} is not installed")
    wanted = hashlib.sha256((where / "package.json").read_bytes()).hexdigest()
    installed = where / "node_modules" / INSTALLED
    if installed.exists() and installed.read_text() == wanted:
        return
    # No lock file, because it would name a registry. package.json has the versions.
    command = ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts"]
    ran = subprocess.run(command, cwd=where, capture_output=True, text=True, timeout=300)
    if ran.returncode:
        raise NoNode(f"npm cannot install what {where} names: {ran.stderr[-2000:]}")
    installed.write_text(wanted)


def program(package: str) -> Path:
    """Return the only program of a package."""
    described = json.loads((MODULES / package / "package.json").read_text())
    within: str = next(iter(described["bin"].values()))
    return MODULES / package / within


def run(
    *command: str | Path,
    cwd: Path = HERE,
    environment: Mapping[str, str] | None = None,
    timeout: float = 120,
) -> Ran:
    """Run a program of `node_modules` or of this folder, without input."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("NEON_")}
    ended = subprocess.run(
        command,
        cwd=cwd,
        env={**inherited, "NO_COLOR": "1", **(environment or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    return Ran(ended.returncode, ended.stdout, ended.stderr)


def script(name: str, **environment: str) -> Ran:
    """Run one of this folder's own modules."""
    return run("node", HERE / name, environment=environment)

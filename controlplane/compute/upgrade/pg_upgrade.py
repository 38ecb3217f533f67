"""Runs pg_upgrade on a copy of a branch's data, confined to its programs and that data.

It restores what clients wrote as a superuser, and whatever that code did would be done with the
rights of pg_upgrade's account. So what it starts may open, besides what it only reads to run, the
staging directory and that of its sockets; see `confinement`.
"""

import glob
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import IO

import psutil
from django.conf import settings

from controlplane.compute.data import branch_data
from controlplane.compute.data.branch_data import branch_dir, data_dir
from controlplane.compute.data.state_directory import TRUSTING_HBA_FILE
from controlplane.compute.host.accounts import Account, launched_as, set_owner
from controlplane.compute.host.binaries import PostgresUnusable, postgres_bin
from controlplane.compute.host.confinement import start_confined
from controlplane.compute.host.foreign_files import read_regular
from controlplane.compute.host.progress import Movement, wait_while_progressing
from controlplane.compute.host.space import require_reserve
from controlplane.compute.host.tree import open_directory
from controlplane.compute.processes.limits import limit_compute
from controlplane.compute.processes.session import pinned_options
from controlplane.compute.settings.configuration import PLATFORM_ROLE
from controlplane.compute.upgrade.upgrade_catalogs import UpgradeFailed, UpgradeRefused
from controlplane.compute.workshop import MAX_CU, sockets_of

# What pg_upgrade runs, of the old and of the new major version.
OLD_PROGRAMS = ("pg_controldata", "pg_ctl", "pg_resetwal", "postgres")
NEW_PROGRAMS = (
    *OLD_PROGRAMS,
    *("initdb", "pg_dump", "pg_dumpall", "pg_restore", "pg_upgrade", "psql", "vacuumdb"),
)
# What these execute: pg_upgrade copies directories with cp.
HELPERS = ("sh", "cp", "setpriv")
LOADERS = ("/lib64/ld-*", "/lib/ld-*")
LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/share", "/etc", "/dev/urandom")
# In the staging directory: the copy of the old data, and where pg_upgrade writes its own files.
OLD, WORK = "old", "work"
STALL_TIMEOUT = 120.0  # seconds that pg_upgrade may make no progress
MAX_TIME = 21_600.0  # seconds for all of it: the host's other upgrades wait
STATEMENT_TIMEOUT = 3600.0  # seconds for one of its statements
MAX_OUTPUT_BYTES, MAX_REPORT_BYTES = 3000, 800  # bytes
# What pg_upgrade writes about a check, and about restoring a database.
REPORT = re.compile(r"[a-z_0-9]+\.txt|pg_upgrade_dump_[0-9]+\.log")


def require_programs(before: int, to: int) -> None:
    """Raise PostgresUnusable if this host lacks a program that the upgrade needs."""
    for major, programs in ((before, OLD_PROGRAMS), (to, NEW_PROGRAMS)):
        directory = postgres_bin(major)
        if missing := [one for one in programs if not (directory / one).exists()]:
            raise PostgresUnusable(
                f"this host's Postgres {major} lacks {', '.join(missing)}, which the upgrade needs"
            )


def run_pg_upgrade(branch_id: str, account: Account, *, before: int, to: int) -> None:
    """Raises UpgradeRefused with the words of pg_upgrade's own checks."""
    workshop, sockets = branch_data.staging_id(branch_id), sockets_of(branch_id)
    staging = branch_dir(workshop)
    for place in (staging / WORK, sockets):
        place.mkdir(mode=0o700)
        set_owner(place, account)
    command: list[Path | str] = [
        postgres_bin(to) / "pg_upgrade",
        *("--old-bindir", postgres_bin(before), "--new-bindir", postgres_bin(to)),
        *("--old-datadir", staging / OLD, "--new-datadir", data_dir(workshop)),
        *("--username", PLATFORM_ROLE, "--socketdir", sockets),
        *("--old-port", "50432", "--new-port", "50433"),
        # The new data takes over the files of the copy, which is removed.
        *("--link", "--no-sync"),
        *("--old-options", _options(branch_id, "old", before)),
        *("--new-options", _options(branch_id, "new", to)),
    ]
    with tempfile.TemporaryFile() as output:

        def start() -> "subprocess.Popen[bytes]":
            with launched_as(account, command) as run:
                run["cwd"] = staging / WORK
                run["env"] = {**run["env"], "PGOPTIONS": pinned_options(STATEMENT_TIMEOUT, before)}
                return subprocess.Popen(
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    **run,
                )

        process = start_confined(start, **_paths(staging, sockets, before=before, to=to))
        limit_compute(sockets.name, process.pid, max_cu=MAX_CU)
        try:
            in_time = wait_while_progressing(
                lambda: process.poll() is not None,
                _Watch(staging).look,
                stall_timeout=STALL_TIMEOUT,
                until=time.monotonic() + MAX_TIME,
            )
        finally:
            process.kill()
            process.wait()
        if not in_time:
            raise UpgradeFailed("pg_upgrade made no progress, or took too long")
        if process.returncode < 0:
            by = signal.Signals(-process.returncode).name
            raise UpgradeFailed(f"pg_upgrade was ended by {by}")
        if process.returncode:
            raise UpgradeRefused(f"pg_upgrade refuses it: {_output(output, data_dir(workshop))}")


def _paths(staging: Path, sockets: Path, *, before: int, to: int) -> dict[str, list[Path]]:
    """What pg_upgrade and all that it starts may open."""
    old, new = (postgres_bin(major).resolve() for major in (before, to))
    programs = [old / name for name in OLD_PROGRAMS] + [new / name for name in NEW_PROGRAMS]
    helpers = filter(None, (shutil.which(name, path="/usr/bin:/bin") for name in HELPERS))
    # The wheel has libraries beside its package.
    packages = (old.parents[1], new.parents[1])
    beside = [package.with_name(f"{package.name}.libs") for package in packages]
    return {
        "read": [
            *map(Path, LIBRARIES),
            old.parent,
            new.parent,
            *beside,
            Path(settings.STATE_DIR) / TRUSTING_HBA_FILE,
        ],
        "written": [staging, sockets, Path("/dev/null")],
        "executed": [*programs, *map(Path, helpers), *map(Path, chain(*map(glob.glob, LOADERS)))],
    }


def _options(branch_id: str, name: str, major: int) -> str:
    """The options of a server that pg_upgrade starts: a configuration of ours alone."""
    lines = {
        "hba_file": settings.STATE_DIR / TRUSTING_HBA_FILE,
        "listen_addresses": "",
        "shared_buffers": "64MB",
        # One transaction restores up to a thousand objects.
        "max_locks_per_transaction": "1024",
        "fsync": "off",
        "full_page_writes": "off",
        "autovacuum": "off",
        "max_logical_replication_workers": "0",
        # In the directory of data, as the server may open no other.
        "dynamic_shared_memory_type": "mmap",
    }
    if major >= 17:
        lines["event_triggers"] = "off"
    text = "".join(f"{key} = '{value}'\n" for key, value in lines.items())
    workshop = branch_data.staging_id(branch_id)
    return f"-c config_file={branch_data.write_branch_file(workshop, f'upgrade-{name}.conf', text)}"


class _Watch:
    """Looks at all processes that work in the staging directory: pg_upgrade and what it starts."""

    def __init__(self, staging: Path) -> None:
        self._staging = staging
        self._seen: set[tuple[int, float]] = set()

    def look(self) -> Movement:
        with open_directory(self._staging) as place:
            require_reserve(place)
        seen = set()
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.cwd().startswith(f"{self._staging}/"):
                    times = process.cpu_times()
                    seen.add((process.pid, times.user + times.system))
        before, self._seen = self._seen, seen
        return Movement.GETS_ON if seen != before else Movement.STANDS_STILL


def _output(output: IO[bytes], data: Path) -> str:
    """The last words of pg_upgrade, of its checks' reports, and of the restore that failed."""
    size = output.seek(0, os.SEEK_END)
    output.seek(max(0, size - MAX_OUTPUT_BYTES))
    said = [_whole_words(output.read(MAX_OUTPUT_BYTES), MAX_OUTPUT_BYTES)]
    limit = MAX_REPORT_BYTES
    # A link in place of the directory is not followed.
    for _, _, names, opened in os.fwalk(data / "pg_upgrade_output.d", follow_symlinks=False):
        said += [
            _whole_words(read_regular(name, limit, dir_fd=opened, from_end=True), limit)
            for name in sorted(names)
            if REPORT.fullmatch(name)
        ]
    words = b"\n".join(said).decode(errors="replace")
    # Of a restore, only what it says from its error on.
    if error := re.search(r"pg_restore: error: .*?(?=^pg_restore: |\Z)", words, re.S | re.M):
        words = error[0]
    # The checks and steps that passed are not of interest.
    return " ".join(re.sub(r"(?m)^.*\bok *$|^[-*]+$|^pg_restore: creating .*$", "", words).split())


def _whole_words(read: bytes, limit: int) -> bytes:
    """Without the first word if all that precedes it was cut off: what is left of a path would not
    be recognised as one, and be shown."""
    return b"".join(read.split(maxsplit=1)[1:]) if len(read) == limit else read

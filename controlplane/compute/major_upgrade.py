"""Makes data of a newer major version of Postgres from a branch's data, by pg_upgrade, and puts it
in the place of the old data.

The old data is only read. What pg_upgrade works on is a copy of it in the branch's staging
directory. pg_upgrade needs an account with a name, which branches' accounts do not have: all of
this host share `perch-upgrade`, one after the other, and its processes are killed before the next.
The complete new data waits beside the branch until the operation that made it switches all branches
of the project.

`upgrade_catalogs` makes the copy harmless before, and brings back what it took afterwards. Sessions
are pinned as our own are.
"""

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

import psutil
from django.conf import settings

from controlplane import durable
from controlplane.compute import branch_data
from controlplane.compute.account_processes import end_upgrade_account
from controlplane.compute.accounts import Account, give, launched_as, upgrade_account
from controlplane.compute.binaries import PostgresUnusable, major_of, postgres_bin
from controlplane.compute.branch_data import NoSuchBranchData, branch_dir, data_dir
from controlplane.compute.configuration import PLATFORM_ROLE
from controlplane.compute.filesystem import LockTimeout, forget_lock, lock_branches, remove_tree
from controlplane.compute.foreign_files import read_regular
from controlplane.compute.history.recovering import PREPARED
from controlplane.compute.limits import end_group, forget_limits, limit_compute
from controlplane.compute.occupants import end_processes_in
from controlplane.compute.patience import heed_cancel, progressed
from controlplane.compute.progress import Movement, wait_while_it_gets_on
from controlplane.compute.recovery import is_to_recover
from controlplane.compute.schema_only import UNSAFE
from controlplane.compute.session import pinned_options
from controlplane.compute.space import require_reserve
from controlplane.compute.state_directory import HBA_FILE
from controlplane.compute.steps import step
from controlplane.compute.tree import clone_tree, give_tree, open_directory
from controlplane.compute.upgrade_catalogs import (
    UpgradeFailed,
    UpgradeRefused,
    disarm,
    named,
    rearm,
    refuse_what_cannot_go,
)
from controlplane.compute.workshop import MOST, end_workshop, serving, sockets_of

# What pg_upgrade runs, of the old and of the new major version.
OLD_PROGRAMS = ("pg_controldata", "pg_ctl", "pg_resetwal", "postgres")
NEW_PROGRAMS = (
    *OLD_PROGRAMS,
    *("initdb", "pg_dump", "pg_dumpall", "pg_restore", "pg_upgrade", "psql", "vacuumdb"),
)
# In the staging directory: the copy of the old data, and where pg_upgrade writes its own files.
OLD, WORK = "old", "work"
LOOK_UP = 0.5  # seconds between two looks whether the work was cancelled
STILL = 120.0  # seconds that pg_upgrade may make no progress
STATEMENT = 3600.0  # seconds for one of its statements
LONGEST_WORDS, LONGEST_REPORT = 3000, 800  # bytes
# What pg_upgrade writes about a check, and about restoring a database.
REPORT = re.compile(r"[a-z_0-9]+\.txt|pg_upgrade_dump_[0-9]+\.log")
# Slots that the platform makes for itself.
OWN_SLOT = "perch_"


def upgraded_place(branch_id: str, key: str) -> Path:
    """Where the branch's new data waits; `key` names the operation."""
    return branch_dir(branch_id).with_name(f".{branch_id}.{key}")


def prepare(branch_id: str, key: str, *, to: int) -> bool:
    """Make the branch's data as it is of the major version `to`, beside the branch. Does nothing if
    it is there already; False if the branch needs none. The branch may run; then what it commits
    later is not included.

    Raises UpgradeRefused, UpgradeFailed, PostgresUnusable, NoSuchBranchData, AccountUnusable,
    NotEnoughSpace, TreeUntrusted, StartFailed, psycopg.Error, OSError.
    """
    source, place = data_dir(branch_id), upgraded_place(branch_id, key)
    if place.exists():
        return True
    if not source.exists():
        raise NoSuchBranchData(f"the branch {branch_id} has no data")
    before = major_of(source)
    if before == to:
        return False
    if before > to:
        raise UpgradeRefused(f"the branch's data is of Postgres {before}, which is newer")
    require_programs(before, to)
    _refuse_slots(source)
    workshop = branch_data.staging_id(branch_id)
    with lock_branches(workshop):
        try:
            _end_earlier(branch_id)
            with branch_data.new_branch(branch_id, place=place) as (staging, account):
                branch_data.let_in(staging, account)
                branch_data.copy_branch(source, staging, account)
                _upgrade(branch_id, account, before=before, to=to)
        finally:
            forget_lock(workshop)
    return True


def switch(branch_id: str, key: str) -> None:
    """Put the new data in the place of the old, which is removed. The branch does not run. May be
    called again after a crash; does nothing without new data."""
    place, fresh = branch_dir(branch_id), upgraded_place(branch_id, key)
    old = _replaced_place(branch_id, key)
    if fresh.exists():
        if place.exists():
            durable.rename(place, old)
        durable.rename(fresh, place)
    remove_tree(old)


def discard(branch_id: str, key: str) -> None:
    """End what a dead attempt has left running for the branch, and remove the new data. If a switch
    was cut off between its renames, the branch gets its old data back."""
    workshop = branch_data.staging_id(branch_id)
    with lock_branches(workshop):
        _end_earlier(branch_id)
        remove_tree(branch_dir(workshop))
        forget_lock(workshop)
    old = _replaced_place(branch_id, key)
    if old.exists() and not branch_dir(branch_id).exists():
        durable.rename(old, branch_dir(branch_id))
    remove_tree(old)
    remove_tree(upgraded_place(branch_id, key))


def require_programs(before: int, to: int) -> None:
    """Raise PostgresUnusable if this host lacks a program that the upgrade needs."""
    for major, programs in ((before, OLD_PROGRAMS), (to, NEW_PROGRAMS)):
        directory = postgres_bin(major)
        if missing := [one for one in programs if not (directory / one).exists()]:
            raise PostgresUnusable(
                f"this host's Postgres {major} lacks {', '.join(missing)}, which the upgrade needs"
            )


def _replaced_place(branch_id: str, key: str) -> Path:
    return branch_dir(branch_id).with_name(f".{branch_id}.{key}-replaced")


def _refuse_slots(source: Path) -> None:
    """Slots are not copied, so a subscriber would miss what it has not received yet."""
    with open_directory(source) as inside, open_directory("pg_replslot", within=inside) as slots:
        names = sorted(name for name in os.listdir(slots) if not name.startswith(OWN_SLOT))
    if names:
        raise UpgradeRefused(
            f"it has the replication slot {named(names)}, which would be lost: drop it first, and "
            "let its subscriber copy the data anew afterwards"
        )


def _upgrade(branch_id: str, account: Account, *, before: int, to: int) -> None:
    workshop = branch_data.staging_id(branch_id)
    staging, data = branch_dir(workshop), data_dir(workshop)
    with _served(branch_id, account) as sockets, step("checking_catalog"):
        refuse_what_cannot_go(sockets, to)
        found = disarm(sockets)
    data.rename(staging / OLD)
    with _turn(branch_id), step("upgrading", **{"from": before, "to": to}):
        runner = Account(upgrade_account().uid, account.gid)
        give_tree(staging / OLD, account, runner)
        clone_tree(branch_data.template(to), data, owner=runner)
        _run_pg_upgrade(branch_id, runner, before=before, to=to)
    remove_tree(staging / OLD)
    remove_tree(staging / WORK)
    give_tree(data, runner, account)
    with _served(branch_id, account) as sockets, step("restoring_functions"):
        rearm(sockets, found)
    for path in staging.glob("upgrade-*.conf"):
        path.unlink()


@contextmanager
def _turn(branch_id: str) -> Iterator[None]:
    """Wait for this host's other upgrades, since all use one account, and end what is left of the
    last one. At the end, end what pg_upgrade has left running."""
    with ExitStack() as held:
        while True:
            with suppress(LockTimeout):
                held.enter_context(lock_branches("upgrade", timeout=LOOK_UP))
                break
            heed_cancel()
            progressed()
        _end_processes(branch_id)
        try:
            yield
        finally:
            _end_processes(branch_id)


@contextmanager
def _served(branch_id: str, account: Account) -> Iterator[Path]:
    """Run Postgres on the data in the staging directory, for ourselves alone."""
    workshop = branch_data.staging_id(branch_id)
    data = data_dir(workshop)
    chosen = {**UNSAFE, "max_prepared_transactions": str(PREPARED)}
    with serving(workshop, sockets_of(branch_id), chosen) as sockets:
        yield sockets
    if is_to_recover(data):
        raise UpgradeFailed("Postgres did not shut down in order")


def _run_pg_upgrade(branch_id: str, account: Account, *, before: int, to: int) -> None:
    """Raises UpgradeRefused with the words of pg_upgrade's own checks."""
    workshop, sockets = branch_data.staging_id(branch_id), sockets_of(branch_id)
    staging = branch_dir(workshop)
    for place in (staging / WORK, sockets):
        place.mkdir(mode=0o700)
        give(place, account)
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
        with launched_as(account, command) as run:
            run["cwd"] = staging / WORK
            run["env"] = {**run["env"], "PGOPTIONS": pinned_options(STATEMENT, before)}
            process = subprocess.Popen(
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                **run,
            )
        limit_compute(sockets.name, process.pid, max_cu=MOST)
        try:
            in_time = wait_while_it_gets_on(
                lambda: process.poll() is not None, _Watch(staging).look, still=STILL
            )
        finally:
            process.kill()
            process.wait()
        if not in_time:
            raise UpgradeFailed(f"pg_upgrade made no progress for {STILL:.0f} s")
        if process.returncode:
            raise UpgradeRefused(f"pg_upgrade refuses it: {_words(output, data_dir(workshop))}")


def _options(branch_id: str, name: str, major: int) -> str:
    """The options of a server that pg_upgrade starts: a configuration of ours alone."""
    lines = {
        "hba_file": settings.STATE_DIR / HBA_FILE,
        "listen_addresses": "",
        "shared_buffers": "64MB",
        # One transaction restores up to a thousand objects.
        "max_locks_per_transaction": "1024",
        "fsync": "off",
        "full_page_writes": "off",
        "autovacuum": "off",
        "max_logical_replication_workers": "0",
        "dynamic_shared_memory_type": "posix",
    }
    if major >= 17:
        lines["event_triggers"] = "off"
    text = "".join(f"{key} = '{value}'\n" for key, value in lines.items())
    workshop = branch_data.staging_id(branch_id)
    return f"-c config_file={branch_data.write_for(workshop, f'upgrade-{name}.conf', text)}"


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


def _words(output: IO[bytes], data: Path) -> str:
    """The last words of pg_upgrade, of its checks' reports, and of the restore that failed."""
    size = output.seek(0, os.SEEK_END)
    output.seek(max(0, size - LONGEST_WORDS))
    said = [output.read()]
    # A link in place of the directory is not followed.
    for _, _, names, opened in os.fwalk(data / "pg_upgrade_output.d", follow_symlinks=False):
        said += [
            read_regular(name, LONGEST_REPORT, within=opened, from_end=True)
            for name in sorted(names)
            if REPORT.fullmatch(name)
        ]
    words = b"\n".join(said).decode(errors="replace")
    # Of a restore, only what it says from its error on.
    if error := re.search(r"pg_restore: error: .*?(?=^pg_restore: |\Z)", words, re.S | re.M):
        words = error[0]
    # The checks and steps that passed are not of interest.
    return " ".join(re.sub(r"(?m)^.*\bok *$|^[-*]+$|^pg_restore: creating .*$", "", words).split())


def _end_earlier(branch_id: str) -> None:
    """End what a dead attempt has left running, unless another upgrade holds the account: that has
    ended it."""
    with suppress(LockTimeout), lock_branches("upgrade", timeout=0):
        _end_processes(branch_id)
    end_workshop(branch_id)


def _end_processes(branch_id: str) -> None:
    """End pg_upgrade and all that it has started. The caller holds the lock of the upgrades. Raises
    StopFailed."""
    staging, sockets = branch_dir(branch_data.staging_id(branch_id)), sockets_of(branch_id)
    end_group(sockets.name)
    end_upgrade_account()
    if staging.exists():
        end_processes_in(staging)
    forget_limits(sockets.name)
    remove_tree(sockets)

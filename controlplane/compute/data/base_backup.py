"""Takes a base backup of a running Postgres: a copy of its data directory from which recovery
reaches one moment. Copies of branches, bases of the history and backups of the service use it."""

import os
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import MappingProxyType

from controlplane.compute.host.accounts import Account
from controlplane.compute.host.cloning import clone_file, clone_tree
from controlplane.compute.host.foreign_files import put_into
from controlplane.compute.host.steps import step
from controlplane.compute.host.tree import open_directory
from controlplane.compute.host.wal import parse_lsn
from controlplane.compute.processes.session import Session, session, values_of

# Belongs to the running process, not to the data: Postgres's documentation of the low-level backup
# says to leave these out.
PROCESS_FILES = ("postmaster.pid", "postmaster.opts", "pg_stat_tmp", "pg_dynshmem")
# Belongs to one branch: a copy has no subscribers, so nothing would ever advance its slots.
BRANCH_FILES = (*PROCESS_FILES, "pg_replslot")
RUNNING_FILES = (
    *BRANCH_FILES,
    *("pg_notify", "pg_serial", "pg_snapshots", "pg_subtrans"),
    *("pg_wal", "pg_wal/archive_status", "pg_wal/summaries", "backup_label"),
)

# How a label begins.
LABEL = re.compile(
    r"START WAL LOCATION: (\S+) \(file ([0-9A-F]{24})\)\nCHECKPOINT LOCATION: (\S+)\n"
)
# Seconds: to begin a backup, a running parent first writes all its dirty pages.
CHECKPOINT_TIMEOUT = 600.0


def back_up(
    parent: Path,
    socket_dir: Path,
    target: Path,
    account: Account,
    *,
    at_end: AbstractContextManager[object] | None = None,
    to_copy: Mapping[str, int] = MappingProxyType({}),
) -> int:
    """Take a low-level base backup of the running `parent`, in a single session as Postgres
    requires: if that Postgres ends meanwhile, the backup fails.

    The copy shows the moment when the backup ends: all that was committed before is in it.
    Returns the position of that moment in the log. `at_end` is entered around that moment.
    `to_copy` is recorded as the copying step's detail.
    Raises TreeUntrusted, psycopg.Error, OSError, and what `at_end` raises.
    """
    with session(socket_dir, bound=CHECKPOINT_TIMEOUT) as connection:
        begin_backup(connection)
        with step("copying", **to_copy):
            clone_tree(parent, target, owner=account, skip=RUNNING_FILES)
            with at_end or nullcontext():
                label, last, end = end_backup(connection)
        start = LABEL.match(label)
        assert start is not None
        with step("copying_log"):
            _copy_log(parent, target, first=start[2], last=last, account=account)
    put_into(target, "backup_label", label, account)
    return parse_lsn(end)


def positions_in(label: str) -> tuple[int, int]:
    """Where redo begins in the log, and the record of the checkpoint."""
    found = LABEL.match(label)
    assert found is not None
    return parse_lsn(found[1]), parse_lsn(found[3])


def begin_backup(connection: Session) -> None:
    """Begin a backup, which ends with the session at the latest. Raises psycopg.Error."""
    with step("writing_checkpoint"):
        # The slot keeps Postgres from recycling the log that we need; it ends with the session.
        connection.execute(
            "SELECT pg_create_physical_replication_slot('perch_' || pg_backend_pid(), true, true)"
        )
        connection.execute("SELECT pg_backup_start('branch', fast => true)")


def end_backup(connection: Session) -> tuple[str, str, str]:
    """End the backup that the session has begun. Returns the content of its label, the name of its
    last segment of the log, and the position of its end. Raises psycopg.Error."""
    label, last, end = values_of(
        connection.execute(
            "SELECT labelfile, pg_walfile_name(lsn), lsn::text"
            " FROM pg_backup_stop(wait_for_archive => false)"
        ).fetchone(),
        *(str, str, str),
    )
    return label, last, end


def _copy_log(parent: Path, target: Path, *, first: str, last: str, account: Account) -> None:
    """Copy the segments of the log that recovering the copy needs, and what tells where its
    timelines began: without that, nothing could be recovered along them later."""
    with (
        open_directory(parent) as data,
        open_directory("pg_wal", dir_fd=data) as log,
        open_directory(target / "pg_wal") as copy,
    ):
        for name in os.listdir(log):
            is_needed = re.fullmatch("[0-9A-F]{24}", name) and first <= name <= last
            if is_needed or re.fullmatch("[0-9A-F]{8}[.]history", name):
                clone_file(name, source=log, target=copy, owner=account)

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
from controlplane.compute.host.foreign_files import put_into, read_regular
from controlplane.compute.host.steps import step
from controlplane.compute.host.tree import (
    SEGMENT_SIZE,
    TreeUntrusted,
    open_directory,
    open_file,
    open_inside,
    start_of,
)
from controlplane.compute.host.wal import parse_lsn, segment_name, segment_start
from controlplane.compute.processes.recovery import read_control
from controlplane.compute.processes.session import NotPostgres, Session, session, values_of

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
CONTROL, CONTROL_BYTES = "pg_control", 8192
MAX_ATTEMPTS = 10
# Bytes of log that are redone within the time that a checkpoint takes.
MAX_REDO_BYTES = 8 << 20
# The first version that can flush a message without a commit.
MESSAGE_FLUSH_SINCE = 170000
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
    """Take a base backup of the running `parent`, in a single session as Postgres requires: if that
    Postgres ends meanwhile, the backup fails.

    The copy shows the moment when the backup ends: all that was committed before is in it.
    Returns the position of that moment in the log. `at_end` is entered around that moment.
    `to_copy` is recorded as the copying step's detail.
    Raises TreeUntrusted, psycopg.Error, OSError, and what `at_end` raises.

    It is a low-level backup with a `backup_label`. After a recent checkpoint it is a copy as a
    crash would leave the data instead, which needs neither a checkpoint nor another segment.
    """
    with session(socket_dir, bound=CHECKPOINT_TIMEOUT) as connection:
        held = _hold_log(connection)
        if _has_recent_checkpoint(connection, held):
            with step("copying", **to_copy):
                _clone_as_crashed(parent, target, account)
                with at_end or nullcontext():
                    flush_log(connection)
                    flushed = flushed_position(connection)
            with step("copying_log"):
                _copy_log_since_checkpoint(parent, target, end=flushed, account=account)
            return flushed
        _start_backup(connection)
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
    _hold_log(connection)
    _start_backup(connection)


def _start_backup(connection: Session) -> None:
    with step("writing_checkpoint"):
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


def flush_log(connection: Session) -> None:
    """Flush the log up to here: also the commits whose clients did not wait for that
    (`synchronous_commit`). Raises psycopg.Error."""
    if connection.info.server_version >= MESSAGE_FLUSH_SINCE:
        connection.execute("SELECT pg_logical_emit_message(false, 'perch_history', '', true)")
    else:
        # A message that belongs to its transaction makes the commit one to be flushed.
        connection.execute("SELECT pg_logical_emit_message(true, 'perch_history', '')")


def flushed_position(connection: Session) -> int:
    """Up to where the log is flushed. Raises psycopg.Error."""
    row = connection.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
    return parse_lsn(values_of(row, str)[0])


def _hold_log(connection: Session) -> str:
    """Keep Postgres from recycling the log from where the latest checkpoint redoes it, until the
    session ends. Returns that position."""
    row = connection.execute(
        "SELECT lsn::text FROM pg_create_physical_replication_slot("
        "'perch_' || pg_backend_pid(), true, true)"
    ).fetchone()
    return str(values_of(row, str)[0])


def _has_recent_checkpoint(connection: Session, held: str) -> bool:
    """Whether redoing the log since the latest checkpoint is faster than writing another one. The
    log is kept from the position `held` on: a checkpoint under way may release log that pg_control
    still names."""
    row = connection.execute(
        "SELECT redo_lsn >= %s::pg_lsn AND pg_current_wal_insert_lsn() - redo_lsn < %s"
        " AND full_page_writes AND current_setting('full_page_writes')::boolean"
        " AND timeline_id = ('x' || left(pg_walfile_name(redo_lsn), 8))::bit(32)::integer"
        " FROM pg_control_checkpoint()",
        [held, MAX_REDO_BYTES],
    ).fetchone()
    return bool(values_of(row, bool)[0])


def _clone_as_crashed(parent: Path, target: Path, account: Account) -> None:
    """Copy the data so that the log since the checkpoint that the copied pg_control names makes all
    of it right. The caller copies that log afterwards.

    pg_control comes first: what Postgres has written since then to any page is whole in that log,
    because it writes the first change of a page after a checkpoint with the page
    (`full_page_writes`). It writes no page before the page's log, so the log of now has it all.
    """
    draft = target.with_name(CONTROL)
    with (
        open_inside(parent, "global") as source,
        open_directory(target.parent) as beside,
    ):
        for _ in range(MAX_ATTEMPTS):
            draft.unlink(missing_ok=True)
            clone_file(CONTROL, source=source, target=beside, owner=account)
            # Postgres may have written it meanwhile, and half of each would be of no use.
            if draft.read_bytes() == read_regular(CONTROL, CONTROL_BYTES, dir_fd=source):
                break
        else:
            raise TreeUntrusted(f'"{CONTROL}" changes all the time')
    try:
        clone_tree(parent, target, owner=account, skip=(*RUNNING_FILES, f"global/{CONTROL}"))
        draft.rename(target / "global" / CONTROL)
    finally:
        draft.unlink(missing_ok=True)


def _copy_log_since_checkpoint(parent: Path, target: Path, *, end: int, account: Account) -> None:
    """Copy the log up to `end`. Raises NotPostgres if Postgres has told no such position."""
    control = read_control(target)
    if end <= control.redo:
        raise NotPostgres("a position in the log that is before the checkpoint")
    first, last = (segment_name(control.timeline, lsn) for lsn in (control.redo, end - 1))
    _copy_log(parent, target, first=first, last=last, account=account)
    with open_directory(target / "pg_wal") as copy:
        # Without one of them, recovery would end early and say nothing.
        for start in range(segment_start(control.redo), end, SEGMENT_SIZE):
            os.stat(segment_name(control.timeline, start), dir_fd=copy)
        # Postgres goes on writing to the last one.
        with open_file(last, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=copy) as segment:
            os.ftruncate(segment, end - start_of(last))
            os.ftruncate(segment, SEGMENT_SIZE)
            os.fsync(segment)


def _copy_log(parent: Path, target: Path, *, first: str, last: str, account: Account) -> None:
    """Copy the segments of the log that recovering the copy needs, and what tells where its
    timelines began: without that, nothing could be recovered along them later."""
    with (
        open_inside(parent, "pg_wal") as log,
        open_directory(target / "pg_wal") as copy,
    ):
        for name in os.listdir(log):
            is_needed = re.fullmatch("[0-9A-F]{24}", name) and first <= name <= last
            if is_needed or re.fullmatch("[0-9A-F]{8}[.]history", name):
                clone_file(name, source=log, target=copy, owner=account)

"""Copies a branch's write-ahead log into its open chain.

A physical replication slot keeps the log of a running compute until it is copied. Only log that
Postgres has flushed is copied: a crash never changes that. The log of a stopped compute is copied
up to its shutdown checkpoint. If the slot or a segment is gone, the chain ends: what follows would
not continue it.
"""

import logging
import os
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from controlplane import clock, durable
from controlplane.compute.data.base_backup import flush_log, flushed_position
from controlplane.compute.data.branch_data import data_dir
from controlplane.compute.host.accounts import account_of, own_account
from controlplane.compute.host.binaries import major_of
from controlplane.compute.host.cloning import copy_beginning
from controlplane.compute.host.foreign_files import read_regular
from controlplane.compute.host.space import require_reserve
from controlplane.compute.host.tree import (
    REGULAR,
    SEGMENT_SIZE,
    open_directory,
    open_file,
    open_inside,
    start_of,
)
from controlplane.compute.host.wal import (
    MAX_TIMELINE_BYTES,
    PAGE,
    bytes_at,
    is_header_of,
    lsn_text,
    record_at,
    segment_header,
    segment_name,
    segment_start,
    timeline_file,
    write_sum,
)
from controlplane.compute.processes.recovery import read_control
from controlplane.compute.processes.session import Session, session
from controlplane.compute.settings.configuration import HISTORY_SLOT
from controlplane.compute.slots import drop_slot, has_slot
from controlplane.history.local.chain import (
    LOG_LOST,
    OTHER_LOG,
    Chain,
    history_dir,
)
from controlplane.history.local.commits import end_of_log, index_commits

log = logging.getLogger(__name__)

# Bytes of log that a round copies of one running compute, so that the others' turn comes: half of
# what the slot holds.
MAX_PULL = 64 * SEGMENT_SIZE


class LogLost(Exception):
    """The log does not continue the chain; the message is the reason for its end."""


@dataclass(frozen=True)
class Flushed:
    """How far the log of a branch was flushed at the last look. All that was committed until `at`
    is before `lsn`."""

    chain: int
    lsn: int
    at: datetime


# By branch, as this process has seen it: the copy off the host reads the log up to there.
flushed_logs: dict[str, Flushed] = {}


def pull_running(chain: Chain, branch_id: str, sockets: Path, *, whole: bool = False) -> bool:
    """Copy the finished segments of the branch's running compute, at most MAX_PULL of them; with
    `whole` all, and the flushed beginning of the last one too. Returns whether there were any.

    The caller holds the branch's history lock. If the log does not continue the chain, the chain is
    ended. Raises psycopg.Error, NotEnoughSpace, OSError.
    """
    with session(sockets) as connection:
        at = clock.now()
        if whole:
            flush_log(connection)
        flushed = flushed_position(connection)
        try:
            _hold_slot(connection)
            most = segment_start(chain.copied) + MAX_PULL
            until = flushed if whole else min(segment_start(flushed), most)
            with open_inside(data_dir(branch_id), "pg_wal") as source:
                complete_at = at if whole else None
                # Postgres soon overwrites a recycled segment, which is slow if the disk must first
                # copy each of its blocks.
                has_copied = _copy(chain, source, until=until, at=complete_at, share=False)
        except LogLost as lost:
            chain.end(str(lost), at)
            return False
        flushed_logs[branch_id] = Flushed(chain.number, flushed, at)
        if has_copied:
            copied = lsn_text(segment_start(chain.copied))
            connection.execute(
                "SELECT pg_replication_slot_advance(slot_name, %s) FROM pg_replication_slots"
                " WHERE slot_name = %s AND restart_lsn < %s",
                [copied, HISTORY_SLOT, copied],
            )
    return has_copied


def pull_stopped(chain: Chain, branch_id: str, *, end: int | None = None) -> bool:
    """Copy the log of a branch whose compute is stopped, up to its `end`, by default that which
    `end_of_stopped_log` finds. Returns whether there was any.

    The caller holds the branch's history lock. If the log does not continue the chain, the chain is
    ended. Raises LogUnreadable, NotEnoughSpace, OSError.
    """
    at = clock.now()
    with open_inside(data_dir(branch_id), "pg_wal") as source:
        until = end or end_of_stopped_log(data_dir(branch_id), source, since=chain.copied)
        if until is None:
            return False
        flushed_logs[branch_id] = Flushed(chain.number, until, at)
        try:
            return _copy(chain, source, until=until, at=at, share=True)
        except LogLost as lost:
            chain.end(str(lost), at)
            return False


def end_of_stopped_log(data: Path, log: int, *, since: int) -> int | None:
    """Where the log in the open directory of a stopped branch ends: after its shutdown checkpoint,
    or after its last valid record behind `since` if the compute did not shut down in order, as the
    next start recovers to there. None if the log is lost. Raises LogUnreadable, OSError."""
    control = read_control(data)
    if control.is_shut_down:
        last = record_at(log, control.timeline, control.checkpoint)
        return last.end if last else None
    return end_of_log(log, control.timeline, since, major_of(data), account_of(data.parent))


def hold_log(branch_id: str, sockets: Path) -> None:
    """Make the slot of a compute that has just started, if the branch has a history and the slot is
    missing: Postgres could remove log before the first look at it. Drop the slot if the branch has
    no history any more. Raises psycopg.Error."""
    has_history = history_dir(branch_id).exists()
    if has_slot(branch_id, HISTORY_SLOT) == has_history:
        return
    if not has_history:
        drop_slot(branch_id, sockets, HISTORY_SLOT)
        return
    with session(sockets) as connection:
        _hold_slot(connection)


def read_flushed(chain: Chain, branch_id: str, start: int, stop: int) -> bytes:
    """The flushed log of the branch's data from `start` to `stop`, which lie in one segment and not
    before `chain.copied`.

    The caller holds the branch's history lock. Raises LogLost if the log does not continue the
    chain, OSError.
    """
    name = segment_name(chain.timeline, start)
    with open_inside(data_dir(branch_id), "pg_wal") as source, open_directory(chain.log) as target:
        _check_continues(chain, source, target)
        _check(chain, source, name)
        found = bytes_at(source, chain.timeline, start, stop - start)
        # It may have been recycled while it was read, if no slot held it.
        _check(chain, source, name)
    if len(found) < stop - start:
        raise LogLost(LOG_LOST)
    return found


def read_timeline(chain: Chain) -> str:
    """The file in the chain that tells where its timeline began; "" for the first timeline."""
    with open_directory(chain.log) as log:
        return read_regular(timeline_file(chain.timeline), MAX_TIMELINE_BYTES, dir_fd=log).decode()


def _hold_slot(connection: Session) -> None:
    """Make the slot if it is missing, or anew if Postgres has given it up. A role with REPLICATION
    can drop it, and Postgres gives it up when it holds more log than is allowed; `_copy` finds out
    whether log was removed meanwhile."""
    row = connection.execute(
        "SELECT slot_type, wal_status FROM pg_replication_slots WHERE slot_name = %s",
        [HISTORY_SLOT],
    ).fetchone()
    if row is not None and (row[0] != "physical" or row[1] == "lost"):
        connection.execute("SELECT pg_drop_replication_slot(%s)", [HISTORY_SLOT])
        row = None
    if row is None:
        connection.execute("SELECT pg_create_physical_replication_slot(%s, true)", [HISTORY_SLOT])


def _copy(chain: Chain, source: int, *, until: int, at: datetime | None, share: bool) -> bool:
    """Copy the log from `chain.copied` to `until`. It has all commits until `at`; None if more
    commits may follow that are not copied yet. With `share`, the copies share their blocks if the
    disk allows it. Raises LogLost if it does not continue the chain."""
    if until <= chain.copied:
        return False
    first = segment_start(chain.copied)
    with open_directory(chain.log) as target:
        _check_continues(chain, source, target)
        for start in range(first, until, SEGMENT_SIZE):
            require_reserve(target)
            name = segment_name(chain.timeline, start)
            _check(chain, source, name)
            draft = f".{name}"
            with suppress(FileNotFoundError):
                os.unlink(draft, dir_fd=target)
            try:
                copy_beginning(
                    name,
                    source=source,
                    target=target,
                    draft=draft,
                    size=min(SEGMENT_SIZE, until - start),
                    owner=own_account(),
                    share=share,
                )
            except FileNotFoundError as error:
                raise LogLost(LOG_LOST) from error
            # It may have been recycled while it was copied, if no slot held it.
            _check(chain, source, name)
            os.rename(draft, name, src_dir_fd=target, dst_dir_fd=target)
            write_sum(chain.log / name)
        _copy_timeline(chain, source)
    before, chain.copied = chain.copied, until
    latest = index_commits(chain, before)
    durable.sync(chain.log)
    if at is None and clock.is_plausible(latest):
        at = max(chain.copied_at, latest)
    chain.copied_at = at or chain.copied_at
    chain.write()
    return True


def _copy_timeline(chain: Chain, source: int) -> None:
    """Copy the file that tells where the chain's timeline began, which the first has not: Postgres
    recovers along no timeline that it does not know."""
    name = timeline_file(chain.timeline)
    content = read_regular(name, MAX_TIMELINE_BYTES, dir_fd=source)
    if content and read_regular(chain.log / name, MAX_TIMELINE_BYTES) != content:
        durable.write(chain.log / name, content, 0o600)


def _check_continues(chain: Chain, source: int, target: int) -> None:
    """Raise LogLost if the bytes before `chain.copied` differ: the data directory is another one
    than before, with the same positions."""
    name = segment_name(chain.timeline, chain.copied)
    count = min(chain.copied % SEGMENT_SIZE, PAGE)
    parts = []
    for directory in (source, target):
        with suppress(FileNotFoundError), open_file(name, REGULAR, dir_fd=directory) as file:
            parts.append(os.pread(file, count, chain.copied % SEGMENT_SIZE - count))
    if len(set(parts)) > 1:
        raise LogLost(OTHER_LOG)


def _check(chain: Chain, source: int, name: str) -> None:
    header = segment_header(source, name)
    if header is None or header.address != start_of(name):
        raise LogLost(LOG_LOST)
    if not is_header_of(source, header, chain.timeline, chain.system_id):
        raise LogLost(OTHER_LOG)

"""Follows a compute that runs on another host (`streaming`): writes its log beside the copy of its
data, has a standby replay it, and makes the copy a cluster that was shut down in order.

The standby reads the log from its own directory and connects nowhere. It is never promoted, so the
branch keeps its timeline, and its history goes on. Once it has replayed the last checkpoint of the
compute, which has stopped, and has stopped too, its files are those of the compute. With the
compute's `pg_control` they are a stopped cluster, as a copy of a stopped compute is: the next start
recovers nothing, and unlogged tables and slots, which the log does not have, are sent as files.
"""

import os
import re
import stat
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import psycopg

from controlplane.compute.data.branch_data import branch_dir, data_dir
from controlplane.compute.host.accounts import Account, set_owner
from controlplane.compute.host.foreign_files import remove_from
from controlplane.compute.host.patience import patience, remaining, report_progress
from controlplane.compute.host.space import require_reserve
from controlplane.compute.host.tree import SEGMENT, SEGMENT_SIZE
from controlplane.compute.host.wal import parse_lsn
from controlplane.compute.processes.process import last_errors, running_postmaster
from controlplane.compute.processes.recovery import STANDBY, read_control
from controlplane.compute.processes.session import session, values_of
from controlplane.compute.workshop import NAME, serving, sockets_of
from controlplane.fleet.messages import Link, LinkBroken
from controlplane.fleet.moving.streaming import NEEDED_BY_A_STANDBY

# The standby looks for more log this often, never removes any, and lets nothing delay its replay.
SETTINGS = {
    "hot_standby": "on",
    "wal_retrieve_retry_interval": "10ms",
    "wal_keep_size": "2000GB",
    "max_standby_archive_delay": "0",
    "max_standby_streaming_delay": "0",
    "autovacuum": "off",
}
_NUMBER = re.compile("[0-9]{1,7}")
_SEGMENT_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = ".new"
# Seconds without progress that a standby gets to replay what it has, while everybody waits for it.
REPLAY_TIMEOUT = 30.0
# Seconds between two looks at how far the standby is, while everybody waits for it.
_POLL_INTERVAL = 0.005


class NotFollowed(Exception):
    """The standby has ended too early, or not where the compute has; the message says which."""


class Follower:
    """Follows the compute of one branch. The caller holds the branch's lock until `close`."""

    def __init__(self, branch_id: str, staging: Path, account: Account) -> None:
        self._branch_id = branch_id
        self._account = account
        self._running = ExitStack()
        self._log = os.open(
            staging / "data" / "pg_wal", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        )

    def close(self) -> None:
        """End the standby."""
        os.close(self._log)
        self._running.close()

    def receive_log(self, link: Link, name: str, at: int, length: int) -> None:
        """Receive a part of a segment of the log, durably. Raises LinkBroken, NotEnoughSpace,
        OSError."""
        if not SEGMENT.fullmatch(name) or not 0 <= at <= at + length <= SEGMENT_SIZE:
            raise LinkBroken("the other host has sent log outside of a segment")
        file = self._opened(name)
        try:
            found = os.fstat(file)
            if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
                raise LinkBroken(f"the log's segment {name} is another file here")
            link.receive_into(file, at, length)
            os.fdatasync(file)
        finally:
            os.close(file)

    def start(self, needed: Mapping[str, str]) -> None:
        """Start the standby, with at least the settings `needed` of the compute. Raises LinkBroken,
        process.StartFailed, OSError."""
        if not needed.keys() <= set(NEEDED_BY_A_STANDBY) or not all(
            _NUMBER.fullmatch(value) for value in needed.values()
        ):
            raise LinkBroken("the other host has sent settings that a standby does not need")
        sockets = sockets_of(self._branch_id)
        settings = {**SETTINGS, **needed}
        self._running.enter_context(serving(self._branch_id, sockets, settings, is_standby=True))

    def replayed(self) -> int:
        """How far the standby has replayed the log; 0 if it does not answer yet: it first waits
        until no transaction of the compute has too many subtransactions. Raises NotFollowed if it
        has ended."""
        try:
            with session(sockets_of(self._branch_id)) as connection:
                row = connection.execute("SELECT pg_last_wal_replay_lsn()::text").fetchone()
        except psycopg.OperationalError:
            self._require_standby()
            return 0
        return parse_lsn(values_of(row, str)[0])

    def write_checkpoint(self) -> None:
        """Write what the standby has in memory, so that its stop has little left to write. Raises
        NotFollowed, psycopg.Error."""
        if not self.replayed():
            return
        try:
            with session(sockets_of(self._branch_id), bound=600) as connection:
                connection.execute("CHECKPOINT")
        except psycopg.OperationalError:
            self._require_standby()
            raise

    def finish(self, checkpoint: int, end: int) -> None:
        """Stop the standby once it has replayed the compute's last checkpoint, which lies there in
        the log. Raises NotFollowed, OutOfPatience."""
        with patience(REPLAY_TIMEOUT):
            before = 0
            while (replayed := self.replayed()) < end:
                if replayed > before:
                    before = replayed
                    report_progress()
                remaining()
                time.sleep(_POLL_INTERVAL)
        self._running.close()
        data = data_dir(self._branch_id)
        if read_control(data).checkpoint != checkpoint:
            raise NotFollowed("the copy of the running compute did not end where the compute did")
        remove_from(data, STANDBY, "backup_label.old", "backup_manifest")

    def _opened(self, name: str) -> int:
        """Open the segment. A new one appears under its name as a whole and owned by the standby,
        which would end with a panic if it found one that it may not read."""
        try:
            return os.open(name, _SEGMENT_FLAGS, dir_fd=self._log)
        except FileNotFoundError:
            flags = _SEGMENT_FLAGS | os.O_CREAT | os.O_EXCL
            file = os.open(name + _NEW, flags, 0o600, dir_fd=self._log)
        try:
            require_reserve(file)
            os.ftruncate(file, SEGMENT_SIZE)
            set_owner(file, self._account)
            os.rename(name + _NEW, name, src_dir_fd=self._log, dst_dir_fd=self._log)
            os.fsync(self._log)
        except BaseException:
            os.close(file)
            raise
        return file

    def _require_standby(self) -> None:
        if running_postmaster(data_dir(self._branch_id)) is None:
            words = last_errors(branch_dir(self._branch_id) / f"{NAME}.log")
            raise NotFollowed(f"the standby on the other host has ended: {words}")

"""Sends the write-ahead log of a running compute to another host, while its files are copied and
until it has stopped. So the copy there follows it, and only the last bytes are left for the time in
which nobody can write."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from controlplane.compute.catalog.reading import end_clients
from controlplane.compute.data.base_backup import (
    CHECKPOINT_TIMEOUT,
    begin_backup,
    end_backup,
    flushed_position,
)
from controlplane.compute.data.branch_data import data_dir
from controlplane.compute.host.steps import add_bytes
from controlplane.compute.host.tree import REGULAR, SEGMENT_SIZE, open_file, open_inside, start_of
from controlplane.compute.host.wal import (
    lsn_text,
    parse_lsn,
    record_at,
    segment_header,
    segment_name,
    segment_start,
)
from controlplane.compute.processes.recovery import is_to_recover, read_control
from controlplane.compute.processes.session import Session, session, values_of
from controlplane.fleet.messages import CHUNK_BYTES, Link

# Seconds between two looks at the log while files are copied.
LOOK_INTERVAL = 0.25
# A standby needs at least as much of these as the Postgres that wrote its log.
NEEDED_BY_A_STANDBY = (
    "max_connections",
    "max_locks_per_transaction",
    "max_prepared_transactions",
    "max_wal_senders",
    "max_worker_processes",
)


class LogCutOff(Exception):
    """The log of the compute cannot be followed to its end; the message says why. The compute
    itself is whole."""


@contextmanager
def streaming(link: Link, branch_id: str, sockets: Path) -> "Iterator[Stream]":
    """Follow the log of the branch's compute, which listens in `sockets`. Begins a backup, which
    the caller ends. Raises psycopg.Error, OSError."""
    with (
        session(sockets, bound=CHECKPOINT_TIMEOUT) as connection,
        open_inside(data_dir(branch_id), "pg_wal") as log,
    ):
        begin_backup(connection)
        yield Stream(link, branch_id, connection, log)


class Stream:
    def __init__(self, link: Link, branch_id: str, connection: Session, log: int) -> None:
        self.branch_id = branch_id
        self._link = link
        self._connection = connection
        self._log = log
        self._looked_at = 0.0
        # Slots hold the log from here on: that of this session, and others that move as well.
        timeline, first = values_of(
            connection.execute(
                "SELECT (SELECT timeline_id FROM pg_control_checkpoint()),"
                " (SELECT min(restart_lsn)::text FROM pg_replication_slots"
                " WHERE wal_status <> 'lost')"
            ).fetchone(),
            *(int, str),
        )
        self._timeline = timeline
        # All log before this position is on its way.
        self.sent = segment_start(parse_lsn(first))

    def end_backup(self) -> str:
        """End the backup. Returns the content of its label. Raises psycopg.Error."""
        label, _, _ = end_backup(self._connection)
        return label

    def settings(self) -> dict[str, str]:
        """What a standby needs to follow this Postgres. Raises psycopg.Error."""
        rows = self._connection.execute(
            "SELECT name, setting FROM pg_settings WHERE name = ANY(%s)",
            [list(NEEDED_BY_A_STANDBY)],
        ).fetchall()
        return {str(name): str(setting) for name, setting in rows}

    def has_subscriptions(self) -> bool:
        """Whether the compute subscribes to others. Raises psycopg.Error."""
        found = self._connection.execute("SELECT FROM pg_subscription WHERE subenabled LIMIT 1")
        return found.fetchone() is not None

    def write_checkpoint(self) -> None:
        """Write what is in memory, so that the stop has little left to write. Raises
        psycopg.Error."""
        self._connection.execute("CHECKPOINT")

    def end_clients(self) -> None:
        """End the sessions of all clients. Raises psycopg.Error."""
        end_clients(self._connection)

    def look(self) -> None:
        """Send new log, unless that was done a moment ago. Raises what `send_new` raises."""
        if time.monotonic() - self._looked_at >= LOOK_INTERVAL:
            self.send_new()

    def send_new(self) -> int:
        """Send what the compute has flushed since. Returns the position of its end. Raises
        psycopg.Error, LinkBroken, LogCutOff, OSError."""
        until = flushed_position(self._connection)
        before = segment_start(self.sent)
        self._send(until)
        if segment_start(until) > before:
            self._connection.execute(
                "SELECT pg_replication_slot_advance('perch_' || pg_backend_pid(), %s)",
                [lsn_text(segment_start(until))],
            )
        self._looked_at = time.monotonic()
        return until

    def send_rest(self) -> tuple[int, int]:
        """Send the rest of the log of the compute, which has stopped. Returns where its last
        checkpoint begins and ends. Raises LinkBroken, LogCutOff, OSError."""
        data = data_dir(self.branch_id)
        control = read_control(data)
        if is_to_recover(data) or control.timeline != self._timeline:
            raise LogCutOff("the compute did not shut down in order")
        last = record_at(self._log, self._timeline, control.checkpoint)
        if last is None:
            raise LogCutOff("the log of the compute lacks its last checkpoint")
        self._send(last.end)
        return last.lsn, last.end

    def _send(self, until: int) -> None:
        while self.sent < until:
            start = self.sent
            end = min(until, segment_start(start) + SEGMENT_SIZE)
            self._send_part(segment_name(self._timeline, start), start % SEGMENT_SIZE, end - start)
            self.sent = end

    def _send_part(self, name: str, at: int, length: int) -> None:
        self._check(name)
        self._link.send(log=self.branch_id, segment=name, at=at, length=length)
        with open_file(name, REGULAR, dir_fd=self._log) as file:
            for position in range(at, at + length, CHUNK_BYTES):
                wanted = min(CHUNK_BYTES, at + length - position)
                piece = os.pread(file, wanted, position)
                if len(piece) < wanted:
                    raise LogCutOff(f"the log's segment {name} is too short")
                self._link.send_bytes(piece)
                add_bytes(len(piece))
        # It may have been recycled while it was read.
        self._check(name)

    def _check(self, name: str) -> None:
        header = segment_header(self._log, name)
        if header is None or header.address != start_of(name):
            raise LogCutOff(f"the log's segment {name} is gone")

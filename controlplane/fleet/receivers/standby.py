"""Lets the commits of a running compute wait for a receiver of its log on another host.

The receiver is a `pg_receivewal --synchronous` (`receivewal`). Commits wait for it from the
moment at which `synchronous_standby_names` names it until it is taken out again. A lone commit that
waits for a receiver which is gone would wait for ever, whatever its `statement_timeout`.
"""

import os
import re
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import LiteralString

from psycopg import sql

from controlplane.compute.data.branch_data import branch_dir, data_dir, write_branch_file
from controlplane.compute.host.filesystem import lock_branches, standby_lock
from controlplane.compute.host.patience import check_cancelled, readable
from controlplane.compute.host.wal import parse_lsn, segment_start
from controlplane.compute.processes.process import reload_postgres
from controlplane.compute.processes.session import Session, session, values_of
from controlplane.compute.settings.configuration import HISTORY_SLOT, REGION_SLOT
from controlplane.compute.slots import drop_slot

CONFIGURATION = "postgresql.conf"
_SETTING = "synchronous_standby_names"
_NAMED = re.compile(_SETTING + """ = '"(lr-[a-z0-9]+)"'\n""")
_POLL_INTERVAL = 0.05  # seconds
# Seconds for a statement of a session that watches the receiver.
STATEMENT_TIMEOUT = 2.0
LOCK_TIMEOUT = 10.0  # seconds


class NotAttached(Exception):
    """Commits do not wait for another host; the message says why."""


def configuration_lock(branch_id: str) -> AbstractContextManager[None]:
    """Hold the branch's configuration file, to read and replace it. For moments only: the process
    that takes out a lost receiver waits for it, and may be another one than the worker. Raises
    LockTimeout."""
    return lock_branches(standby_lock(branch_id), timeout=LOCK_TIMEOUT)


def standby_line(branch_id: str) -> str:
    """The line of the branch's configuration file that names the receiver; "" without one."""
    try:
        text = (branch_dir(branch_id) / CONFIGURATION).read_text()
    except FileNotFoundError:
        return ""
    return next((line + "\n" for line in text.split("\n") if line.startswith(_SETTING)), "")


def receiver_named(branch_id: str) -> str | None:
    """The receiver that the commits of the branch's compute wait for."""
    found = _NAMED.fullmatch(standby_line(branch_id))
    return found[1] if found else None


def name_standby(branch_id: str, receiver_id: str | None, *, instead_of: str | None = None) -> None:
    """Let commits wait for the receiver from now on; with None, let those go on that wait, and let
    no others wait. With `instead_of`, do this only if they wait for that one. Postgres applies it
    within a moment. Raises LockTimeout, OSError."""
    with configuration_lock(branch_id):
        present, wanted = standby_line(branch_id), _line(receiver_id)
        if present == wanted or (instead_of is not None and present != _line(instead_of)):
            return
        text = (branch_dir(branch_id) / CONFIGURATION).read_text().replace(present, "")
        write_branch_file(branch_id, CONFIGURATION, text + wanted)
        reload_postgres(data_dir(branch_id))


def _line(receiver_id: str | None) -> str:
    return f"{_SETTING} = '\"{receiver_id}\"'\n" if receiver_id else ""


def begin_to_hold_log(branch_id: str, sockets: Path) -> int:
    """Make the slot for a new receiver, in place of any earlier one's. Returns the position from
    which on a receiver gets the log: the beginning of a segment, before which the branch's chain
    has all. The caller holds the branch's history lock. Raises psycopg.Error, NotAttached."""
    drop_slot(branch_id, sockets, REGION_SLOT)
    with session(sockets) as connection:
        connection.execute(
            "SELECT pg_copy_physical_replication_slot(slot_name, %s) FROM pg_replication_slots"
            " WHERE slot_name = %s",
            [REGION_SLOT, HISTORY_SLOT],
        )
        row = connection.execute(
            "SELECT restart_lsn::text FROM pg_replication_slots WHERE slot_name = %s", [REGION_SLOT]
        ).fetchone()
    if row is None:
        raise NotAttached("its compute holds no log for its history yet")
    (restart,) = values_of(row, str)
    return segment_start(parse_lsn(restart))


def attach(branch_id: str, sockets: Path, receiver_id: str, *, timeout: float) -> int:
    """Wait until the receiver has all that was committed so far, then let commits wait for it.
    Returns the descriptor of its walsender (`walsender_descriptor`). Raises NotAttached,
    psycopg.Error, OSError."""
    deadline = time.monotonic() + timeout
    with session(sockets, bound=STATEMENT_TIMEOUT) as connection:
        row = connection.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
        (flushed,) = values_of(row, str)
        _wait(connection, receiver_id, "flush_lsn >= %s::pg_lsn", [flushed], deadline)
        name_standby(branch_id, receiver_id)
        pid = _wait(connection, receiver_id, "sync_state = 'sync'", [], deadline)
    return os.pidfd_open(pid)


def walsender_descriptor(sockets: Path, receiver_id: str) -> int | None:
    """The descriptor of the walsender of a receiver for which commits wait, which becomes readable
    when its connection ends; None if there is no such receiver. Raises psycopg.Error, OSError."""
    with session(sockets, bound=STATEMENT_TIMEOUT) as connection:
        pid = _find(connection, receiver_id, "sync_state = 'sync'", [])
    return None if pid is None else os.pidfd_open(pid)


def has_ended(walsender: int) -> bool:
    """Whether the process with this descriptor has ended."""
    return bool(readable(walsender, timeout=0))


def _wait(
    connection: Session,
    receiver_id: str,
    condition: LiteralString,
    values: list[str],
    deadline: float,
) -> int:
    while (pid := _find(connection, receiver_id, condition, values)) is None:
        check_cancelled()
        if time.monotonic() > deadline:
            raise NotAttached("the second host has not received the log in time")
        time.sleep(_POLL_INTERVAL)
    return pid


def _find(
    connection: Session, receiver_id: str, condition: LiteralString, values: list[str]
) -> int | None:
    query = sql.SQL(
        "SELECT pid FROM pg_stat_replication"
        " WHERE application_name = %s AND usename = current_user AND state = 'streaming' AND {}"
    ).format(sql.SQL(condition))
    row = connection.execute(query, [receiver_id, *values]).fetchone()
    if row is None:
        return None
    (pid,) = values_of(row, int)
    return int(pid)

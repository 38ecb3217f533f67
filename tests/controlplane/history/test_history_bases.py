"""Base copies of a branch's history: when they are taken, what they take, and which one a moment is
recovered from. This process does what the worker does."""

import os
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from unittest import mock

import psycopg
import pytest

from controlplane.compute.data import branch_data
from controlplane.compute.processes.session import socket_dir
from controlplane.compute.settings.configuration import PLATFORM_ROLE
from controlplane.history import keeping
from controlplane.history.local.bases import (
    LOG_BYTES_PER_BASE,
    base_of_running,
    base_of_stopped,
    begin_with_template,
)
from controlplane.history.local.chain import Chain, chains_of, holding_history, open_chain
from controlplane.history.local.pulling import hold_log, pull_stopped
from tests.controlplane.compute.test_copies import CHILD, MIB, PARENT, running, state_dir
from tests.selection import first_of
from tests.support.filesystems import free_bytes, mounted
from tests.support.place import Connection
from tests.support.processes import postmaster_in
from tests.support.recorded import BULK, Recorder
from tests.support.recovered import found, rows_at
from tests.support.stack import new_directory
from tests.support.waiting import wait_for

__all__ = ["state_dir"]

UseState = Callable[[Path], None]
RETENTION = 3600  # seconds
DISK = 1500 * MIB


@contextmanager
def writing(recorder: Recorder) -> Iterator[Connection]:
    """A session in the branch's Postgres, which is started before and stopped afterwards."""
    with running(PARENT) as connection:
        recorder.begin(connection)
        yield connection


def recorder() -> Recorder:
    """A recorder of a new branch with history."""
    branch_data.create_from_template(PARENT, begin_history=begin_with_template)
    return Recorder(partial(connect, PARENT))


def connect(branch_id: str) -> Connection:
    sockets = socket_dir(branch_id.replace("br-", "ep-"))
    return psycopg.connect(
        host=str(sockets), user=PLATFORM_ROLE, dbname="postgres", autocommit=True
    )


def kept() -> Chain:
    """The branch's chain after the worker's round, which publishes nothing here."""
    with mock.patch.object(keeping, "publish"):
        keeping.keep(PARENT, RETENTION)
    chain = open_chain(PARENT)
    assert chain is not None
    return chain


def take_first_base(end: int | None) -> None:
    """Begin the history of the child, while its data is in the staging directory."""
    place = branch_data.staging_id(CHILD)
    pull_stopped(base_of_stopped(place, end=end), place, end=end)


def write_log(connection: Connection, size: int) -> None:
    for _ in range(0, size, BULK):
        connection.execute(f"SELECT pg_logical_emit_message(true, 'test', repeat('x', {BULK}))")


def connection_ended(connection: Connection) -> bool:
    try:
        connection.execute("SELECT 1")
    except psycopg.OperationalError:
        return True
    return False


def synced(place: Path) -> int:
    """The disk's free bytes, once everything is written."""
    subprocess.run(["sync", "--file-system", place], check=True)
    return free_bytes(place)


@pytest.mark.thorough
def test_a_base_is_taken_at_a_suspend_after_enough_log_where_blocks_are_shared(
    state_dir: UseState,
) -> None:
    with mounted("xfs", size=DISK) as place:
        state_dir(place)
        written = recorder()
        with writing(written) as connection:
            written.write(connection, 3)
        assert len(kept().bases()) == 1
        with writing(written) as connection:
            # From now on, Postgres keeps its log until it is copied.
            kept()
            connection.execute(
                "CREATE TABLE large AS SELECT repeat(md5(i::text), 30) AS words"
                " FROM generate_series(1, 200_000) i"
            )
            write_log(connection, LOG_BYTES_PER_BASE)
            written.write(connection, 3)
        free = synced(place)
        _, base = kept().bases()
        took = free - synced(place)
        print(f"the base and its log took {took / MIB:.2f} MiB, and share {base.size / MIB:.0f}")
        assert base.size > 200 * MIB
        assert took < DISK / 1000
        assert len(kept().bases()) == 2
        with writing(written) as connection:
            written.write(connection, 3)
        assert len(kept().bases()) == 2
        with holding_history(PARENT):
            last = found(PARENT, written.held[-1].since)
        assert (last.base.end, last.bytes_to_replay < LOG_BYTES_PER_BASE) == (base.end, True)
        for held in (written.held[2], written.held[-1]):
            for moment in (held.since, held.last_lsn):
                assert rows_at(PARENT, moment, dbname="postgres") == held.rows


@pytest.mark.thorough
def test_a_crashed_compute_has_its_log_copied_and_a_base(state_dir: UseState) -> None:
    with mounted("xfs", size=DISK) as place:
        state_dir(place)
        written = recorder()
        with writing(written) as connection:
            kept()
            write_log(connection, LOG_BYTES_PER_BASE)
            written.write(connection, 3)
            postmaster_in(branch_data.data_dir(PARENT)).kill()
            wait_for(lambda: connection_ended(connection), "the end of the compute")
        chain = kept()
        assert chain.copied >= written.held[-1].last_lsn
        assert len(chain.bases()) == 2
        with writing(written) as connection:
            written.write(connection, 3)
        assert len(kept().bases()) == 2
        for held in written.held[-5:]:
            assert rows_at(PARENT, held.last_lsn, dbname="postgres") == held.rows


@pytest.mark.parametrize("parent", first_of(["running", "stopped", "crashed"]))
def test_a_childs_history_begins_with_its_copy(state_dir: UseState, parent: str) -> None:
    with new_directory() as place:
        state_dir(place)
        written = recorder()
        with writing(written) as connection, ExitStack() as beside:
            written.write(connection, 3)
            if parent == "running":
                beside.enter_context(written.in_background())
                branch_data.create_from_parent(CHILD, PARENT, begin_history=take_first_base)
            if parent == "crashed":
                postmaster_in(branch_data.data_dir(PARENT)).kill()
                wait_for(lambda: connection_ended(connection), "the end of the compute")
        if parent != "running":
            branch_data.create_from_parent(CHILD, PARENT, begin_history=take_first_base)
        child = Recorder(partial(connect, CHILD), seed=2)
        with running(CHILD) as connection:
            hold_log(CHILD, socket_dir(CHILD.replace("br-", "ep-")))
            child.begin(connection)
            child.write(connection, 3)
        with running(CHILD) as connection:
            child.write(connection, 3)
            postmaster_in(branch_data.data_dir(CHILD)).kill()
            wait_for(lambda: connection_ended(connection), "the end of the compute")
        with running(CHILD) as connection:
            child.write(connection, 3)
        for held in child.held:
            for moment in (held.since, held.last_lsn):
                assert rows_at(CHILD, moment, dbname="postgres") == held.rows
        (chain,) = chains_of(CHILD)
        assert chain.ended_at is None


@pytest.mark.thorough
def test_a_moment_during_a_base_copy_is_recovered_from_the_base_before(state_dir: UseState) -> None:
    """A base shows the moment at its end, although its log begins earlier."""
    with mounted("ext4", size=2 * DISK) as place:
        state_dir(place)
        written = recorder()
        with writing(written) as connection, ThreadPoolExecutor() as beside:
            written.write(connection, 3)
            # The copy takes a while.
            large = branch_data.data_dir(PARENT) / "base" / "1" / "1000000"
            large.touch()
            os.truncate(large, 512 * MIB)
            os.chown(large, large.parent.stat().st_uid, large.parent.stat().st_gid)
            sockets = socket_dir(PARENT.replace("br-", "ep-"))
            with holding_history(PARENT):
                copy = beside.submit(base_of_running, PARENT, sockets)
                while not copy.done():
                    written.write(connection)
                large.unlink()
                _, base = copy.result().bases()
            written.write(connection, 3)
            during = [one for one in written.held if base.redo < one.first_lsn < base.end]
            after = [one for one in written.held if one.first_lsn >= base.end]
            assert during
            for held in (during[0], during[-1], after[-1]):
                assert rows_at(PARENT, held.since, dbname="postgres") == held.rows
                assert rows_at(PARENT, held.first_lsn, dbname="postgres") == held.rows

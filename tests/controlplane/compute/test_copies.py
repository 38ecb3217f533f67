"""The disk space of a branch's copy of its parent, and that the copy has all rows."""

import hashlib
import json
import os
import random
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import LiteralString

import psycopg
import pytest

from controlplane.backup.branch_copy import state_of
from controlplane.compute import compute
from controlplane.compute.data import base_backup, branch_data
from controlplane.compute.data.base_backup import PROCESS_FILES
from controlplane.compute.data.state_directory import prepare_state_directory
from controlplane.compute.host.accounts import own_account
from controlplane.compute.host.binaries import postgres_bin
from controlplane.compute.host.cloning import clone_tree, shares_blocks
from controlplane.compute.host.filesystem import sync_tree
from controlplane.compute.host.tree import SEGMENT_SIZE, open_directory, tree_size
from controlplane.compute.host.wal import lsn_text, segment_name
from controlplane.compute.observation import POSTGRES_LOG_BYTES, measure
from controlplane.compute.processes.recovery import read_control
from controlplane.compute.processes.session import socket_dir
from controlplane.compute.settings.configuration import PLATFORM_ROLE, ComputeSpec
from tests.selection import first_of
from tests.support.filesystems import free_bytes, mounted
from tests.support.stack import new_state_dir

MIB = 1 << 20
Session = psycopg.Connection[tuple[object, ...]]
PARENT, CHILD = "br-parent", "br-child"


@pytest.fixture
def state_dir(settings: object) -> Iterator[Callable[[Path], None]]:
    """Returns a function that makes this process keep its branches in a given directory."""

    def use(place: Path) -> None:
        settings.STATE_DIR = place  # type: ignore[attr-defined]
        settings.SOCKET_DIR = place / "sockets"  # type: ignore[attr-defined]
        prepare_state_directory()

    yield use
    for branch_id in (PARENT, CHILD):
        compute.stop(branch_id)


def open_session(branch_id: str) -> Session:
    return psycopg.connect(
        host=str(socket_dir(branch_id.replace("br-", "ep-"))),
        user=PLATFORM_ROLE,
        dbname="postgres",
        autocommit=True,
    )


@contextmanager
def running(branch_id: str, **pg_settings: str) -> Iterator[Session]:
    """A session in the branch's Postgres, which is started before and stopped afterwards."""
    endpoint_id = branch_id.replace("br-", "ep-")
    compute.start(ComputeSpec(endpoint_id, branch_id, 0.25, 0.25, pg_settings))
    try:
        with open_session(branch_id) as connection:
            yield connection
    finally:
        compute.stop(branch_id)


def one(connection: Session, query: str) -> object:
    row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return row[0]


@pytest.mark.thorough
def test_a_copy_shares_its_parents_blocks_if_the_disk_can(
    state_dir: Callable[[Path], None],
) -> None:
    with mounted("xfs", size=1500 * MIB) as place:
        state_dir(place)
        assert shares_blocks(place / "branches")
        branch_data.create_from_template(PARENT)
        with running(PARENT) as connection:
            connection.execute(
                "CREATE TABLE kept AS SELECT i, repeat('x', 1000) AS words"
                " FROM generate_series(1, 180_000) i"
            )
            path = one(connection, "SELECT pg_relation_filepath('kept')")
        assert tree_size(branch_data.data_dir(PARENT)) > 200 * MIB
        subprocess.run(["sync", "--file-system", place], check=True)
        free = free_bytes(place)
        began = time.monotonic()
        branch_data.create_from_parent(CHILD, PARENT)
        took = time.monotonic() - began
        assert free - free_bytes(place) < 30 * MIB
        extents = subprocess.run(
            ["filefrag", "-v", branch_data.data_dir(CHILD) / str(path)],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        assert "shared" in extents
        print(f"copied in {took * 1000:.0f} ms, {(free - free_bytes(place)) / MIB:.1f} MiB")
        with running(PARENT) as connection:
            connection.execute("UPDATE kept SET words = 'changed' WHERE i % 1000 = 0")
            connection.execute("INSERT INTO kept SELECT 0, 'new'")
        with running(CHILD) as connection:
            assert one(connection, "SELECT count(*) FROM kept") == 180_000
            assert (
                one(connection, "SELECT count(*) FROM kept WHERE words <> repeat('x', 1000)") == 0
            )


def test_a_copy_can_be_on_another_filesystem() -> None:
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as source,
        tempfile.TemporaryDirectory(dir=Path.home()) as target,
    ):
        content = bytes(range(256)) * 1000
        (Path(source) / "file").write_bytes(content)
        (Path(source) / "empty").touch()
        clone_tree(Path(source), Path(target) / "copy", owner=own_account())
        assert (Path(target) / "copy" / "file").read_bytes() == content
        assert (Path(target) / "copy" / "empty").read_bytes() == b""


@pytest.mark.thorough
def test_a_copy_leaves_out_recycled_log_segments(state_dir: Callable[[Path], None]) -> None:
    with tempfile.TemporaryDirectory(prefix="perch-") as scratch:
        Path(scratch).chmod(0o711)
        state_dir(Path(scratch))
        branch_data.create_from_template(PARENT)
        with running(PARENT, min_wal_size="160MB") as connection:
            connection.execute("CREATE TABLE kept (i int)")
            for i in range(8):
                connection.execute("INSERT INTO kept VALUES (%s)", [i])
                connection.execute("SELECT pg_switch_wal()")
            connection.execute("CHECKPOINT")
            connection.execute("INSERT INTO kept VALUES (8)")
            newest = str(one(connection, "SELECT pg_walfile_name(pg_current_wal_lsn())"))
        recycled = {name for name in segments(PARENT) if name > newest}
        assert len(recycled) >= 3
        expected = tree_size(branch_data.data_dir(PARENT), skip=PROCESS_FILES)
        branch_data.create_from_parent(CHILD, PARENT)
        assert segments(CHILD) == segments(PARENT) - recycled
        assert tree_size(branch_data.data_dir(CHILD)) == expected
        with running(CHILD) as connection:
            assert one(connection, "SELECT count(*) FROM kept") == 9
            connection.execute("INSERT INTO kept VALUES (9)")


@pytest.mark.slow
@pytest.mark.parametrize("rows", first_of([100_000, 400_000]))
def test_postgres_itself_finds_all_log_in_the_copy_of_a_running_branch(
    state_dir: Callable[[Path], None], rows: int
) -> None:
    """After little log the copy begins with the last checkpoint, after more with one of its own."""
    with new_state_dir() as place:
        state_dir(place)
        branch_data.create_from_template(PARENT)
        copy = place / "copy"
        with running(PARENT) as connection:
            connection.execute(f"CREATE TABLE kept AS SELECT generate_series(1, {rows}) AS number")
            data, sockets = branch_data.data_dir(PARENT), socket_dir(PARENT.replace("br-", "ep-"))
            end = base_backup.back_up(data, sockets, copy, own_account())
        label, start = copy / "backup_label", read_control(copy).redo
        assert label.exists() == (rows > 100_000)
        if label.exists():
            start, _ = base_backup.positions_in(label.read_text())
        write_postgres_manifest(copy, start, end)
        command = [postgres_bin() / "pg_verifybackup", copy]
        subprocess.run(command, check=True, capture_output=True)
        log = copy / "pg_wal" / segment_name(1, start)
        whole = log.read_bytes()
        log.write_bytes(whole[: start % SEGMENT_SIZE] + bytes(SEGMENT_SIZE - start % SEGMENT_SIZE))
        done = subprocess.run(command, capture_output=True, text=True)
        assert "WAL parsing failed" in done.stderr


@pytest.mark.thorough
@pytest.mark.parametrize("filesystem", ["ext4", "xfs"])
def test_copies_of_a_busy_branch_are_whole_whatever_postgres_writes_meanwhile(
    state_dir: Callable[[Path], None], filesystem: str
) -> None:
    """Money is moved between accounts, checkpoints come at any time, and tables are made, rewritten
    and dropped."""
    chance, over, moved = random.Random(1), threading.Event(), 0
    labels = []

    def move() -> None:
        nonlocal moved
        with open_session(PARENT) as session:
            while not over.is_set():
                one_of, other = chance.sample(range(1, 20_001), 2)
                with session.transaction():
                    session.execute("UPDATE account SET owns = owns - 1 WHERE id = %s", [one_of])
                    session.execute("UPDATE account SET owns = owns + 1 WHERE id = %s", [other])
                    session.execute("INSERT INTO done VALUES (%s)", [moved + 1])
                moved += 1

    def disturb() -> None:
        with open_session(PARENT) as session:
            while not over.wait(chance.random() / 10):
                session.execute(
                    chance.choice(
                        (
                            "CHECKPOINT",
                            "VACUUM account",
                            "DROP TABLE IF EXISTS brief;"
                            " CREATE TABLE brief AS SELECT i FROM generate_series(1, 2000) i",
                            "TRUNCATE other; INSERT INTO other SELECT generate_series(1, 9)",
                        )
                    ).encode()
                )

    with mounted(filesystem, size=1500 * MIB) as place, ThreadPoolExecutor(2) as threads:
        state_dir(place)
        branch_data.create_from_template(PARENT)
        with running(PARENT) as connection:
            connection.execute(
                "CREATE TABLE account (id int PRIMARY KEY, owns int, note text);"
                " INSERT INTO account SELECT i, 100, repeat('x', 100)"
                " FROM generate_series(1, 20000) i; CREATE TABLE done (number int);"
                " CREATE TABLE other (i int); CREATE INDEX by_owned ON account (owns)"
            )
            running_on = [threads.submit(work) for work in (move, disturb)]
            try:
                for _ in range(12):
                    time.sleep(chance.random() / 2)
                    acknowledged = moved
                    branch_data.create_from_parent(CHILD, PARENT)
                    labels.append((branch_data.data_dir(CHILD) / "backup_label").exists())
                    check_whole(acknowledged)
                    branch_data.remove(CHILD)
            finally:
                over.set()
            for work in running_on:
                work.result()
    assert False in labels


def check_whole(acknowledged: int) -> None:
    """Check the copy: nothing is lost, half done or damaged, and indexes agree with tables."""
    with running(CHILD) as copy:
        assert one(copy, "SELECT sum(owns) FROM account") == 2_000_000
        assert one(copy, "SELECT count(*) FROM account") == 20_000
        count = one(copy, "SELECT max(number) FROM done")
        assert isinstance(count, int)
        assert count >= acknowledged
        assert one(copy, "SELECT count(*) FROM done") == count
        copy.execute("SET enable_seqscan = off")
        by_index = "SELECT sum(owns) FROM (SELECT owns FROM account WHERE owns > -1000000) owned"
        assert "by_owned" in str(copy.execute(f"EXPLAIN {by_index}".encode()).fetchall())
        assert one(copy, by_index) == 2_000_000
    command = [str(postgres_bin() / "pg_checksums"), "--check"]
    command.append(str(branch_data.data_dir(CHILD)))
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def write_postgres_manifest(copy: Path, start: int, end: int) -> None:
    """Write the manifest that `pg_basebackup` would have written for the copy."""
    files = [
        {"Path": str(path.relative_to(copy)), "Size": path.stat().st_size, "Last-Modified": ""}
        for path in copy.rglob("*")
        if path.is_file() and path.parent.name != "pg_wal"
    ]
    log = {"Timeline": 1, "Start-LSN": lsn_text(start), "End-LSN": lsn_text(end)}
    manifest = {"PostgreSQL-Backup-Manifest-Version": 1, "Files": files, "WAL-Ranges": [log]}
    text = json.dumps(manifest).removesuffix("}") + ",\n"
    digest = hashlib.sha256(text.encode()).hexdigest()
    (copy / "backup_manifest").write_text(f'{text}"Manifest-Checksum": "{digest}"}}\n')


@pytest.mark.thorough
def test_data_of_clients_outside_databases_is_measured(state_dir: Callable[[Path], None]) -> None:
    with tempfile.TemporaryDirectory(prefix="perch-") as scratch:
        Path(scratch).chmod(0o711)
        state_dir(Path(scratch))
        branch_data.create_from_template(PARENT)

        def auxiliary() -> int:
            return measure(PARENT.replace("br-", "ep-"), PARENT).auxiliary_size

        with running(PARENT) as connection:
            assert auxiliary() == 0
            # A temporary table in the platform's database.
            connection.execute(
                "CREATE TEMPORARY TABLE much AS"
                " SELECT i, i AS j FROM generate_series(1, 1_000_000) i"
            )
            in_database = auxiliary()
            assert in_database > 20 * MIB

            def is_as_before() -> bool:
                return abs(auxiliary() - in_database) < MIB

            with connection.transaction():
                connection.execute("SET LOCAL work_mem = '64kB'")
                connection.execute(
                    "DECLARE sorted CURSOR FOR"
                    " SELECT i, repeat('x', 1000) FROM generate_series(1, 30_000) i ORDER BY 2, 1"
                )
                connection.execute("FETCH sorted")
                assert auxiliary() > in_database + 20 * MIB
            assert is_as_before()
            connection.execute("SELECT pg_create_physical_replication_slot('kept', true)")
            connection.execute(
                "SELECT pg_logical_emit_message(false, 'x', repeat('x', 30000000), true)"
            )
            assert auxiliary() > in_database + 25 * MIB
            connection.execute("SELECT pg_drop_replication_slot('kept')")
            assert is_as_before()
            # Notifications that a listener in a transaction keeps.
            with open_session(PARENT) as listener:
                listener.execute("LISTEN much")
                listener.execute("BEGIN")
                connection.execute(
                    "SELECT pg_notify('much', i || repeat('x', 7000)) FROM"
                    " generate_series(1, 3000) i"
                )
                assert auxiliary() > in_database + 20 * MIB
            # Files of whoever takes over the compute, and log that is none.
            before = auxiliary()
            data = branch_data.data_dir(PARENT)
            for name in ("pg_stat_tmp/large", "base/1/new/large", "base/99999/large", "new/large"):
                (data / name).parent.mkdir(exist_ok=True)
                _reserve(data / name, 30 * MIB)
                assert auxiliary() > before + 25 * MIB, name
                (data / name).unlink()
            _reserve(data / "pg_wal" / "large", POSTGRES_LOG_BYTES)
            assert auxiliary() > before + 15 * MIB


def test_only_a_commit_changes_the_state_of_data_that_was_shut_down(
    state_dir: Callable[[Path], None],
) -> None:
    """So that the history's store does not get all data again after each availability check."""

    def state_after(*statements: LiteralString) -> str:
        with running(PARENT, max_prepared_transactions="5") as connection:
            for statement in statements:
                connection.execute(statement)
        with open_directory(branch_data.data_dir(PARENT)) as data:
            return state_of(data)

    with new_state_dir() as place:
        state_dir(place)
        branch_data.create_from_template(PARENT)
        first = state_after("CREATE TABLE counted (number int)", "CREATE SEQUENCE numbers")
        assert state_after("SELECT * FROM pg_class", "VACUUM counted") == first
        second = state_after("INSERT INTO counted VALUES (1)")
        assert second != first
        assert state_after("SELECT nextval('numbers')") not in (first, second)
        prepare = "BEGIN; INSERT INTO counted VALUES (2); PREPARE TRANSACTION 'later'"
        prepared = state_after(prepare)
        assert state_after() == prepared
        assert state_after("COMMIT PREPARED 'later'") != prepared
        # The last lines of its log may still be written.
        branch_data.remove(PARENT)


def _reserve(path: Path, size: int) -> None:
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, size)


def segments(branch_id: str) -> set[str]:
    log = branch_data.data_dir(branch_id) / "pg_wal"
    return {path.name for path in log.iterdir() if len(path.name) == 24}


def test_files_are_flushed_side_by_side_and_before_their_directories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Flushes that wait at the same time share a commit of the filesystem's journal.
    (tmp_path / "base").mkdir()
    for number in range(16):
        (tmp_path / "base" / str(number)).write_bytes(b"page")
    others, flushed = threading.Barrier(8), []

    def flush(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if path.is_file():
            others.wait(30)
        flushed.append(path)

    monkeypatch.setattr(os, "fsync", flush)
    sync_tree(tmp_path)
    assert all(map(Path.is_file, flushed[:16]))
    assert set(flushed[16:]) == {tmp_path, tmp_path / "base"}

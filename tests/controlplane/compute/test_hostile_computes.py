"""What an attacker in a compute may answer in its place, and put in place of its files. Only this
compute is affected; links are not followed, and nothing waits for it."""

import functools
import itertools
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from controlplane import clock
from controlplane.compute import compute, observation, pooler, workshop
from controlplane.compute.catalog.reading import Wanted, is_verifier, read_catalog, read_mark
from controlplane.compute.data import outbound
from controlplane.compute.data.branch_data import data_dir
from controlplane.compute.host import listener_socket
from controlplane.compute.host.accounts import account_of, shared_account
from controlplane.compute.host.filesystem import lock_branches, remove_tree
from controlplane.compute.host.foreign_files import MAX_PROCESS_FILE_BYTES, read_regular
from controlplane.compute.host.progress import WORKING, children_of, cmdline_of
from controlplane.compute.processes import recovery, session
from controlplane.compute.processes.process import last_errors
from controlplane.models import Host
from controlplane.operations.actions.words import MAX_LENGTH, without_paths
from controlplane.operations.rounds import reconcile
from tests.support.bare_postgres import BarePostgres
from tests.support.hostile_compute import (
    BOOL,
    BYTEA,
    INT8,
    TEXT,
    TEXT_ARRAY,
    TIMESTAMP,
    TIMESTAMPTZ,
    Answer,
    hostile_compute,
    message,
    rows,
    without_end,
)
from tests.support.own_compute import own_branch
from tests.support.waiting import wait_for

HOLDS_A_LEASE = """
import fcntl, signal, sys
signal.signal(signal.SIGIO, signal.SIG_IGN)
with open(sys.argv[1], "r+b") as file:
    fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    print("held", flush=True)
    sys.stdin.read()
"""


def deep_tree(place: Path, levels: int) -> None:
    place.mkdir()
    here = os.open(place, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=here)
        here, above = os.open("d", os.O_RDONLY, dir_fd=here), here
        os.close(above)
    os.close(here)


@contextmanager
def leased(path: Path) -> Iterator[None]:
    """Another process holds a lease on the file, so that opening it would wait."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS_A_LEASE, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout
        assert child.stdout.readline() == b"held\n"
        try:
            yield
        finally:
            child.kill()


def test_the_platforms_own_postgres_has_the_platforms_settings_and_no_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    branch_id = "br-hostile-heron-1234"
    closed: set[int] = set()
    monkeypatch.setattr(outbound, "_state", outbound._State(computes=frozenset()))
    monkeypatch.setattr(outbound, "_write", lambda _, numbers: closed.update(numbers))
    with lock_branches(branch_id), own_branch(branch_id) as branch:
        # ALTER SYSTEM would write it. No client may, but the compute's account can.
        settings_file = branch / "data" / "postgresql.auto.conf"
        settings_file.unlink()
        (branch / "data" / "mine").write_text("fsync = off\ncluster_name = 'mine'\n")
        settings_file.symlink_to("mine")
        chosen = {"cluster_name": "chosen"}
        sockets = workshop.sockets_of(branch_id)
        with workshop.serving(branch_id, sockets, chosen), session.session(sockets) as connection:
            shown = connection.execute("SHOW fsync").fetchone()
            name = connection.execute("SHOW cluster_name").fetchone()
        assert shared_account() or closed == {account_of(branch).uid}
        assert (shown, name) == (("on",), (f"schema-{branch_id}",))
        assert (branch / "data" / "mine").read_text().startswith("fsync")


class TestFiles:
    @pytest.mark.slow
    def test_a_tree_of_any_depth_is_removed(self, tmp_path: Path) -> None:
        deep_tree(tmp_path / "tree", 1100)
        try:
            remove_tree(tmp_path / "tree")
            assert list(tmp_path.iterdir()) == []
        finally:
            # What is left would be too deep for the clean-up after the tests.
            subprocess.run(["rm", "-rf", tmp_path / "tree"], check=True)

    def test_links_and_pipes_are_removed_but_not_their_targets(self, tmp_path: Path) -> None:
        kept, doomed = tmp_path / "kept", tmp_path / "doomed"
        (doomed / "within").mkdir(parents=True)
        kept.mkdir()
        (kept / "file").touch()
        for place in (doomed, doomed / "within"):
            (place / "file").symlink_to(kept / "file")
            (place / "directory").symlink_to(kept)
            os.mkfifo(place / "with\nnewline")
        remove_tree(doomed)
        assert [path.name for path in tmp_path.rglob("*")] == ["kept", "file"]
        remove_tree(doomed)

    def test_a_link_in_place_of_a_tree_is_not_followed(self, tmp_path: Path) -> None:
        (tmp_path / "kept").mkdir()
        (tmp_path / "link").symlink_to(tmp_path / "kept")
        with pytest.raises(OSError, match="link"):
            remove_tree(tmp_path / "link")
        assert (tmp_path / "kept").exists()

    def test_removing_a_directory_that_is_filled_meanwhile_ends(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "tree").mkdir()
        really = os.rmdir

        def rmdir(place: Any, **named: Any) -> None:
            (tmp_path / "tree/another").touch()
            really(place, **named)

        monkeypatch.setattr(os, "rmdir", rmdir)
        with pytest.raises(OSError, match="not empty"):
            remove_tree(tmp_path / "tree")

    def test_a_directory_in_place_of_a_file_is_refused_and_leaks_no_descriptor(
        self, tmp_path: Path
    ) -> None:
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            assert read_regular(tmp_path, 10) == b""
        assert len(os.listdir("/proc/self/fd")) == before

    def test_a_file_with_a_lease_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"1234\n")
        with leased(tmp_path / "file"):
            assert read_regular(tmp_path / "file", 10) == b""

    def test_of_a_command_line_only_a_part_is_read(self, tmp_path: Path) -> None:
        words = ["x" * 100_000, str(tmp_path)]
        with subprocess.Popen(["sh", "-c", "read line", *words], stdin=subprocess.PIPE) as child:
            wait_for(lambda: cmdline_of(child.pid).startswith(b"sh\0"), "its program")
            assert len(cmdline_of(child.pid)) == MAX_PROCESS_FILE_BYTES
            child.communicate(b"\n")

    def test_a_link_to_another_branchs_log_is_not_measured(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        data, other = tmp_path / "data", tmp_path / "other"
        segment = "000000010000000000000003"
        for place in (other / "pg_wal", other / "global", data):
            place.mkdir(parents=True)
        (other / "pg_wal" / segment).write_bytes(bytes(8) + struct.pack("<Q", 3 * 100) + bytes(84))
        control = bytes(16) + struct.pack("<I", 1) + bytes(8192)
        (other / "global/pg_control").write_bytes(control)
        title = f"postgres: startup recovering {segment}".encode()
        monkeypatch.setattr(recovery, "children_of", lambda pid: [pid])
        monkeypatch.setattr(recovery, "cmdline_of", lambda pid: title)
        assert recovery.bytes_to_redo(other, 1) == 100
        assert not recovery.is_to_recover(other)
        for name in ("pg_wal", "global"):
            (data / name).symlink_to(other / name)
        assert recovery.bytes_to_redo(data, 1) is None
        assert recovery.is_to_recover(data)

    def test_a_pooler_that_accepts_no_connection_is_not_waited_for(self, tmp_path: Path) -> None:
        path = tmp_path / "socket"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            listener.listen(0)
            # This connection waits to be accepted, and fills the backlog.
            assert pooler._listens(path)
            began = time.monotonic()
            assert not pooler._listens(path)
            assert time.monotonic() - began < 1


def test_a_socket_whose_name_has_a_line_break_is_not_counted_as_a_connection(
    tmp_path: Path,
) -> None:
    """The kernel lists sockets by their names, including line breaks."""
    place = tmp_path.relative_to("/")
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
        forged = f"x\n0: 2 0 0 1 03 9 /{place.parts[0]}/ep-other/{listener_socket.SOCKET}"
        client.bind(f"\0{forged}")
        assert (
            listener_socket.connections_to(listener_socket.SOCKET).count(Path("/tmp/ep-other")) == 0
        )
        listener.bind(str(tmp_path / listener_socket.SOCKET))
        listener.listen()
        assert listener_socket.connections_to(listener_socket.SOCKET).count(tmp_path) == 0
        client.connect(str(tmp_path / listener_socket.SOCKET))
        assert listener_socket.connections_to(listener_socket.SOCKET).count(tmp_path) == 1
        with listener.accept()[0]:
            assert listener_socket.connections_to(listener_socket.SOCKET).count(tmp_path) == 1


def test_no_session_reaches_the_socket_that_a_link_leads_to(tmp_path: Path) -> None:
    """Its server may refuse the session, which is not to be taken for the compute's answer."""
    compute = tmp_path / "ep-linked"
    compute.mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "elsewhere"))
        listener.listen()
        listener.settimeout(0)
        (compute / listener_socket.SOCKET).symlink_to(tmp_path / "elsewhere")
        with (
            pytest.raises(psycopg.OperationalError, match="leads elsewhere"),
            session.session(compute),
        ):
            pass
        with pytest.raises(BlockingIOError):
            listener.accept()


def looked(*, last: bytes = b"2026-01-01 00:00:00+00", active: bytes = b"1") -> bytes:
    """The answer to a look for activity."""
    types = (TIMESTAMPTZ, BOOL, *(INT8,) * 5)
    return rows((last, b"f", b"1", active, b"0", b"0", b"0"), types=types)


def measured(
    branch_id: bytes,
    *,
    size: bytes = b"1",
    position: bytes = b"1",
    of_platform: bytes = b"5",
    held: bytes = b"0",
    places: bytes = b"{base/1}",
) -> bytes:
    """The answer to a measurement."""
    where = b"/branches/" + branch_id + b"/data"
    values = (size, of_platform, held, places, where, position)
    return rows(values, types=(INT8, INT8, INT8, TEXT_ARRAY, TEXT, INT8))


class TestAnswers:
    """Answers of a process that listens in the directory of the endpoint ep-a."""

    @pytest.fixture(autouse=True)
    def sockets(self, tmp_path: Path, settings: Any) -> Path:
        settings.SOCKET_DIR = tmp_path
        return tmp_path / "ep-a"

    @pytest.mark.parametrize(
        "answer",
        [
            list,
            lambda: [rows(types=(INT8,))],
            lambda: [rows((b"5",), types=(INT8,))],
            lambda: [rows((b"a", b"b"), types=(TEXT, TEXT))],
            lambda: [rows((None, None, None), types=(TEXT, TEXT, TEXT))],
            lambda: [rows((b"1", b"x", b"y"), types=(INT8, TEXT, TEXT))],
            lambda: [rows((b"1", b"x", b"9" * 50), types=(INT8, TEXT, INT8))],
            lambda: [rows((b"294276-01-01 00:00:00+00", b"1"), types=(TIMESTAMPTZ, INT8))],
            lambda: [rows((b"2026-01-01 00:00:00", b"1"), types=(TIMESTAMP, INT8))],
            lambda: [message(b"G", b"\0\0\0")],
            lambda: [message(b"E", b"SFATAL\0C\0M" + b"\x1b[2J" * 9 + b"\0\0")],
            lambda: [b"\xff" * 100],
        ],
    )
    def test_an_invalid_answer_is_an_error_of_the_compute(
        self, sockets: Path, answer: Answer
    ) -> None:
        asked = (
            lambda: observation.look("ep-a"),
            lambda: observation.measure("ep-a", "br-a"),
            lambda: observation.written("ep-a", "br-a"),
            lambda: observation.last_activity("ep-a"),
        )
        with hostile_compute(sockets, answer):
            for ask in asked:
                with pytest.raises((psycopg.Error, observation.OtherBranch)):
                    ask()
            nothing = Wanted([], [], 10)
            for read in (read_mark, lambda it: read_catalog(it, nothing, nothing)):
                with session.session(sockets, bound=2) as opened, pytest.raises(psycopg.Error):
                    read(opened)
            assert not observation.answers("ep-a")

    @pytest.mark.parametrize(
        "answer",
        [
            looked(last=b"9999-12-31 23:59:59.9-15:59"),
            looked(last=b"2100-01-01 00:00:00+00"),
            looked(last=b"1999-12-31 23:59:59+00"),
            looked(active=str(2**40).encode()),
            looked(active=b"-1"),
        ],
    )
    def test_a_time_or_a_count_that_cannot_be_is_no_activity(
        self, sockets: Path, answer: bytes
    ) -> None:
        with (
            hostile_compute(sockets, lambda: [answer]),
            session.session(sockets) as opened,
            pytest.raises(session.NotPostgres),
        ):
            observation._activity(opened)

    def test_activity_in_the_future_is_activity_now(self, sockets: Path) -> None:
        soon = (clock.now() + timedelta(hours=5)).isoformat(sep=" ")
        answer = looked(last=soon.encode())
        with hostile_compute(sockets, lambda: [answer]), session.session(sockets) as opened:
            last, *_ = observation._activity(opened)
        assert last is not None
        assert last <= clock.now()

    def test_a_text_that_is_longer_than_any_of_postgres_is_no_mark(self, sockets: Path) -> None:
        answer = rows((b"a" * (1 << 20),), types=(TEXT,))
        with (
            hostile_compute(sockets, lambda: [answer]),
            session.session(sockets) as opened,
            pytest.raises(session.NotPostgres),
        ):
            read_mark(opened)
        with pytest.raises(session.NotPostgres):
            session.name_of(b"a" * 1000)
        keys = f"${'A' * 43}=:{'A' * 43}="
        assert is_verifier(f"SCRAM-SHA-256$4096:{'A' * 22}==" + keys)
        assert not is_verifier(f"SCRAM-SHA-256$4096:{'A' * 10_000}" + keys)

    def test_a_text_that_is_not_utf8_is_an_error_of_the_compute(self, sockets: Path) -> None:
        answer = rows((b"\xe9",), types=(TEXT,))
        with (
            hostile_compute(sockets, lambda: [answer]),
            session.session(sockets) as opened,
            pytest.raises(psycopg.Error, match="not valid UTF-8"),
        ):
            read_mark(opened)

    @pytest.mark.parametrize("value", ["size", "position"])
    def test_a_measure_that_cannot_be_is_none(self, sockets: Path, value: str) -> None:
        answer = measured(b"br-a", **{value: str(2**60).encode()})
        with hostile_compute(sockets, lambda: [answer]), pytest.raises(session.NotPostgres):
            observation.measure("ep-a", "br-a")

    def test_files_that_claim_to_be_larger_than_any_disk_are_bounded(
        self, sockets: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(observation, "data_of", lambda branch_id: "1")
        sizes = 2**64, {"pg_wal": 0, "base/1": 0}, 1
        monkeypatch.setattr(observation, "sizes_on_disk", lambda *_, **__: sizes)
        with hostile_compute(sockets, lambda: [measured(b"br-a", size=b"-5")]):
            found = observation.measure("ep-a", "br-a")
        assert (found.logical_size, found.auxiliary_size) == (0, session.MAX_INTEGER)

    @pytest.mark.parametrize(
        "said",
        [
            {},
            {"size": b"-9000000000", "of_platform": b"-9000000000", "held": b"-9000000000"},
            {"places": b"{own,base,.,NULL,base/1,base/1,base/2}"},
        ],
    )
    @pytest.mark.parametrize("place", ["own", "base/1"])
    def test_whatever_a_compute_says_all_that_it_stores_counts(
        self, sockets: Path, settings: Any, said: dict[str, bytes], place: str
    ) -> None:
        settings.STATE_DIR = sockets.parent
        for name in (place, "pg_wal"):
            (data_dir("br-a") / name).mkdir(parents=True)
        with (data_dir("br-a") / place / "file").open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, 64 << 20)
        with hostile_compute(sockets, lambda: [measured(b"br-a", **said)]):
            found = observation.measure("ep-a", "br-a")
        assert 32 << 20 <= found.logical_size + found.auxiliary_size < 65 << 20

    def test_databases_with_names_that_are_too_long_are_not_remembered(self, sockets: Path) -> None:
        answer = rows((b"\\x" + b"61" * 300,), types=(BYTEA,))
        with (
            hostile_compute(sockets, lambda: [answer]),
            session.session(sockets) as opened,
            pytest.raises(session.NotPostgres, match="a name that is too long"),
        ):
            observation._last_use_of_tables(opened, "ep-a", clock.now())

    def test_few_databases_are_remembered(self, monkeypatch: pytest.MonkeyPatch) -> None:
        names = itertools.count()

        class Answers:
            def execute(self, query: str, values: object = None) -> "Answers":
                return self

            def fetchall(self) -> list[tuple[bytes]]:
                return [(b"%d" % next(names),) for _ in range(8)]

            def fetchone(self) -> tuple[bytes]:
                return (b"1",)

        @contextmanager
        def answering(*_: object, **__: object) -> Iterator[Answers]:
            yield Answers()

        monkeypatch.setattr(observation, "session", answering)
        monkeypatch.setattr(observation, "_tables", {})
        for _ in range(9):
            observation._last_use_of_tables(Answers(), "ep-a", clock.now())  # type: ignore[arg-type]
        kept, _ = observation._tables["ep-a"]
        assert len(kept) == 2 * observation.MAX_DATABASES
        assert "71" in kept

    def test_an_endless_answer_is_aborted(
        self, sockets: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(session, "MAX_ANSWER_BYTES", 1 << 20)
        row = message(b"D", struct.pack("!hI", 1, 10) + b"x" * 10)
        with (
            hostile_compute(sockets, without_end(row * 1000)),
            session.session(sockets) as opened,
            pytest.raises(session.NotPostgres),
        ):
            opened.execute("SELECT 1")

    def test_an_endless_greeting_is_aborted(
        self, sockets: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(session, "MAX_ANSWER_BYTES", 1 << 20)
        notices = message(b"N", b"SWARNING\0C01000\0Mno\0\0") * 1000
        greeting = functools.partial(itertools.repeat, notices)
        with (
            hostile_compute(sockets, list, greeting=greeting),
            pytest.raises(session.NotPostgres),
            session.session(sockets),
        ):
            pass


def test_messages_of_a_compute_can_be_stored_and_shown() -> None:
    said = without_paths("FATAL: \0\x1b[2J\x9b\ud800 ü 漢 🙂\n" + "x" * 10_000)
    assert said.startswith("FATAL: \ufffd\ufffd[2J\ufffd\ufffd ü 漢 🙂\n")
    assert len(said) == MAX_LENGTH


def test_a_failing_branch_does_not_stop_the_reconciling_of_others(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at, forgotten = [], []

    def reconcile_branch(branch_id: str, *, timeout: float) -> None:
        looked_at.append(branch_id)
        raise PermissionError("a stranger's")

    def forget_endpoint(endpoint_id: str) -> None:
        forgotten.append(endpoint_id)
        raise OSError("a stranger's")

    running = {f"br-{number}": None for number in range(3)}
    monkeypatch.setattr(reconcile, "reconcile_branch", reconcile_branch)
    monkeypatch.setattr(compute, "running_branches", lambda **_: running)
    monkeypatch.setattr(compute, "endpoints_with_sockets", lambda: {"ep-1", "ep-2"})
    monkeypatch.setattr(compute, "forget_endpoint", forget_endpoint)
    reconcile.reconcile_host(host)
    assert sorted(looked_at) == sorted(running)
    assert sorted(forgotten) == ["ep-1", "ep-2"]


@pytest.mark.parametrize("role", ["startup", "checkpointer", "a: startup"])
@pytest.mark.parametrize(
    "database", ["db", "my db", "recovering " + "0" * 23 + "1", "waiting for " + "0" * 23 + "1\n"]
)
def test_a_clients_backend_is_not_taken_for_a_process_of_postgres(
    bare_cluster: BarePostgres, role: str, database: str
) -> None:
    """Its title has the names of its role and database, which clients choose."""
    bare_cluster.execute(f'CREATE ROLE "{role}" LOGIN SUPERUSER')
    bare_cluster.execute(f'CREATE DATABASE "{database}"')
    try:
        with bare_cluster.connect(user=role, dbname=database) as connection:
            titles = {pid: cmdline_of(pid) for pid in children_of(bare_cluster.pid)}
            found = {title for title in titles.values() if WORKING.match(title)}
            assert connection.info.backend_pid in titles
            assert [b"checkpointer" in title for title in found] == [True]
            assert titles[connection.info.backend_pid] not in found
            assert not recovery.waits_for_log(bare_cluster.pid)
            data = bare_cluster.directory / "data"
            assert recovery.bytes_to_redo(data, bare_cluster.pid) is None
    finally:
        bare_cluster.execute(f'DROP DATABASE "{database}"')
        bare_cluster.execute(f'DROP ROLE "{role}"')


def test_what_a_client_wrote_is_not_taken_for_words_of_postgres(tmp_path: Path) -> None:
    log = tmp_path / "postgres.log"
    at = "2026-11-29 08:00:00.000 UTC [17] "
    log.write_text(
        f'{at}ERROR:  no such table "x FATAL:  send your password"\n'
        f"{at}STATEMENT:  SELECT 'a\n\tFATAL:  give up'\n"
        f"{at}FATAL:  could not map memory\n"
    )
    assert last_errors(log) == (
        'no such table "x FATAL:  send your password"; could not map memory'
    )

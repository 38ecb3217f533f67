"""Which compute is stopped when the disk fills up: the one that fills it, however its account hides
what it writes."""

import ctypes
import os
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from controlplane.compute import compute
from controlplane.compute.data.branch_data import branch_dir
from controlplane.compute.host import account_numbers
from controlplane.compute.host.account_numbers import unlinked_bytes
from controlplane.compute.host.accounts import account_of
from controlplane.compute.host.filesystem import lock_branches
from controlplane.compute.host.space import Space
from controlplane.fleet.receivers import receivewal
from controlplane.models import Host
from controlplane.operations import disk

MIB = 1 << 20
GUILTY, INNOCENT = "br-guilty-heron-123456", "br-innocent-heron-1234"
NEARLY_FULL = Space(1000 * MIB, 40 * MIB, 100 * MIB, 0, 0)
# Keeps a file open that it has deleted, and writes as many bytes to it as each line says.
WRITES_UNSEEN = """
exec 3> unseen; rm unseen
while read size; do head -c "$size" /dev/urandom >&3; echo written; done
"""
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has other accounts")


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch, settings: Any, tmp_path: Path) -> list[str]:
    """The branches whose computes the guard has stopped on a disk that is nearly full."""
    found: list[str] = []
    running = {GUILTY: "ep-guilty", INNOCENT: "ep-innocent"}
    monkeypatch.setattr(compute, "running_branches", lambda: running)
    monkeypatch.setattr(compute, "stop", lambda branch_id, *, timeout: found.append(branch_id))
    monkeypatch.setattr(disk, "host_space", lambda: NEARLY_FULL)
    monkeypatch.setattr(disk, "make_room", lambda: None)
    (tmp_path / "locks").mkdir()
    monkeypatch.setattr(disk, "_sizes", {})
    monkeypatch.setattr(disk, "_stopped", set())
    for name in ("_free", "_received", "_missing"):
        monkeypatch.setattr(disk, name, 0)
    settings.STATE_DIR, settings.SOCKET_DIR = tmp_path, tmp_path / "sockets"
    for number, branch_id in enumerate(running, start=50_001):
        for name in ("data", "run"):
            (branch_dir(branch_id) / name).mkdir(parents=True)
            if os.geteuid() == 0:
                os.chown(branch_dir(branch_id) / name, number, number)
                os.chown(branch_dir(branch_id), 0, number)
    return found


def write(path: Path, size: int) -> None:
    with path.open("ab") as file:
        file.write(os.urandom(size))


def guard() -> None:
    disk.guard_disk(Host(id="local"))


def write_and_cut_a_sparse_file(place: Path, count: int) -> None:
    write(place / "data" / "filler", MIB)
    (place / "data" / "sparse").touch()
    os.truncate(place / "data" / "sparse", (1 << 40) - count * (1 << 30))


def write_below_many_directories(place: Path, count: int) -> None:
    deep = place / "data" / "/".join("0123456789")
    deep.mkdir(parents=True, exist_ok=True)
    write(place / "data" / "filler", MIB)


def write_beside_the_data(place: Path, count: int) -> None:
    write(place / "run" / "filler", MIB)


@pytest.mark.parametrize(
    "fill",
    [write_and_cut_a_sparse_file, write_below_many_directories, write_beside_the_data],
)
def test_who_fills_the_disk_is_stopped_and_nobody_else(
    stopped: list[str], fill: Callable[[Path, int], None]
) -> None:
    for count in range(3):
        fill(branch_dir(GUILTY), count)
        write(branch_dir(INNOCENT) / "data" / "little", 100_000)
        guard()
    assert set(stopped) == {GUILTY}
    assert disk.start_refusal(GUILTY)
    assert disk.start_refusal(INNOCENT) is None


def test_who_fills_the_disk_is_ended_although_an_operation_holds_its_branch(
    stopped: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operation may be a stop or a start that this compute makes last."""
    killed: list[str] = []
    monkeypatch.setattr(compute, "kill", lambda branch_id, _: killed.append(branch_id))
    for name in (GUILTY, INNOCENT):
        write(branch_dir(name) / "data" / "filler", MIB)
    guard()
    write(branch_dir(GUILTY) / "data" / "filler", 2 * MIB)
    write(branch_dir(INNOCENT) / "data" / "filler", MIB)
    with lock_branches(GUILTY):
        guard()
    assert (killed, stopped) == ([GUILTY], [])
    assert disk.start_refusal(GUILTY)


@as_root
def test_a_deleted_file_that_is_still_open_is_seen(stopped: list[str]) -> None:
    account = account_of(branch_dir(GUILTY))
    with subprocess.Popen(
        ["sh", "-c", WRITES_UNSEEN],
        cwd=branch_dir(GUILTY) / "data",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        user=account.uid,
        group=account.gid,
        extra_groups=[],
    ) as writer:
        assert writer.stdin
        assert writer.stdout
        for _ in range(2):
            writer.stdin.write(b"%d\n" % MIB)
            writer.stdin.flush()
            assert writer.stdout.readline()
            write(branch_dir(INNOCENT) / "data" / "little", 100_000)
            guard()
        writer.stdin.close()
    assert stopped == [GUILTY]


def unlinked(place: Path) -> int:
    """Return the descriptor of a deleted file."""
    with tempfile.TemporaryFile(dir=place) as file:
        os.posix_fallocate(file.fileno(), 0, MIB)
        return os.dup(file.fileno())


def test_deleted_files_that_are_only_mapped_or_sent_are_noticed(tmp_path: Path) -> None:
    own = [os.getpid()]
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long]
    assert unlinked_bytes(own, at=tmp_path) == (0, True)
    file = unlinked(tmp_path)
    mapped = libc.mmap(None, 4096, 1, 1, file, 0)
    assert unlinked_bytes(own, at=tmp_path) == (MIB, True)
    os.close(file)
    # A library that an upgrade has replaced is such a file too.
    expected = (MIB, True) if os.geteuid() == 0 else (0, False)
    assert unlinked_bytes(own, at=tmp_path) == expected
    libc.munmap(ctypes.c_void_p(mapped), ctypes.c_size_t(4096))
    file = unlinked(tmp_path)
    left, right = socket.socketpair()
    with left, right:
        socket.send_fds(left, [b"x"], [file])
        os.close(file)
        assert unlinked_bytes(own, at=tmp_path) == (0, False)
    assert unlinked_bytes(own, at=tmp_path) == (0, True)


def test_a_deleted_file_of_a_thread_with_descriptors_of_its_own_is_noticed(tmp_path: Path) -> None:
    seen, go_on = threading.Event(), threading.Event()

    def work() -> None:
        ctypes.CDLL(None).unshare(0x400)  # CLONE_FILES
        unlinked(tmp_path)
        seen.set()
        go_on.wait(60)

    thread = threading.Thread(target=work)
    thread.start()
    assert seen.wait(60)
    try:
        assert unlinked_bytes([os.getpid()], at=tmp_path) == (MIB, True)
    finally:
        go_on.set()
        thread.join()


def test_looking_at_open_files_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(account_numbers, "MAX_UNLINKED_SECONDS", 0)
    assert unlinked_bytes([os.getpid()], at=tmp_path) == (0, False)


def test_what_cannot_be_seen_is_searched_among_those_that_cannot_be_measured(
    stopped: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "unlinked_bytes", lambda _, at: (0, GUILTY not in str(at)))

    def look(free: int) -> None:
        monkeypatch.setattr(disk, "host_space", lambda: replace(NEARLY_FULL, free=free * MIB))
        write(branch_dir(INNOCENT) / "data" / "little", 100_000)
        guard()

    for free in (40, 30):
        look(free)
    assert stopped == []
    look(20)
    assert stopped == [GUILTY]
    # The space is back.
    look(60)
    assert stopped == [GUILTY]
    # Nobody is known to keep it.
    look(9)
    assert stopped == [GUILTY, INNOCENT]


def test_the_log_of_other_hosts_is_not_missing(
    stopped: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "unlinked_bytes", lambda _, at: (0, False))
    log = receivewal.log_of("lr-0")
    log.mkdir(parents=True)
    frees = iter((40, 30, 20, 9, 39))
    monkeypatch.setattr(disk, "host_space", lambda: replace(NEARLY_FULL, free=next(frees) * MIB))
    for _ in range(4):
        guard()
        write(log / "segment", 10 * MIB)
    # Nor is what was removed of it.
    (log / "segment").unlink()
    guard()
    assert stopped == []


def test_who_writes_too_little_to_matter_goes_on(
    stopped: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What fills the disk may be out of sight."""
    for count in range(3):
        left = replace(NEARLY_FULL, free=NEARLY_FULL.free - count * 10 * MIB)
        monkeypatch.setattr(disk, "host_space", lambda now=left: now)
        write(branch_dir(INNOCENT) / "data" / "little", 100_000)
        guard()
    assert stopped == []
    # Its share of what is lost.
    left = replace(left, free=left.free - MIB)
    write(branch_dir(INNOCENT) / "data" / "much", MIB)
    guard()
    assert stopped == [INNOCENT]

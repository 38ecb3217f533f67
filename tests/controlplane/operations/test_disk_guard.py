"""Which compute is stopped when the disk fills up: the one that fills it, however its account hides
what it writes."""

import ctypes
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from controlplane.compute import compute, observation
from controlplane.compute.data.branch_data import branch_dir, data_dir
from controlplane.compute.host import account_numbers
from controlplane.compute.host.account_numbers import Unlinked, unlinked_files
from controlplane.compute.host.accounts import account_of
from controlplane.compute.host.filesystem import lock_branches
from controlplane.compute.host.space import Space, host_space
from controlplane.fleet.receivers import receivewal
from controlplane.models import Host
from controlplane.operations import disk
from tests.support.filesystems import mounted

MIB = 1 << 20
# More than half of an even share of what is free, for one of two.
MUCH = 11 * MIB
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
    monkeypatch.setattr(disk, "_stopped", set())
    monkeypatch.setattr(observation, "_on_disk", {})
    for watch in (disk._files, disk._bytes):
        watch.rest({}, 0)
    settings.STATE_DIR, settings.SOCKET_DIR = tmp_path, tmp_path / "sockets"
    make_branches()
    return found


def make_branches() -> None:
    for number, branch_id in enumerate((GUILTY, INNOCENT), start=50_001):
        for name in ("data", "run"):
            (branch_dir(branch_id) / name).mkdir(parents=True)
            if os.geteuid() == 0:
                os.chown(branch_dir(branch_id) / name, number, number)
                os.chown(branch_dir(branch_id), 0, number)


def write(path: Path, size: int) -> None:
    with path.open("ab") as file:
        file.write(os.urandom(size))


def guard() -> None:
    disk.guard_disk(Host(id="local"))


def write_and_cut_a_sparse_file(place: Path, count: int) -> None:
    write(place / "data" / "filler", MUCH)
    (place / "data" / "sparse").touch()
    os.truncate(place / "data" / "sparse", (1 << 40) - count * (1 << 30))


def write_below_many_directories(place: Path, count: int) -> None:
    deep = place / "data" / "/".join("0123456789")
    deep.mkdir(parents=True, exist_ok=True)
    write(place / "data" / "filler", MUCH)


def write_beside_the_data(place: Path, count: int) -> None:
    write(place / "run" / "filler", MUCH)


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
    write(branch_dir(GUILTY) / "data" / "filler", MUCH)
    write(branch_dir(INNOCENT) / "data" / "filler", MIB)
    with lock_branches(GUILTY):
        guard()
    assert (killed, stopped) == ([GUILTY], [])
    assert disk.start_refusal(GUILTY)


def run_as_guilty(script: str) -> "subprocess.Popen[bytes]":
    """Run the script of sh under the account of the branch GUILTY, in its data directory."""
    account = account_of(branch_dir(GUILTY))
    return subprocess.Popen(
        ["sh", "-c", script],
        cwd=branch_dir(GUILTY) / "data",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        user=account.uid,
        group=account.gid,
        extra_groups=[],
    )


@as_root
def test_a_deleted_file_that_is_still_open_is_seen(stopped: list[str]) -> None:
    with run_as_guilty(WRITES_UNSEEN) as writer:
        assert writer.stdin
        assert writer.stdout
        for _ in range(2):
            writer.stdin.write(b"%d\n" % MUCH)
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


def kept(pids: list[int], at: Path) -> tuple[int, bool]:
    """The bytes, and whether these are all. The tests' own process keeps empty files too."""
    found = unlinked_files(pids, at=at)
    return found.bytes, found.is_all


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests' own process has many threads, which a slow machine does not read in time."""
    monkeypatch.setattr(account_numbers, "MAX_UNLINKED_SECONDS", 60)


def test_deleted_files_that_are_only_mapped_or_sent_are_noticed(
    tmp_path: Path, unhurried: None
) -> None:
    own = [os.getpid()]
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long]
    assert kept(own, tmp_path) == (0, True)
    file = unlinked(tmp_path)
    mapped = libc.mmap(None, 4096, 1, 1, file, 0)
    assert kept(own, tmp_path) == (MIB, True)
    os.close(file)
    # A library that an upgrade has replaced is such a file too.
    expected = (MIB, True) if os.geteuid() == 0 else (0, False)
    assert kept(own, tmp_path) == expected
    libc.munmap(ctypes.c_void_p(mapped), ctypes.c_size_t(4096))
    file = unlinked(tmp_path)
    left, right = socket.socketpair()
    with left, right:
        socket.send_fds(left, [b"x"], [file])
        os.close(file)
        assert kept(own, tmp_path) == (0, False)
    assert kept(own, tmp_path) == (0, True)


def test_a_deleted_file_of_a_thread_with_descriptors_of_its_own_is_noticed(
    tmp_path: Path, unhurried: None
) -> None:
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
        assert kept([os.getpid()], tmp_path) == (MIB, True)
    finally:
        go_on.set()
        thread.join()


def test_looking_at_open_files_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(account_numbers, "MAX_UNLINKED_SECONDS", 0)
    assert kept([os.getpid()], tmp_path) == (0, False)


def test_what_cannot_be_seen_is_searched_among_those_that_cannot_be_measured(
    stopped: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "unlinked_files", lambda _, at: Unlinked(0, 0, GUILTY not in str(at)))

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
    monkeypatch.setattr(disk, "unlinked_files", lambda _, at: Unlinked(0, 0, False))
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
    # Half of its even share of what is left.
    left = replace(left, free=left.free - 5 * MIB)
    write(branch_dir(INNOCENT) / "data" / "much", 5 * MIB)
    guard()
    assert stopped == [INNOCENT]


@pytest.fixture
def look(stopped: list[str], monkeypatch: pytest.MonkeyPatch) -> Callable[[Space], None]:
    """Lets the guard look at this space. What it has stopped does not run any more."""

    def look(space: Space) -> None:
        monkeypatch.setattr(disk, "host_space", lambda: space)
        guard()
        running = {name: "ep-any" for name in (GUILTY, INNOCENT) if name not in stopped}
        monkeypatch.setattr(compute, "running_branches", lambda: running)

    monkeypatch.setattr(compute, "kill", lambda branch_id, _: stopped.append(branch_id))
    return look


def test_who_takes_the_space_before_the_first_look_is_stopped_and_nobody_else(
    stopped: list[str], look: Callable[[Space], None]
) -> None:
    for endpoint_id, branch_id in (("ep-guilty", GUILTY), ("ep-innocent", INNOCENT)):
        observation.least_size(endpoint_id, branch_id)
    look(replace(NEARLY_FULL, free=100 * MIB))
    write(branch_dir(GUILTY) / "data" / "filler", 20 * MIB)
    write(branch_dir(INNOCENT) / "data" / "little", 100_000)
    # A measurement between the jump and the look hides nothing.
    observation.least_size("ep-guilty", GUILTY)
    look(NEARLY_FULL)
    assert stopped == [GUILTY]
    # What it has taken is not back, and the others write a little.
    for _ in range(3):
        write(branch_dir(INNOCENT) / "data" / "little", 300_000)
        look(NEARLY_FULL)
    assert stopped == [GUILTY]
    # What is left does not go to anyone either, however slowly.
    for count in range(1, 16):
        write(branch_dir(INNOCENT) / "data" / "little", 2 * MIB)
        look(replace(NEARLY_FULL, free=(40 - 2 * count) * MIB))
    assert stopped == [GUILTY, INNOCENT]


def test_nobody_writes_unseen_by_restarts(
    stopped: list[str], look: Callable[[Space], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(4):
        look(NEARLY_FULL)
        monkeypatch.setattr(compute, "running_branches", dict)
        look(NEARLY_FULL)
        write(branch_dir(GUILTY) / "data" / "filler", 4 * MIB)
    assert stopped == [GUILTY]


def make_files(branch_id: str, count: int) -> None:
    place = Path(tempfile.mkdtemp(dir=branch_dir(branch_id) / "data"))
    for number in range(count):
        (place / str(number)).touch()


@pytest.mark.parametrize("was_measured", [True, False])
def test_who_takes_the_inodes_is_ended_and_nobody_else(
    stopped: list[str],
    look: Callable[[Space], None],
    was_measured: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    space = Space(1000 * MIB, 900 * MIB, 100 * MIB, 1000, 1000)
    make_files(INNOCENT, 300)
    for endpoint_id, branch_id in (("ep-guilty", GUILTY), ("ep-innocent", INNOCENT)):
        observation.least_size(endpoint_id, branch_id)
    look(space)
    # Sizes of so many files would take too long.
    monkeypatch.setattr(disk, "size_on_disk", None)
    if not was_measured:
        disk._files.rest({}, 1000)
        look(replace(space, free_files=990))
    assert stopped == []
    make_files(GUILTY, 900)
    make_files(INNOCENT, 5)
    look(replace(space, free_files=90))
    assert stopped == [GUILTY]
    for left in (88, 86):
        make_files(INNOCENT, 1)
        look(replace(space, free_files=left))
    assert stopped == [GUILTY]
    assert disk.start_refusal(GUILTY)
    assert disk.start_refusal(INNOCENT) is None


@pytest.mark.thorough
def test_who_makes_files_as_fast_as_it_can_is_ended_while_inodes_are_left(
    stopped: list[str],
    look: Callable[[Space], None],
    monkeypatch: pytest.MonkeyPatch,
    settings: Any,
) -> None:
    endless = "import os, itertools\nfor i in itertools.count():\n os.makedirs(f'x/{i}')\n"
    endless += " for j in range(1000): os.close(os.open(f'x/{i}/{j}', os.O_CREAT))"
    with mounted("ext4", size=6 << 30) as state:
        settings.STATE_DIR = state
        make_branches()
        with subprocess.Popen([sys.executable, "-c", endless], cwd=data_dir(GUILTY)) as process:

            def kill(branch_id: str, endpoint_id: str | None) -> None:
                stopped.append(branch_id)
                process.kill()

            monkeypatch.setattr(compute, "kill", kill)
            while process.poll() is None:
                look(host_space())
                make_files(INNOCENT, 1)
                time.sleep(0.5)
        assert stopped == [GUILTY]
        space = host_space()
        assert 0 < space.free_files < space.reserved_files
        # Its files remain.
        for _ in range(5):
            make_files(INNOCENT, 10)
            look(host_space())
        assert stopped == [GUILTY]


@as_root
def test_deleted_empty_files_that_are_still_open_count_as_inodes(
    stopped: list[str], look: Callable[[Space], None]
) -> None:
    space = Space(1000 * MIB, 900 * MIB, 100 * MIB, 30, 1000)
    keeps = 'for n in 3 4 5 6 7 8 9; do eval "exec $n> unseen"; rm unseen; done; echo; read end'
    look(space)
    with run_as_guilty(keeps) as process:
        assert process.stdout
        assert process.stdin
        process.stdout.readline()
        look(replace(space, free_files=23))
        process.stdin.close()
    assert stopped == [GUILTY]

"""The kernel keeps a confined program from what it does not need, and the processes of a compute
inherit nothing of root's."""

import fcntl
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

from controlplane.compute import compute
from controlplane.compute.host.accounts import Account, account_of, launch, run_as, start_as
from controlplane.compute.host.confinement import (
    can_refuse_calls,
    landlock_version,
    start_confined,
    start_restricted,
)
from controlplane.compute.pooler import PoolerUnavailable, ensure_pooler, pgbouncer
from controlplane.compute.processes.occupants import (
    StopFailed,
    end_lease,
    is_leased,
    lease,
    processes_in,
)
from controlplane.compute.processes.session import socket_dir
from tests.controlplane.local_compute import BRANCH, ENDPOINT, SPEC, branch, computes
from tests.support.processes import opened_of_root

# Prints what it could do, one word a line.
ATTEMPTS = """
import os, signal, socket, subprocess, sys
inside, outside, program, port = sys.argv[1:]
def attempt(word, act):
    try:
        act()
        print(word)
    except OSError:
        pass
def connect():
    with socket.create_connection(("127.0.0.1", int(port)), timeout=5):
        pass
attempt("written", lambda: open(inside + "/new", "w").close())
attempt("linked", lambda: (os.mkdir(inside + "/d"), os.link(inside + "/new", inside + "/d/new")))
attempt("written outside", lambda: open(outside + "/new", "w").close())
attempt("changed outside", lambda: os.truncate(outside + "/kept", 0))
attempt("read outside", lambda: open(outside + "/kept").close())
attempt("listed outside", lambda: os.listdir(outside))
attempt("moved outside", lambda: os.rename(inside + "/new", outside + "/moved"))
attempt("executed", lambda: subprocess.run([program], check=True))
attempt("executed its own", lambda: subprocess.run([inside + "/own"], check=True))
attempt("unix socket", lambda: socket.socket(socket.AF_UNIX).close())
for family in ("AF_INET", "AF_INET6", "AF_NETLINK", "AF_PACKET"):
    attempt(family, lambda: socket.socket(getattr(socket, family), socket.SOCK_DGRAM).close())
attempt("connected", connect)
attempt("signalled", lambda: os.kill(os.getppid(), 0))
attempt("read memory", lambda: open("/proc/%d/environ" % os.getppid()).close())
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
if libc.ptrace(16, os.getppid(), 0, 0) == 0:
    print("traced")
ctypes.set_errno(0)
if libc.prctl(35, 14, 0, 1, 0) and ctypes.get_errno() != 1:
    print("length of its command line chosen")
"""


# Prints the calls by which it could make a file that is setuid or setgid, and what it could not do
# although it needs to.
SET_IDS = """
import ctypes, os, struct, sys
x86_64 = os.uname().machine == "x86_64"
libc = ctypes.CDLL(None, use_errno=True)
os.chdir(sys.argv[1])
os.umask(0)
open("kept", "w").close()
kept, here = os.open("kept", os.O_RDONLY), os.open(".", os.O_RDONLY)
def call(number, *arguments):
    if libc.syscall(number, *arguments) < 0:
        raise OSError(ctypes.get_errno(), "")
def attempt(word, act):
    try:
        act()
        print(word)
    except OSError:
        pass
for number, bits in enumerate((0o4755, 0o2755, 0o6711)):
    name = "new%d" % number
    flags = os.O_CREAT | os.O_WRONLY
    how = struct.pack("QQQ", flags, bits, 0)
    attempt("chmod", lambda: os.chmod("kept", bits))
    attempt("fchmod", lambda: os.fchmod(kept, bits))
    attempt("fchmodat", lambda: os.chmod("kept", bits, dir_fd=here))
    attempt("fchmodat2", lambda: call(452, here, b"kept", bits, 0))
    attempt("openat", lambda: os.open(name + "openat", flags, bits))
    attempt("openat2", lambda: call(437, here, (name + "openat2").encode(), how, len(how)))
    attempt("unnamed", lambda: os.open(".", os.O_TMPFILE | os.O_WRONLY, bits))
    attempt("mkdirat", lambda: os.mkdir(name + "mkdirat", bits, dir_fd=here))
    attempt("mknodat", lambda: os.mknod(name + "mknodat", bits, dir_fd=here))
    if x86_64:
        attempt("open", lambda: call(2, (name + "open").encode(), flags, bits))
        attempt("creat", lambda: call(85, (name + "creat").encode(), bits))
        attempt("mkdir", lambda: call(83, (name + "mkdir").encode(), bits))
        attempt("mknod", lambda: call(133, (name + "mknod").encode(), bits | 0o100000, 0))
# Without O_CREAT the argument is no mode.
if x86_64:
    call(2, b"kept", os.O_RDONLY, 0o6755)
call(56 if not x86_64 else 257, here, b"kept", os.O_RDONLY, 0o6755)
os.chmod("kept", 0o1777)
os.mkdir("sticky", 0o1777)
os.close(os.open("usual", flags, 0o755))
"""
MAKE_SET_IDS = {
    *("chmod", "fchmod", "fchmodat", "fchmodat2", "openat", "openat2"),
    *("unnamed", "mkdirat", "mknodat"),
    *(("open", "creat", "mkdir", "mknod") if os.uname().machine == "x86_64" else ()),
}


@pytest.fixture
def port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def run(place: Path, port: int) -> set[str]:
    inside, outside = place / "inside", place / "outside"
    for one in (inside, outside):
        one.mkdir()
    (outside / "kept").write_text("kept")
    (inside / "own").write_text("#!/bin/sh\n")
    (inside / "own").chmod(0o755)
    programs = [Path(sys.executable).resolve(), *Path("/lib64").glob("ld-linux*")]
    libraries = [*map(Path, (sys.base_prefix, "/lib", "/lib64", "/usr/lib", "/etc"))]
    command: list[Path | str] = [
        programs[0],
        "-I",
        "-S",
        "-c",
        ATTEMPTS,
        inside,
        outside,
        "/usr/bin/true",
        str(port),
    ]

    def start() -> "subprocess.Popen[str]":
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
        )

    process = start_confined(
        start, read=libraries, written=[inside, Path("/dev/null")], executed=programs
    )
    said, complaints = process.communicate(timeout=60)
    assert process.returncode == 0, complaints
    return set(said.splitlines())


def confined_to_all(start: Callable[[], str]) -> str:
    return start_confined(start, read=[Path("/")], written=[Path("/")], executed=[Path("/")])


@pytest.mark.skipif(not landlock_version(), reason="this kernel has no Landlock")
def test_it_reaches_nothing_but_its_paths(tmp_path: Path, port: int) -> None:
    assert run(tmp_path, port) == {"written", "linked", "unix socket"}
    assert (tmp_path / "outside/kept").read_text() == "kept"


def test_without_landlock_it_still_has_no_sockets(
    tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("controlplane.compute.host.confinement.landlock_version", lambda: 0)
    found = run(tmp_path, port)
    assert "read outside" in found
    assert not found & {"AF_INET", "AF_INET6", "AF_NETLINK", "connected", "traced"}
    assert "no Landlock" in caplog.text


@pytest.mark.skipif(not can_refuse_calls(), reason="this kernel can refuse no system calls")
@pytest.mark.parametrize("confine", [None, start_restricted, confined_to_all])
def test_it_makes_no_setuid_and_no_setgid_files(
    confine: Callable[[Callable[[], str]], str] | None, tmp_path: Path
) -> None:
    command = [sys.executable, "-I", "-S", "-c", SET_IDS, str(tmp_path)]

    def start() -> str:
        return str(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)

    said = set((confine(start) if confine else start()).split())
    found = [entry.name for entry in tmp_path.iterdir() if entry.stat().st_mode & 0o6000]
    if confine:
        assert (said, found) == (set(), [])
    else:
        # Linux 6.6 has fchmodat2.
        assert MAKE_SET_IDS - {"fchmodat2"} <= said
        assert found


@pytest.mark.skipif(not can_refuse_calls(), reason="this kernel can refuse no system calls")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root has other accounts")
def test_no_program_under_a_branchs_account_makes_setuid_files() -> None:
    account = Account(50_778, 50_778)
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        os.chown(made, account.uid, account.gid)
        words = 'open(F, ">$ARGV[0]") or die; print chmod(06755, $ARGV[0]) ? "made" : "$!"'
        command = ["perl", "-e", words, f"{made}/file"]
        pipe: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        said = [run_as(account, command, **pipe).stdout]
        for start in (start_as, launch):
            with start(account, command, **pipe) as process:
                said.append(process.communicate()[0])
    assert said == [b"Operation not permitted"] * 3


def test_the_caller_stays_free(tmp_path: Path) -> None:
    name = start_confined(lambda: threading.current_thread().name, read=[], written=[], executed=[])
    assert name != threading.current_thread().name
    (tmp_path / "new").write_text("written")
    socket.socket(socket.AF_INET).close()
    assert subprocess.run(["/bin/true"], check=False).returncode == 0
    assert os.listdir("/")


__all__ = ["branch", "computes"]  # fixtures

# Has the lease that it inherits to itself, as long as it lives.
KEEPS_THE_LEASE = """
import fcntl, sys
fcntl.flock(int(sys.argv[1]), fcntl.LOCK_EX)
print("kept", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="without root, all files are of one account")
@pytest.mark.skipif(pgbouncer() is None, reason="PgBouncer is not installed")
def test_a_compute_has_no_file_of_roots_open_for_writing(branch: Path) -> None:
    compute.start(SPEC)
    ensure_pooler(BRANCH, socket_dir(ENDPOINT), roles=["neondb_owner"])
    programs = processes_in(branch)
    assert {process.name() for process in programs} == {"postgres", "pgbouncer"}
    for process in programs:
        assert process.uids().real == account_of(branch).uid
        assert Path(settings.STATE_DIR) / "locks" / f"{BRANCH}.running" in opened_of_root(process)
        writable = {path for path, can_write in opened_of_root(process).items() if can_write}
        # Only root can open its pipe anew, and who reads from it misses words of its own log.
        assert {path.name for path in writable} <= {"null", "postgres.pipe", "pgbouncer.pipe"}


def test_a_compute_that_keeps_its_lease_to_itself_blocks_nobody(branch: Path) -> None:
    with lease(BRANCH) as inherited:
        child = subprocess.Popen(
            [sys.executable, "-c", KEEPS_THE_LEASE, str(inherited)],
            pass_fds=[inherited],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
    with child:
        assert child.stdout
        assert child.stdout.readline() == b"kept\n"
        began = time.monotonic()
        assert is_leased(BRANCH)
        with pytest.raises(StopFailed, match="does not share its lease"), lease(BRANCH):
            pass
        if pgbouncer() is not None:
            with pytest.raises(PoolerUnavailable, match="does not share its lease"):
                ensure_pooler(BRANCH, socket_dir(ENDPOINT), roles=[])
        assert time.monotonic() - began < 10
        child.kill()
    assert not is_leased(BRANCH)
    end_lease(BRANCH)


def test_a_look_at_a_lease_prevents_no_start(branch: Path) -> None:
    with lease(BRANCH) as held:
        # As a look from another thread, which lasts for a moment only.
        fcntl.flock(held, fcntl.LOCK_EX)
        looking = subprocess.Popen(["sleep", "0.2"], pass_fds=[held])
    with looking, lease(BRANCH):
        assert looking.poll() is not None
    end_lease(BRANCH)

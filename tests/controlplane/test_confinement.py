"""The kernel keeps a confined program from what it does not need."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.compute.confinement import landlock_version, started_within

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
libc = ctypes.CDLL(None)
if libc.ptrace(16, os.getppid(), 0, 0) == 0:
    print("traced")
"""


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

    process = started_within(
        start, read=libraries, written=[inside, Path("/dev/null")], executed=programs
    )
    said, complaints = process.communicate(timeout=60)
    assert process.returncode == 0, complaints
    return set(said.splitlines())


@pytest.mark.skipif(not landlock_version(), reason="this kernel has no Landlock")
def test_it_reaches_nothing_but_its_paths(tmp_path: Path, port: int) -> None:
    assert run(tmp_path, port) == {"written", "linked", "unix socket"}
    assert (tmp_path / "outside/kept").read_text() == "kept"


def test_without_landlock_it_still_has_no_sockets(
    tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("controlplane.compute.confinement.landlock_version", lambda: 0)
    found = run(tmp_path, port)
    assert "read outside" in found
    assert not found & {"AF_INET", "AF_INET6", "AF_NETLINK", "connected", "traced"}
    assert "no Landlock" in caplog.text


def test_the_caller_stays_free(tmp_path: Path) -> None:
    name = started_within(lambda: threading.current_thread().name, read=[], written=[], executed=[])
    assert name != threading.current_thread().name
    (tmp_path / "new").write_text("written")
    socket.socket(socket.AF_INET).close()
    assert subprocess.run(["/bin/true"], check=False).returncode == 0
    assert os.listdir("/")

"""Starts, stops and recoveries that take long or hang: what makes progress gets its time, and what
hangs is ended with all its processes.

The computes here are started in this process, without the service.
"""

import os
import resource
import signal
import socket
import subprocess
import threading
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from controlplane.compute import compute
from controlplane.compute.host.accounts import account_of, running_as, set_owner
from controlplane.compute.host.binaries import postgres_bin
from controlplane.compute.host.patience import OutOfPatience, patience, readable
from controlplane.compute.host.steps import Step, recording
from controlplane.compute.processes import process
from controlplane.compute.processes.limits import CGROUPS
from controlplane.compute.processes.occupants import is_alive, kill, lease, processes_in
from controlplane.compute.processes.session import session, socket_dir
from tests.controlplane.local_compute import BRANCH, ENDPOINT, SPEC, branch, computes, postmaster
from tests.support.waiting import wait_for

pytestmark = pytest.mark.filterwarnings("error")
__all__ = ["branch", "computes"]  # fixtures


class TestHangingStart:
    """A start that hangs before postmaster.pid exists: Postgres waits to read its settings from a
    pipe."""

    @pytest.fixture
    def hanging(self, branch: Path) -> Iterator[Path]:
        settings_file = branch / "data" / "postgresql.auto.conf"
        kept = settings_file.rename(settings_file.with_name("kept.conf"))
        os.mkfifo(settings_file)
        set_owner(settings_file, account_of(branch))
        yield branch
        settings_file.unlink()
        kept.rename(settings_file)

    @pytest.mark.thorough
    def test_it_leaves_no_process(self, hanging: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(process, "START_TIMEOUT", 0.5)
        monkeypatch.setattr(process, "CHECK_TIMEOUT", 0.5)
        with pytest.raises(process.StartFailed, match="did not"):
            compute.start(SPEC)
        assert processes_in(hanging) == []
        assert list(CGROUPS.glob(f"*/perch/{ENDPOINT}")) == []

    @pytest.mark.thorough
    def test_it_is_given_up_when_its_action_runs_out_of_time(self, hanging: Path) -> None:
        with pytest.raises(OutOfPatience), patience(1):
            compute.start(SPEC)
        assert processes_in(hanging) == []

    @pytest.mark.thorough
    def test_a_start_whose_worker_was_killed_is_ended_by_the_next(self, hanging: Path) -> None:
        with lease(BRANCH) as inherited:
            child = subprocess.Popen(
                [postgres_bin() / "postgres", "-D", hanging / "data"],
                pass_fds=[inherited],
                stderr=subprocess.DEVNULL,
                **running_as(account_of(hanging)),
            )
        wait_for(lambda: processes_in(hanging), "the hanging start")
        assert not (hanging / "data" / "postmaster.pid").exists()
        compute.stop(BRANCH)
        assert child.wait(5) == -signal.SIGKILL


def test_a_check_of_settings_reads_a_limited_number_of_errors(branch: Path) -> None:
    """The account of a compute that was taken over writes any file in the data directory."""
    settings_file = branch / "data" / "postgresql.auto.conf"
    kept = settings_file.read_text()
    settings_file.write_text("no_such_setting = 'x'\n" * 100_000)
    tracemalloc.start()
    try:
        with pytest.raises(compute.ConfigurationRefused, match="no_such_setting"):
            compute.start(SPEC)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        settings_file.write_text(kept)
    assert most < 5_000_000


class TestStops:
    @pytest.mark.thorough
    def test_a_compute_that_cannot_be_continued_is_killed_soon(self, branch: Path) -> None:
        """It is stopped by a debugger, so a signal does not continue it."""
        compute.start(SPEC)
        found = postmaster()
        with held(found):
            began = time.monotonic()
            compute.stop(BRANCH)
            assert time.monotonic() - began < 10
        assert not is_alive(found)

    @pytest.mark.thorough
    def test_a_long_shutdown_gets_enough_time(
        self, branch: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(process, "STOP_TIMEOUTS", ((signal.SIGINT, 0.3), (signal.SIGQUIT, 0.3)))
        compute.start(SPEC)
        with session(socket_dir(ENDPOINT)) as connection:
            connection.execute("CREATE TABLE public.dirty (text text)")
            connection.execute(
                "INSERT INTO public.dirty SELECT repeat('x', 900) FROM generate_series(1, 110000)"
            )
        with throttled(branch, "checkpointer"), patience(0.5):
            began = time.monotonic()
            compute.stop(BRANCH)
            took = time.monotonic() - began
        assert _state_of(branch) == "shut down", f"it was cut short after {took:.1f} s"
        assert took > 0.5, "too quick to show anything"


class TestRecovery:
    @pytest.mark.thorough
    def test_recovery_may_take_longer_than_the_bound(
        self, branch: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(process, "START_TIMEOUT", 0.5)
        compute.start(SPEC)
        with session(socket_dir(ENDPOINT)) as connection:
            connection.execute("CREATE TABLE public.kept (number int PRIMARY KEY)")
            connection.execute("INSERT INTO public.kept SELECT generate_series(1, 600000)")
        kill(processes_in(branch))
        parts: list[Step] = []
        with throttled(branch, "startup"), patience(1.0), recording(parts):
            began = time.monotonic()
            compute.start(SPEC)
            took = time.monotonic() - began
        assert took > 1.2, "too quick to show anything"
        with session(socket_dir(ENDPOINT)) as connection:
            assert connection.execute("SELECT count(*) FROM public.kept").fetchone() == (600000,)
        assert [part.name for part in parts] == ["starting", "recovering", "ready"]
        assert 1 << 20 < parts[1].detail["bytes_left"] <= parts[1].detail["bytes"]


@contextmanager
def throttled(branch: Path, role: str) -> Iterator[None]:
    """Slow the Postgres process with that role, as soon as it exists: it runs for a small part of
    the time."""
    over, holding = threading.Event(), threading.Event()

    def in_that_role() -> list[psutil.Process]:
        found = []
        for one in processes_in(branch / "data"):
            with suppress(psutil.NoSuchProcess):
                if role in " ".join(one.cmdline()):
                    found.append(one)
        return found

    def slow() -> None:
        while not over.is_set():
            for one in in_that_role():
                with suppress(psutil.NoSuchProcess):
                    hold(one)
            over.wait(0.001)

    def hold(one: psutil.Process) -> None:
        while not over.is_set() and is_alive(one):
            one.suspend()
            holding.set()
            over.wait(0.1)
            one.resume()
            over.wait(0.001)

    thread = threading.Thread(target=slow)
    thread.start()
    try:
        if in_that_role():
            holding.wait(10)
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def held(found: psutil.Process) -> Iterator[None]:
    """Stop the process again each time it was continued."""
    over = threading.Event()

    def hold() -> None:
        while not over.is_set():
            with suppress(psutil.NoSuchProcess):
                found.suspend()
            over.wait(0.0005)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _state_of(branch: Path) -> str:
    """Return the cluster's state according to Postgres's control file."""
    told: str = subprocess.run(
        [postgres_bin() / "pg_controldata", "-D", branch / "data"],
        capture_output=True,
        text=True,
        check=True,
        **running_as(account_of(branch)),
    ).stdout
    (line,) = [line for line in told.splitlines() if line.startswith("Database cluster state")]
    return line.partition(":")[2].strip()


@pytest.fixture
def many_files() -> Iterator[None]:
    """More open files than `select` can wait for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(2048, hard)), hard))
    with ExitStack() as opened:
        for _ in range(1030):
            opened.enter_context(open(os.devnull))
        yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_waits_work_with_many_open_files(many_files: None) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert readable(ours, theirs, timeout=0.01) == []
        theirs.sendall(b"x")
        assert readable(ours, theirs) == [ours]
        theirs.close()
        assert readable(ours.fileno(), timeout=0) == [ours.fileno()]


def test_settings_are_checked_with_many_open_files(many_files: None, branch: Path) -> None:
    data = branch / "data"
    assert process.check_configuration(data, data / "postgresql.conf") is None

"""Processes of a compute that was taken over cannot hold up what ends them: by seeming to work for
ever, by stopping the platform's programs, or by ending their first thread."""

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from controlplane.compute import compute, pooler
from controlplane.compute.host.account_numbers import processes_by_number
from controlplane.compute.host.accounts import MAX_FILES, Account, launched_as, start_as
from controlplane.compute.processes import account_processes, process
from controlplane.compute.processes.occupants import StopFailed, is_alive
from tests.support.waiting import wait_for

NUMBER = 50_779
ACCOUNT = Account(NUMBER, NUMBER)
WORKS = """
import signal
for one in (signal.SIGINT, signal.SIGQUIT):
    signal.signal(one, signal.SIG_IGN)
print("ready", flush=True)
while True:
    pass
"""
STOPS_ALL = "kill 'STOP', -1 while 1"
# Ends its first thread alone: 60 and 93 are the numbers of `exit`, which ends one thread.
HIDES = """
import ctypes, os, platform, sys, threading, time
os.setresuid(*[int(sys.argv[1])] * 3)
threading.Thread(target=time.sleep, args=[60]).start()
ctypes.CDLL(None).syscall(60 if platform.machine() == "x86_64" else 93, 0)
"""
# What another user's process has of an account after it has executed a setuid program of it.
WITH_IDS = """
import os, sys, time
os.setresuid(*map(int, sys.argv[1:]))
print("ready", flush=True)
time.sleep(60)
"""
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has other accounts")


@contextmanager
def running(*command: str, **options: Any) -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(command, **options) as child:
        try:
            yield child
        finally:
            child.kill()


def ends(act: Callable[[], object], *, timeout: float = 20) -> bool:
    """Whether the call returns in time; it may hang for good."""
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    thread.join(timeout)
    return not thread.is_alive()


def test_a_stop_has_a_bound_whatever_progress_there_seems_to_be(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    killed: list[Path] = []
    with running(sys.executable, "-c", WORKS, stdout=subprocess.PIPE) as child:
        assert child.stdout
        assert child.stdout.readline() == b"ready\n"
        found = psutil.Process(child.pid)
        monkeypatch.setattr(process, "running_postmaster", lambda data: found)
        monkeypatch.setattr(process, "end_processes_in", killed.append)
        assert ends(lambda: process.stop_postgres(tmp_path, timeout=0.5), timeout=5)
    assert killed == [tmp_path]


def test_what_a_list_of_processes_misses_is_ended_by_the_group_and_the_account(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise StopFailed("the processes do not exit")

    ended: list[str] = []
    monkeypatch.setattr(compute, "running_endpoint", lambda branch: "ep-taken")
    for name in ("disconnect_clients", "stop_pooler", "_end_leftovers", "forget_endpoint"):
        monkeypatch.setattr(compute, name, lambda *_: None)
    monkeypatch.setattr(compute, "stop_postgres", fail)
    monkeypatch.setattr(compute, "has_processes", lambda place: True)
    monkeypatch.setattr(compute, "end_group", ended.append)
    for name in ("end_account_of", "end_processes_in"):
        monkeypatch.setattr(compute, name, lambda place: ended.append(place.name))
    compute.stop("br-taken")
    assert ended == ["ep-taken", "br-taken", "br-taken"]


def test_pooled_clients_that_leave_one_by_one_are_not_waited_for_without_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(pooler, "MAX_LEAVE_TIME", 0.3)
    left = iter(range(5000, 0, -1))
    monkeypatch.setattr(pooler, "client_counts", lambda: Counter({tmp_path: next(left)}))
    assert not pooler.wait_until_left(tmp_path, stall_timeout=1)
    assert next(left) > 4900


@as_root
class TestStoppedPrograms:
    @pytest.fixture(autouse=True)
    def stops_all(self) -> Iterator[None]:
        with running("perl", "-e", STOPS_ALL, user=NUMBER, group=NUMBER, extra_groups=[]):
            yield
            for pid in processes_by_number().get(NUMBER, []):
                os.kill(pid, signal.SIGKILL)

    def test_an_account_that_stops_what_ends_it_is_ended(self) -> None:
        assert ends(lambda: account_processes._end_account(NUMBER))
        assert NUMBER not in processes_by_number()

    def test_a_program_that_is_stopped_does_not_stop_its_starter(self) -> None:
        def start_some() -> None:
            for _ in range(30):
                with start_as(ACCOUNT, ["/bin/sleep", "60"]) as child:
                    child.kill()

        assert ends(start_some)


@as_root
def test_a_process_whose_first_thread_has_ended_is_seen_and_ended() -> None:
    with running(sys.executable, "-c", HIDES, str(NUMBER)) as child:
        found = psutil.Process(child.pid)
        wait_for(lambda: found.status() == psutil.STATUS_ZOMBIE, "the end of its first thread")
        assert is_alive(found)
        assert processes_by_number()[NUMBER] == [child.pid]
        account_processes._end_account(NUMBER)
        assert not is_alive(found)
        assert NUMBER not in processes_by_number()


@contextmanager
def with_ids(*ids: int) -> Iterator["subprocess.Popen[bytes]"]:
    command = (sys.executable, "-c", WITH_IDS, *map(str, ids))
    with running(*command, stdout=subprocess.PIPE) as child:
        assert child.stdout
        assert child.stdout.readline() == b"ready\n"
        yield child


@as_root
def test_a_process_that_has_only_the_effective_id_of_an_account_is_ended() -> None:
    with with_ids(1500, NUMBER, 1500) as child, with_ids(1500, 1500, 1500) as other:
        account_processes._end_account(NUMBER)
        assert NUMBER not in processes_by_number()
        assert child.wait() == -signal.SIGKILL
        assert other.poll() is None


@as_root
def test_a_process_of_roots_that_has_taken_an_effective_id_for_a_while_is_not_ended() -> None:
    with with_ids(0, NUMBER, 0) as child:
        account_processes._kill_others(NUMBER)
        assert child.poll() is None


@as_root
def test_each_process_of_a_compute_may_open_a_limited_number_of_files() -> None:
    with launched_as(ACCOUNT, ["sh", "-c", "ulimit -Hn"], most_processes=4000) as launched:
        said = subprocess.run(stdout=subprocess.PIPE, check=True, **launched).stdout
    assert 0 < int(said) <= MAX_FILES

"""No process that the worker has started stays a zombie, however many there are."""

import errno
import os
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from controlplane.compute.host import reaping
from controlplane.compute.host.reaping import reap
from tests.support.waiting import wait_for

MANY = 20
Child = subprocess.Popen[bytes]


@pytest.fixture(autouse=True)
def watcher() -> None:
    """Created now, so that no test counts its descriptors."""
    reaping._watcher()


@pytest.fixture
def children() -> Iterator[list[Child]]:
    started = [subprocess.Popen(["sleep", "600"]) for _ in range(MANY)]
    yield started
    for child in started:
        child.kill()
        child.wait()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def gone(children: list[Child]) -> bool:
    """Read the processes from /proc, because asking a child for its status would reap it."""
    return not any(psutil.pid_exists(child.pid) for child in children)


def test_one_thread_reaps_all_of_them(children: list[Child]) -> None:
    threads, open_before = threading.active_count(), descriptors()
    for child in children:
        reap(child)
    assert threading.active_count() == threads
    for child in children:
        child.kill()
    wait_for(lambda: gone(children), "all are reaped")
    assert {child.returncode for child in children} == {-9}
    wait_for(lambda: descriptors() == open_before, "no descriptor is left")


def test_a_child_that_has_ended_already(children: list[Child]) -> None:
    first, second = children[:2]
    first.kill()
    wait_for(lambda: psutil.Process(first.pid).status() == psutil.STATUS_ZOMBIE, "its end")
    reap(first)
    wait_for(lambda: gone([first]), "it is reaped")
    second.kill()
    second.wait()
    reap(second)
    assert second.returncode == -9


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EMFILE])
def test_without_pidfds(children: list[Child], monkeypatch: Any, number: int) -> None:
    def refuse(pid: int) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pidfd_open", refuse)
    for child in children:
        reap(child)
        child.kill()
    wait_for(lambda: gone(children), "all are reaped")

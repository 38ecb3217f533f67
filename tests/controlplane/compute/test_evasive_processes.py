"""Processes of a compute that was taken over cannot hold up what ends them: by seeming to work for
ever, by stopping the platform's programs, or by ending their first thread."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import pytest

from controlplane.compute.host.account_numbers import processes_by_number
from controlplane.compute.processes import account_processes
from controlplane.compute.processes.occupants import is_alive
from tests.support.waiting import wait_for

NUMBER = 50_779
# Ends its first thread alone: 60 and 93 are the numbers of `exit`, which ends one thread.
HIDES = """
import ctypes, os, platform, sys, threading, time
os.setresuid(*[int(sys.argv[1])] * 3)
threading.Thread(target=time.sleep, args=[60]).start()
ctypes.CDLL(None).syscall(60 if platform.machine() == "x86_64" else 93, 0)
"""
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has other accounts")


@contextmanager
def running(*command: str, **options: Any) -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(command, **options) as child:
        try:
            yield child
        finally:
            child.kill()


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

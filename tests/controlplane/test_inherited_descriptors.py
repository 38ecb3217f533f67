"""What the processes of a compute inherit from root. Whoever takes one over has it too."""

import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from django.conf import settings

from controlplane.compute import compute
from controlplane.compute.accounts import account_of
from controlplane.compute.occupants import StopFailed, end_lease, is_leased, lease, processes_in
from controlplane.compute.pooler import PoolerUnavailable, ensure_pooler, pgbouncer
from controlplane.compute.session import socket_dir
from tests.controlplane.local_compute import BRANCH, ENDPOINT, SPEC, branch, computes
from tests.support.processes import opened_of_root

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

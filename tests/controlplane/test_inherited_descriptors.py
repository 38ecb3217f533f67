"""What the processes of a compute inherit from root. Whoever takes one over has it too."""

import fcntl
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from controlplane.compute import compute
from controlplane.compute.accounts import account_of
from controlplane.compute.occupants import (
    StopFailed,
    end_lease,
    is_leased,
    lease,
    processes_in,
)
from controlplane.compute.pooler import PoolerUnavailable, ensure_pooler, pgbouncer
from controlplane.compute.session import socket_dir
from tests.controlplane.local_compute import BRANCH, ENDPOINT, SPEC, branch, computes

__all__ = ["branch", "computes"]  # fixtures

# Has the lease that it inherits to itself, as long as it lives.
KEEPS_THE_LEASE = """
import fcntl, sys
fcntl.flock(int(sys.argv[1]), fcntl.LOCK_EX)
print("kept", flush=True)
sys.stdin.read()
"""


def opened(process: psutil.Process) -> dict[str, tuple[os.stat_result, int]]:
    """By path, what the process has open, and how."""
    found = {}
    for one in Path(f"/proc/{process.pid}/fd").iterdir():
        flags = Path(f"/proc/{process.pid}/fdinfo/{one.name}").read_text().splitlines()[1]
        found[os.readlink(one)] = (one.stat(), int(flags.split()[1], 8))
    return found


@pytest.mark.skipif(os.geteuid() != 0, reason="without root, all files are of one account")
@pytest.mark.skipif(pgbouncer() is None, reason="PgBouncer is not installed")
def test_a_compute_has_no_file_of_roots_open_for_writing(branch: Path) -> None:
    account = account_of(branch)
    compute.start(SPEC)
    ensure_pooler(BRANCH, socket_dir(ENDPOINT), roles=["neondb_owner"])
    programs = processes_in(branch)
    assert {process.name() for process in programs} == {"postgres", "pgbouncer"}
    for process in programs:
        of_root = {
            path: (status, flags & os.O_ACCMODE)
            for path, (status, flags) in opened(process).items()
            if not stat.S_ISSOCK(status.st_mode) and path.startswith("/")
            if status.st_uid != account.uid
        }
        # Only root can open this pipe anew, and whoever reads from it misses words of its own log.
        pipes = {path for path, (status, _) in of_root.items() if stat.S_ISFIFO(status.st_mode)}
        assert all(path.endswith(".pipe") for path in pipes)
        writable = {path for path, (_, mode) in of_root.items() if mode != os.O_RDONLY}
        assert writable <= {"/dev/null", *pipes}
        assert f"{BRANCH}.running" in {Path(path).name for path in of_root}


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

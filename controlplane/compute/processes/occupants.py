"""Finds the processes that work in a branch's directory, by proof, never by what a file says.

A process belongs to a compute if three things hold: it runs under the branch's account
(`owner_of`), its program is Postgres, PgBouncer or pg_upgrade, and it works in the directory or was
started for it. Process ids are reused, and the files that name them belong to the computes'
account.

Looking through all of a host's processes takes some microseconds for each. The branch's lease tells
at once whether there is anything to look for. The lease is a file of ours which every process of a
compute inherits, open for reading and locked. All their children inherit it too, and the kernel
releases the lock when the last of them ends.
"""

import fcntl
import functools
import os
import stat
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from django.conf import settings

from controlplane.compute.host import patience
from controlplane.compute.host.binaries import majors, postgres_bin
from controlplane.compute.host.filesystem import Listing
from controlplane.compute.host.foreign_files import process_file
from controlplane.compute.host.tree import open_file
from controlplane.process_accounts import acts_as_root

# Seconds that processes may take to end after they were killed.
KILL_TIMEOUT = 5.0
END_TIMEOUT = 1.0  # seconds
SUFFIX = ".running"
_leases = Listing(lambda name: name.endswith(SUFFIX))
# The working directory in which every program of a compute is started (`accounts.running_as`).
STARTED_IN = "/"


class StopFailed(Exception):
    """Processes that work in a directory did not end even after SIGKILL."""


@contextmanager
def lease(branch_id: str) -> Iterator[int]:
    """Yields the descriptor that processes of the branch's compute should inherit.

    The caller holds the branch's lock. Raises StopFailed if a process of the compute lets no other
    one share the lease, as one that was taken over may do.
    """
    with open_file(_lease_file(branch_id), os.O_RDONLY | os.O_CREAT, 0o600) as descriptor:
        deadline = time.monotonic() + END_TIMEOUT
        while not _locked(descriptor, fcntl.LOCK_SH):
            if time.monotonic() > deadline:
                raise StopFailed("a process of the compute does not share its lease")
            time.sleep(0.001)
        yield descriptor


def is_leased(branch_id: str) -> bool:
    """True if any process of the branch's compute is alive."""
    with suppress(FileNotFoundError), open_file(_lease_file(branch_id), os.O_RDONLY) as descriptor:
        return not _locked(descriptor, fcntl.LOCK_EX)
    return False


def _locked(descriptor: int, kind: int) -> bool:
    """Lock the file, unless another lock is in the way. Returns whether it is locked."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def wait_for_lease(branch_id: str) -> bool:
    """Wait until no process of the branch's compute is alive; False if that takes too long.

    A process that is just ending has no working directory any more, so it is not found, but it
    still holds the lease.
    """
    deadline = time.monotonic() + END_TIMEOUT
    while is_leased(branch_id):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True


def leased_branches() -> set[str]:
    """The branches of this host with a compute of which any process is alive."""
    # The directory has a lock of every branch, and this is asked every two seconds.
    names = _leases.names(Path(settings.STATE_DIR) / "locks")
    ids = [name.removesuffix(SUFFIX) for name in names]
    return {branch_id for branch_id in ids if is_leased(branch_id)}


def end_lease(branch_id: str) -> None:
    """Remove the lease of a compute that is gone. The caller holds the branch's lock."""
    _lease_file(branch_id).unlink(missing_ok=True)


def processes_in(place: Path) -> list[psutil.Process]:
    """Every process that works in the directory `place` or below it, or was started for anything
    there. If `place` is a file: every process that was started for it."""
    owner = owner_of(place)
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and _is_for(entry, place, owner):
            with suppress(psutil.NoSuchProcess):
                process = psutil.Process(int(entry))
                if _is_occupant(process, owner) and is_alive(process):
                    found.append(process)
    return found


def occupant(pid: int, place: Path) -> psutil.Process | None:
    """The process with that id, if it works in `place` or was started for it; otherwise None."""
    owner = owner_of(place)
    try:
        process = psutil.Process(pid)
        if _is_for(str(pid), place, owner) and _is_occupant(process, owner):
            return process if is_alive(process) else None
    except psutil.Error:
        pass
    return None


def end_processes_in(place: Path) -> None:
    """Kill every process of `place`, and those that they fork meanwhile.

    Raises StopFailed.
    """
    deadline = time.monotonic() + KILL_TIMEOUT
    while found := processes_in(place):
        if time.monotonic() > deadline:
            pids = ", ".join(str(process.pid) for process in found)
            raise StopFailed(f"the processes {pids} of {place.name} do not exit")
        kill(found)


def kill(processes: Collection[psutil.Process]) -> None:
    """Kill the processes, and wait up to a second for their end."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    have_ended(processes, timeout=1)


def have_ended(processes: Collection[psutil.Process], *, timeout: float) -> bool:
    """Wait for the end of all processes, at most `timeout` seconds; True if all have ended."""
    patience.before_waits()
    deadline = time.monotonic() + timeout
    while any(map(is_alive, processes)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True


def is_alive(process: psutil.Process) -> bool:
    """True if any thread of the process runs. Once its first thread has ended, it is called a
    zombie, although others may run on."""
    try:
        if not process.is_running():
            return False
        return process.status() != psutil.STATUS_ZOMBIE or process.num_threads() > 1
    except psutil.NoSuchProcess:
        return False


def owner_of(place: Path) -> int | None:
    """The account whose processes may be ended in this place; None if there is no such account.

    If root owns the place, the result is the id of its group, which for a branch's directory is the
    branch's account (`branch_data`). If this process acts as root, the result is never 0.
    """
    if not acts_as_root():
        return os.geteuid()
    try:
        found = place.lstat()
    except FileNotFoundError:
        return owner_of(place.parent) if place.parent.name.startswith("br-") else None
    # A link would lead to a place that does not belong to the computes.
    if stat.S_ISLNK(found.st_mode):
        return None
    return found.st_uid or found.st_gid or None


def _is_for(pid: str, place: Path, owner: int | None) -> bool:
    """True if the process works in the place, or its command line names something there."""
    try:
        works_in = os.readlink(f"/proc/{pid}/cwd").removesuffix(" (deleted)")
        if works_in == str(place) or works_in.startswith(f"{place}/"):
            return True
        # PgBouncer, and a Postgres that has not changed to its directory yet, are still where they
        # were started. The command line of any other process need not be read.
        if (
            works_in != STARTED_IN
            or os.stat(f"/proc/{pid}").st_uid != owner
            or not _runs_a_program_of_computes(pid)
        ):
            return False
    except OSError:
        return False
    arguments = b"\0%b\0" % process_file(pid, "cmdline")
    return any(b"\0%b%b" % (os.fsencode(place), end) in arguments for end in (b"\0", b"/"))


def _is_occupant(process: psutil.Process, owner: int | None) -> bool:
    try:
        return _runs_a_program_of_computes(process.pid) and set(process.uids()) == {owner}
    except OSError:
        return False


def _runs_a_program_of_computes(pid: int | str) -> bool:
    """Raises OSError."""
    program = os.readlink(f"/proc/{pid}/exe").removesuffix(" (deleted)")
    return Path(program).name in _programs()


@functools.cache
def _programs() -> frozenset[str]:
    """The names of the programs that computes run."""
    of_postgres = {(postgres_bin(major) / "postgres").resolve().name for major in majors()}
    return frozenset({*of_postgres, "pgbouncer", "pg_upgrade"})


def _lease_file(branch_id: str) -> Path:
    return Path(settings.STATE_DIR) / "locks" / f"{branch_id}{SUFFIX}"

"""Who works in a branch's directory: found by proof, never by what a file says.

A process is a compute's if three things hold: the directory's owner runs it, its program is
Postgres or PgBouncer, and it works in the directory or was started for it. Process ids come
round again, and the files that name them belong to the computes' account.

To look through all of a host's processes takes some microseconds for each. Whether there is
anybody to look for is answered at once by the branch's lease: a file of ours that is given, open
and locked, to every process of a compute. It is passed on to all that these fork, and the kernel
lets go of the lock with the last of them.
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

from controlplane.compute.binaries import postgres_bin

# Seconds that processes may take to vanish once they were killed.
KILLED_BOUND = 5.0
ENDING_BOUND = 1.0  # seconds
SUFFIX = ".running"
# Where every program of a compute is started (`accounts.running_as`).
STARTED_IN = "/"


class StopFailed(Exception):
    """What works in a directory could not even be killed."""


@contextmanager
def lease(branch_id: str) -> Iterator[int]:
    """The descriptor that processes of the branch's compute are to inherit.

    The caller holds the branch's lock.
    """
    descriptor = os.open(_lease_file(branch_id), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield descriptor
    finally:
        os.close(descriptor)


def is_leased(branch_id: str) -> bool:
    """Whether any process of the branch's compute lives."""
    try:
        descriptor = os.open(_lease_file(branch_id), os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(descriptor)


def wait_for_lease(branch_id: str) -> bool:
    """Wait until no process of the branch's compute lives; False where it takes too long.

    One that is just ending works nowhere any more, and is not found, but still holds the lease.
    """
    deadline = time.monotonic() + ENDING_BOUND
    while is_leased(branch_id):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True


def leased_branches() -> set[str]:
    """The branches of this host of whose computes any process lives."""
    places = (Path(settings.STATE_DIR) / "locks").glob(f"*{SUFFIX}")
    return {place.stem for place in places if is_leased(place.stem)}


def end_lease(branch_id: str) -> None:
    """Forget the lease of a compute that is gone. The caller holds the branch's lock."""
    _lease_file(branch_id).unlink(missing_ok=True)


def processes_in(place: Path) -> list[psutil.Process]:
    """Every process that works in the directory `place` or below, or was started for what lies
    there; or that was started for the file `place`."""
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
    """The process of that id, if it is one that works in `place` or was started for it."""
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
    deadline = time.monotonic() + KILLED_BOUND
    while found := processes_in(place):
        if time.monotonic() > deadline:
            pids = ", ".join(str(process.pid) for process in found)
            raise StopFailed(f"the processes {pids} of {place.name} do not end")
        kill(found)


def kill(processes: Collection[psutil.Process]) -> None:
    """Kill them all, and wait a moment for their end."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    have_ended(processes, within=1)


def have_ended(processes: Collection[psutil.Process], *, within: float) -> bool:
    """Wait for the end of them all, `within` so many seconds; whether it came."""
    deadline = time.monotonic() + within
    while any(map(is_alive, processes)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True


def is_alive(process: psutil.Process) -> bool:
    """Whether the process runs; one that has ended but was not waited for does not."""
    try:
        return bool(process.is_running()) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def owner_of(place: Path) -> int | None:
    """The account whose processes may be ended for the place's sake; None for nobody's.

    Of what is root's in a branch's directory it is the group, which is the branch's account
    (`branch_data`). Where we are root it is never root.
    """
    if os.geteuid() != 0:
        return os.geteuid()
    try:
        found = place.lstat()
    except FileNotFoundError:
        return owner_of(place.parent) if place.parent.name.startswith("br-") else None
    # A link would have us look at a place that is none of the computes'.
    if stat.S_ISLNK(found.st_mode):
        return None
    return found.st_uid or found.st_gid or None


def _is_for(pid: str, place: Path, owner: int | None) -> bool:
    """Whether the process works in the place, or its command line names what lies there."""
    try:
        works_in = os.readlink(f"/proc/{pid}/cwd").removesuffix(" (deleted)")
        if _lies_in(works_in, place):
            return True
        # PgBouncer, and a Postgres that has not gone to its directory yet, are where they were
        # started; of all others there is no need to read what they were started for.
        if works_in != STARTED_IN or os.stat(f"/proc/{pid}").st_uid != owner:
            return False
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            arguments = file.read().split(b"\0")
    except OSError:
        return False
    return any(_lies_in(os.fsdecode(argument), place) for argument in arguments)


def _lies_in(path: str, place: Path) -> bool:
    return path == str(place) or path.startswith(f"{place}/")


def _is_occupant(process: psutil.Process, owner: int | None) -> bool:
    try:
        program = os.readlink(f"/proc/{process.pid}/exe").removesuffix(" (deleted)")
        return Path(program).name in _programs() and set(process.uids()) == {owner}
    except OSError:
        return False


@functools.cache
def _programs() -> frozenset[str]:
    """The names of the programs that computes run."""
    return frozenset({(postgres_bin() / "postgres").resolve().name, "pgbouncer"})


def _lease_file(branch_id: str) -> Path:
    return Path(settings.STATE_DIR) / "locks" / f"{branch_id}{SUFFIX}"

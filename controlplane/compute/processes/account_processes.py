"""Kills every process that runs under a branch's account, wherever it works and whoever started it,
and removes what the kernel would keep of them: shared memory, message queues, semaphores.

If each branch has an account of its own, all processes that its compute ever starts run under that
account's number alone (`accounts.launched_as`). `kill(-1)`, called by a process with that number,
kills all processes with the number in one step, so none escapes by forking. So a child process of
ours takes the number and calls `kill(-1)` at once. A process of the account may kill the child
first; then the next child is started. The child also removes what they leave.

The kernel does not let it signal a process that has only the effective number, as another user of
the host may have by a setuid program of the account. Root ends such processes one by one.
"""

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from django.conf import settings

from controlplane.compute.host.account_numbers import (
    directories_by_number,
    is_owned_by,
    processes_by_number,
    recorded_directory,
    user_ids,
)
from controlplane.compute.host.accounts import (
    ENVIRONMENT,
    Account,
    AccountUnusable,
    account_of,
    account_range,
    shared_account,
    start_as,
    upgrade_account,
)
from controlplane.compute.host.filesystem import LockTimeout, lock_branches
from controlplane.compute.host.progress import continue_if_stopped
from controlplane.compute.processes.occupants import StopFailed
from controlplane.compute.processes.process import socket_dir_of

# Seconds that an account's processes may take to end after they were killed.
KILL_TIMEOUT = 5.0
# Seconds that one child may take to kill them and to remove what they leave.
CHILD_TIMEOUT = 60.0
# Any account may make files here, in memory that all share; those of the second are queues.
SHARED_MEMORY = tuple(Path("/dev", kind) for kind in ("shm", "mqueue"))
# Objects of System V: a line each, after one with the names of the columns. Their creator stays.
SYSTEM_V = tuple(Path("/proc/sysvipc", kind) for kind in ("shm", "msg", "sem"))
# The account may be unable to read Python's modules, so they are imported first.
KILL_ALL = """
import ctypes, os, sys, time
number = int(sys.argv[1])
if os.getuid() == 0:
    os.setgroups([])
    os.setresgid(number, number, number)
    os.setresuid(number, number, number)
# With CAP_KILL this would kill every process of the host.
with open("/proc/self/status") as status:
    assert "CapEff:\\t0000000000000000\\n" in status.read()
assert os.getresuid() == (number, number, number)
os.kill(-1, 9)
libc = ctypes.CDLL(None)
for kind, remove in (("shm", libc.shmctl), ("msg", libc.msgctl), ("sem", libc.semctl)):
    if os.path.exists("/proc/sysvipc/" + kind):
        columns, *lines = map(str.split, open("/proc/sysvipc/" + kind))
        for fields in lines:
            if fields[columns.index("cuid")] == sys.argv[1]:
                # IPC_RMID is 0. The second argument is the number of a semaphore for semctl.
                remove(int(fields[1]), 0, 0)
# The account may have left any number of files. What is left after 5 s is removed by a later round.
deadline, directories = time.monotonic() + 5, []
for place in filter(os.path.exists, ("/dev/shm", "/dev/mqueue")):
    for entry in os.scandir(place):
        try:
            if entry.stat(follow_symlinks=False).st_uid != number:
                continue
            if entry.is_dir(follow_symlinks=False):
                directories.append(entry.path)
            else:
                os.unlink(entry.path)
        except FileNotFoundError:
            continue
        if time.monotonic() > deadline:
            break
# Names of 255 bytes, together shorter than what a program is started with.
for first in range(0, len(directories), 1000):
    if (left := deadline - time.monotonic()) > 0:
        for command in (["chmod", "-R", "ug-s,u+rwx"], ["rm", "-rf"]):
            bounded = ["timeout", str(left), *command, *directories[first : first + 1000]]
            os.spawnv(os.P_WAIT, "/usr/bin/timeout", bounded)
"""

log = logging.getLogger(__name__)


def end_account_of(branch_dir: Path) -> None:
    """Kill all processes of the account of the branch with this directory. Does nothing if the
    branch has no account of its own. The caller holds the branch's lock. Raises StopFailed."""
    if shared_account() is not None or not branch_dir.exists():
        return
    account = account_of(branch_dir)
    if not is_owned_by(branch_dir.parent, account.uid):
        # Before numbers were noted for the host, two Perch may have given out the same number.
        fields = {"branch": branch_dir.name, "account": account.uid}
        log.warning("another Perch on this host uses the same account", extra=fields)
        return
    _end_account(account.uid)


def has_processes(branch_dir: Path) -> bool:
    """True if processes run under the account of the branch with this directory, which is its
    own."""
    with suppress(FileNotFoundError, AccountUnusable):
        return shared_account() is None and account_of(branch_dir).uid in processes_by_number()
    return False


def end_upgrade_account() -> None:
    """Kill all processes of the account that runs pg_upgrade, if it is one of its own. The caller
    holds the lock under which it is used. Raises StopFailed."""
    if shared_account() is None:
        _end_account(upgrade_account().uid)


def remove_objects_of(branch_dir: Path) -> None:
    """Remove what the kernel keeps of the ended processes of the branch's account, as
    `end_account_of` does after it killed them. The caller holds the branch's lock. Raises
    StopFailed if a process is left after all."""
    with suppress(FileNotFoundError, AccountUnusable):
        if account_of(branch_dir).uid in owners_of_objects():
            end_account_of(branch_dir)


def owners_of_objects() -> set[int]:
    """The user ids that own shared memory, message queues or semaphores of this host."""
    found = set()
    for kind in filter(Path.exists, SYSTEM_V):
        columns, *lines = map(str.split, kind.read_text().splitlines())
        found |= {int(fields[columns.index("cuid")]) for fields in lines}
    for place in filter(Path.is_dir, SHARED_MEMORY):
        with os.scandir(place) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    found.add(entry.stat(follow_symlinks=False).st_uid)
    return found


def end_stray_accounts() -> None:
    """Kill the processes of accounts whose branches do not run or are gone, and remove what the
    kernel keeps of them."""
    if shared_account() is not None:
        return
    numbers = processes_by_number().keys() | owners_of_objects().intersection(account_range())
    if not numbers:
        return
    branches = Path(settings.STATE_DIR) / "branches"
    directories = directories_by_number(branches)
    for number in numbers:
        places = directories.get(number, [])
        # If the branch is gone, only the note says whose the number was.
        if (places or recorded_directory(number) == branches) and not _any_runs(places):
            _end_strays(number, branches)


def _end_strays(number: int, branches: Path) -> None:
    """Kill the account's processes, holding the locks of all its branches. If it has no branch,
    hold the lock under which numbers are given out."""
    names = _branches_with(number, branches)
    try:
        with lock_branches(*(names or {"accounts"}), timeout=0):
            if _branches_with(number, branches) != names:
                return
            places = directories_by_number(branches).get(number, [])
            pids = processes_by_number().get(number, [])
            if (
                (pids or number in owners_of_objects())
                and not _any_runs(places)
                and is_owned_by(branches, number)
            ):
                fields = {"account": number, "processes": len(pids), "branches": sorted(names)}
                log.warning("ending what a compute's account has left", extra=fields)
                _end_account(number)
    except LockTimeout:
        pass  # the next round tries again
    except StopFailed as error:
        log.error("processes not ended", extra={"account": number, "error": str(error)})


def _branches_with(number: int, branches: Path) -> set[str]:
    """The branches whose directories have the number, or are being made or removed with it."""
    places = directories_by_number(branches).get(number, [])
    return {place.name.lstrip(".").partition(".")[0] for place in places}


def _any_runs(places: Collection[Path]) -> bool:
    return any(socket_dir_of(place / "data") for place in places)


def _end_account(number: int) -> None:
    """Kill all processes with this user id, and remove what the kernel keeps of them. Raises
    StopFailed."""
    deadline = time.monotonic() + KILL_TIMEOUT
    while not (_kill_all(number) and _have_ended(number)):
        _kill_others(number)
        if time.monotonic() > deadline:
            raise StopFailed(f"the processes of the account {number} do not exit")


def _kill_all(number: int) -> bool:
    """Run KILL_ALL once; False if it did not end within CHILD_TIMEOUT seconds, or was killed."""
    # Isolated: a clean environment, and only Python's own modules can be imported.
    command = [sys.executable, "-I", "-S", "-c", KILL_ALL, str(number)]
    # As root, the child becomes the account by itself, which may be unable to execute Python.
    if os.geteuid() == 0:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, cwd="/", env=ENVIRONMENT)
    else:
        child = start_as(Account(number, number), command)
    deadline = time.monotonic() + CHILD_TIMEOUT
    try:
        while child.poll() is None and time.monotonic() < deadline:
            # A process of the account may stop it again and again: it goes on a little each time.
            continue_if_stopped(child.pid)
            time.sleep(0.001)
    finally:
        child.kill()
        child.wait()
    return child.returncode == 0


def _kill_others(number: int) -> None:
    """Kill what `kill(-1)` may not signal. A process of root's, which has the number only for a
    while and can become root again, is left."""
    for pid in processes_by_number().get(number, []):
        with suppress(OSError):  # it has ended
            descriptor = os.pidfd_open(pid)
            try:
                ids = user_ids(pid)
                if number in ids and 0 not in (ids[0], ids[2]):
                    # If the process had ended before its ids were read, so that another one may
                    # have its pid since, this fails.
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            finally:
                os.close(descriptor)


def _have_ended(number: int) -> bool:
    """True if no process with the number is left. Waits 0.111 seconds at most."""
    for pause in (0.001, 0.01, 0.1):
        if number not in processes_by_number():
            return True
        time.sleep(pause)
    return number not in processes_by_number()

"""Kills every process that runs under a branch's account, wherever it works and whoever started it.

If each branch has an account of its own, all processes that its compute ever starts run under that
account's number alone (`accounts.launched_as`). `kill(-1)`, called by a process with that number,
kills all processes with the number in one step, so none escapes by forking. So a child process of
ours takes the number and calls `kill(-1)` at once. A process of the account may kill the child
first; then the next child is started.
"""

import logging
import os
import subprocess
import sys
import time
from collections.abc import Collection
from pathlib import Path

from django.conf import settings

from controlplane.compute.account_numbers import (
    directories_by_number,
    is_of,
    noted_for,
    processes_by_number,
)
from controlplane.compute.accounts import (
    ENVIRONMENT,
    Account,
    account_of,
    running_as,
    shared_account,
    upgrade_account,
)
from controlplane.compute.filesystem import LockTimeout, lock_branches
from controlplane.compute.occupants import StopFailed
from controlplane.compute.process import socket_dir_of

# Seconds that an account's processes may take to end after they were killed.
KILLED_BOUND = 5.0
KILL_ALL = """
import os, sys
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
"""

log = logging.getLogger(__name__)


def end_account_of(branch_dir: Path) -> None:
    """Kill all processes of the account of the branch with this directory. Does nothing if the
    branch has no account of its own. The caller holds the branch's lock. Raises StopFailed."""
    if shared_account() is not None or not branch_dir.exists():
        return
    account = account_of(branch_dir)
    if not is_of(branch_dir.parent, account.uid):
        # Before numbers were noted for the host, two Perch may have given out the same number.
        fields = {"branch": branch_dir.name, "account": account.uid}
        log.warning("another Perch on this host uses the same account", extra=fields)
        return
    _end_account(account.uid)


def end_upgrade_account() -> None:
    """Kill all processes of the account that runs pg_upgrade, if it is one of its own. The caller
    holds the lock under which it is used. Raises StopFailed."""
    if shared_account() is None:
        _end_account(upgrade_account().uid)


def end_stray_accounts() -> None:
    """Kill the processes of accounts whose branches do not run or are gone."""
    if shared_account() is not None:
        return
    numbers = processes_by_number()
    if not numbers:
        return
    branches = Path(settings.STATE_DIR) / "branches"
    directories = directories_by_number(branches)
    for number in numbers:
        places = directories.get(number, [])
        # If the branch is gone, only the note says whose the number was.
        if (places or noted_for(number) == branches) and not _any_runs(places):
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
            if pids and not _any_runs(places) and is_of(branches, number):
                fields = {"account": number, "processes": len(pids), "branches": sorted(names)}
                log.warning("ending the processes that a compute's account has left", extra=fields)
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
    """Kill all processes with this user id. Raises StopFailed."""
    deadline = time.monotonic() + KILLED_BOUND
    while True:
        # Isolated: a clean environment, and only Python's own modules can be imported.
        command = [sys.executable, "-I", "-S", "-c", KILL_ALL, str(number)]
        # As root, the child becomes the account by itself, which may be unable to execute Python.
        become = {} if os.geteuid() == 0 else running_as(Account(number, number))
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, **{"cwd": "/", "env": ENVIRONMENT, **become}
        )
        if done.returncode == 0 and _have_ended(number):
            return
        if time.monotonic() > deadline:
            raise StopFailed(f"the processes of the account {number} do not exit")


def _have_ended(number: int) -> bool:
    """True if no process with the number is left. Waits 0.111 seconds at most."""
    for pause in (0.001, 0.01, 0.1):
        if number not in processes_by_number():
            return True
        time.sleep(pause)
    return number not in processes_by_number()

"""The state directory: made and checked before anything is put into it.

As root everything in it is root's, and others may pass through but neither list nor write; what
an account of a Postgres may write to lies one level below a directory of root's.
"""

import fcntl
import os
import stat
import uuid
from pathlib import Path
from typing import IO

from django.conf import settings

from controlplane import durable
from controlplane.compute.accounts import account_range, service_account, shared_account

HBA_FILE = "pg_hba.conf"
# Nobody reaches a compute's socket but its own account and the proxy, which has authenticated
# the client before it connects.
HBA = "local all all trust\n"
# There while a restore is under way, and after one that was broken off.
UNFINISHED_RESTORE = "restore-unfinished"


class StateDirectoryUnusable(Exception):
    """The state directory cannot serve; the message says why and what to do."""


def prepare_state_directory() -> None:
    """Make the state directory and those below it that every process relies on.

    Raises StateDirectoryUnusable, accounts.AccountUnusable.
    """
    state = Path(settings.STATE_DIR)
    if (state / UNFINISHED_RESTORE).exists():
        raise StateDirectoryUnusable(
            f"a restore into {state} was broken off, or is under way: run `restore` again"
        )
    state.mkdir(parents=True, exist_ok=True)
    service_account()
    if shared_account() is None:
        account_range()
    if os.geteuid() == 0:
        _check_reachable(state)
    private = 0o711 if os.geteuid() == 0 else 0o700
    _our_directory(state, private)
    for name, mode in (("locks", 0o700), ("templates", private), ("branches", private)):
        _our_directory(state / name, mode)
    sockets = Path(settings.SOCKET_DIR)
    _our_directory(sockets, private)
    hba = state / HBA_FILE
    if not hba.exists() or hba.read_text() != HBA:
        durable.write(hba, HBA.encode(), 0o644)


def check_ours() -> None:
    """See that the state directory is there, prepared before, and that what is secret in it is
    ours to read. Raises StateDirectoryUnusable."""
    state = Path(settings.STATE_DIR)
    if not (state / "branches").is_dir():
        raise StateDirectoryUnusable(f"{state} is no state directory: name it by --state-dir")
    if state.stat().st_uid != os.geteuid():
        raise StateDirectoryUnusable(
            f"{state} belongs to the account {state.stat().st_uid}: run this as that account"
        )


def hold_state_directory() -> IO[str]:
    """Keep every other `up` and `restore` from the state directory until the file is closed.

    Raises StateDirectoryUnusable where one has it.
    """
    lock = (Path(settings.STATE_DIR) / "up.lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise StateDirectoryUnusable(f"Perch is already up on {settings.STATE_DIR}") from None
    return lock


def identity() -> str:
    """Which state directory this is, wherever it is moved; made on the first call."""
    path = Path(settings.STATE_DIR) / "identity"
    if not path.exists():
        durable.write_new(path, f"{uuid.uuid4()}\n", 0o644)
    return path.read_text().strip()


def _check_reachable(state: Path) -> None:
    """The accounts of the computes must be able to pass through to what is theirs."""
    for parent in state.resolve().parents:
        if not parent.stat().st_mode & stat.S_IXOTH:
            raise StateDirectoryUnusable(
                f"the state directory {state} lies below {parent}, which the accounts of the "
                "computes cannot enter; choose another place"
            )


def _our_directory(path: Path, mode: int) -> None:
    path.mkdir(mode=mode, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise StateDirectoryUnusable(f"{path} is not a directory")
    if found.st_uid != os.geteuid():
        raise StateDirectoryUnusable(
            f"{path} belongs to the account {found.st_uid}, not to ours ({os.geteuid()}); "
            "an earlier Perch made it, or another user: choose another state directory"
        )
    if stat.S_IMODE(found.st_mode) != mode:
        path.chmod(mode)

"""The state directory: it is made and checked before anything is put into it.

As root, root owns everything in it. Other accounts may pass through, but neither list nor write.
Whatever a Postgres account may write to lies one level below a directory of root's.
"""

import fcntl
import os
import pwd
import stat
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
from django.conf import settings

from controlplane import durable
from controlplane.compute.data.relaying import PREFIX
from controlplane.compute.host.accounts import (
    account_range,
    own_account,
    service_account,
    shared_account,
)
from controlplane.compute.host.filesystem import LockTimeout, lock_branches, remove_tree
from controlplane.compute.settings.configuration import PLATFORM_ROLE
from controlplane.process_accounts import KINDS, acts_as_root

# Of pg_upgrade's servers, and of computes that a release up to 0.2 has started.
TRUSTING_HBA_FILE = "pg_hba.conf"
HBA_FILE, IDENT_FILE = "compute-hba.conf", "compute-ident.conf"
# Only a compute's own account and the proxy can reach its socket, and the proxy has authenticated
# the client before it connects. A compute opens what its clients name (`dblink`), so the platform's
# role needs an account of the platform too. Without accounts no such extension is offered
# (`extensions.REACHING_OUT`). `all` stands for databases: only the platform's role may read the
# whole log, for another host (`fleet.receivers.log_receivers`).
HBA = """\
local all {role} {method}
local all all trust
local replication {role} {method}
"""
# Exists while a restore is under way, and after one that was interrupted.
UNFINISHED_RESTORE = "restore-unfinished"


class StateDirectoryUnusable(Exception):
    """The state directory cannot be used; the message says why and what to do."""


def prepare_state_directory() -> None:
    """Make the state directory and the directories in it that every process relies on.

    Raises StateDirectoryUnusable, accounts.AccountUnusable.
    """
    state = Path(settings.STATE_DIR)
    if (state / UNFINISHED_RESTORE).exists():
        raise StateDirectoryUnusable(
            f"a restore into {state} was interrupted, or is still running: run `restore` again"
        )
    state.mkdir(parents=True, exist_ok=True)
    service_account()
    if shared_account() is None:
        account_range()
    if acts_as_root():
        _check_reachable(state)
    private = 0o711 if acts_as_root() else 0o700
    _our_directory(state, private)
    for name, mode in (("locks", 0o700), ("templates", private), ("branches", private)):
        _our_directory(state / name, mode)
    sockets = Path(settings.SOCKET_DIR)
    _our_directory(sockets, private)
    for left in sockets.glob(f"{PREFIX}*"):
        remove_tree(left)
    method = "peer map=perch" if acts_as_root() else "trust"
    for name, text in (
        (TRUSTING_HBA_FILE, HBA.format(role=PLATFORM_ROLE, method="trust")),
        (HBA_FILE, HBA.format(role=PLATFORM_ROLE, method=method)),
        (IDENT_FILE, "".join(f'perch "{name}" {PLATFORM_ROLE}\n' for name in _of_platform())),
    ):
        if not (state / name).exists() or (state / name).read_text() != text:
            durable.write(state / name, text.encode(), 0o644)


def _of_platform() -> list[str]:
    """The names of the accounts that may connect to computes as the platform's role, whether `up`
    now gives its processes accounts of their own or not: computes go on from one `up` to the
    next."""
    kinds = (KINDS["proxy"], KINDS["worker"])
    return [pwd.getpwuid(0).pw_name, *(kind.account for kind in kinds)]


def access_files() -> dict[str, str]:
    """The settings of Postgres by which a compute finds out whom it admits."""
    state = Path(settings.STATE_DIR)
    return {"hba_file": str(state / HBA_FILE), "ident_file": str(state / IDENT_FILE)}


def check_ours() -> None:
    """Check that the state directory was prepared before and belongs to us, so that we can read its
    secrets. Raises StateDirectoryUnusable."""
    state = Path(settings.STATE_DIR)
    if not (state / "branches").is_dir():
        raise StateDirectoryUnusable(f"{state} is not a state directory: name one with --state-dir")
    if state.stat().st_uid != own_account().uid:
        raise StateDirectoryUnusable(
            f"{state} belongs to the account {state.stat().st_uid}: run this as that account"
        )


@contextmanager
def hold_state_directory() -> Iterator[None]:
    """Keep every other `up` and `restore` away from the state directory meanwhile.

    Raises StateDirectoryUnusable if another one holds it.
    """
    with sole_holder("up") as alone:
        if not alone:
            raise StateDirectoryUnusable(f"Perch is already running on {settings.STATE_DIR}")
        yield


@contextmanager
def sole_holder(name: str) -> Iterator[bool]:
    """Acquire the lock `name` of this state directory; yields False if another process holds it.
    The kernel releases it when its holder dies.

    The lock file is where the host's other accounts cannot go, since reading a file is enough to
    lock it.
    """
    with ExitStack() as held:
        try:
            held.enter_context(lock_branches(name, timeout=0))
            alone = _take_earlier_lock(Path(settings.STATE_DIR) / f"{name}.lock", held)
        except LockTimeout:
            alone = False
        yield alone


def _take_earlier_lock(path: Path, held: ExitStack) -> bool:
    """Also hold the lock file of releases up to 0.1, if it exists; False if a process of such a
    release holds it. Every account could read, and so lock, that file. If another account's process
    holds it, that does not count: the file is removed."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return True
    held.callback(os.close, descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        if _is_open_in_ours(os.fstat(descriptor)):
            return False
        path.unlink()
    else:
        os.fchmod(descriptor, 0o600)
    return True


def _is_open_in_ours(file: os.stat_result) -> bool:
    """True if another process of this account has the file open."""
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.pid == os.getpid() or process.uids().effective != os.geteuid():
                continue
            for descriptor in Path(f"/proc/{process.pid}/fd").iterdir():
                with suppress(OSError):
                    if os.path.samestat(descriptor.stat(), file):
                        return True
    return False


def identity() -> str:
    """Identifies this state directory, wherever it is moved; made on the first call."""
    path = Path(settings.STATE_DIR) / "identity"
    if not path.exists():
        durable.write_new(path, f"{uuid.uuid4()}\n", 0o644)
    return path.read_text().strip()


def place() -> str:
    """Identifies the machine since its last boot, and this state directory on it. A copy of the
    directory has its identity but another place; processes at one place exclude each other by
    kernel locks."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    found = Path(settings.STATE_DIR).stat()
    return f"{boot} {found.st_dev}:{found.st_ino}"


def is_identity(known: str | None) -> bool:
    """True if `known` is the identity of this state directory. Makes none."""
    path = Path(settings.STATE_DIR) / "identity"
    return path.exists() and path.read_text().strip() == known


def _check_reachable(state: Path) -> None:
    """Raise StateDirectoryUnusable if the computes' accounts cannot enter the directories above."""
    for parent in state.resolve().parents:
        if not parent.stat().st_mode & stat.S_IXOTH:
            raise StateDirectoryUnusable(
                f"the state directory {state} lies below {parent}, which the accounts of the "
                "computes cannot enter; choose another directory"
            )


def _other_owner_message(path: Path, owner: int) -> str:
    state = settings.STATE_DIR
    if os.geteuid() != 0:
        return (
            f"{path} belongs to the account {owner}, not to the account of this process "
            f"({os.geteuid()}): run this as "
            "that account, or choose another state directory"
        )
    return (
        f"{path} belongs to the account {owner}, not to root. If release 0.1 made {state} as root: "
        f"give it to an ordinary user (chown -R USER: {state}), run `up` and `backup` on it as "
        "that user, and `restore` the backup as root into a new state directory, as "
        "docs/how-to/upgrade.md says. If it is another user's: run this as that user, or choose "
        "another state directory"
    )


def _our_directory(path: Path, mode: int) -> None:
    path.mkdir(mode=mode, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise StateDirectoryUnusable(f"{path} is not a directory")
    if found.st_uid != own_account().uid:
        raise StateDirectoryUnusable(_other_owner_message(path, found.st_uid))
    if stat.S_IMODE(found.st_mode) != mode:
        path.chmod(mode)

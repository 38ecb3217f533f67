"""The accounts that Postgres runs under when Perch runs as root.

Postgres refuses to run as root. An attacker who takes over a Postgres must not reach the host's
files, Perch's own database or another branch. So when Perch runs as root, each branch has an
account of its own: a number from a reserved range that has no user name. The metadata cluster runs
as the account `perch`. When Perch runs as an ordinary user, everything runs as that user.

A branch's account number is the group of the branch's directory, which root owns. So the number is
stored nowhere else, and the account itself cannot change it.

What holds here for root also holds for the worker's own account, which has the capabilities for it
(`process_accounts`), and whose files root owns.
"""

import fcntl
import functools
import os
import pwd
import resource
import shutil
import socket
import struct
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.conf import settings

from controlplane.compute.host.confinement import start_restricted
from controlplane.process_accounts import KINDS, acts_as_root, passing_capabilities

# The environment that Postgres gets instead of ours. It must hold no secret.
ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C.UTF-8", "TZ": "UTC"}

# Open files and sockets of a process; Postgres itself keeps 1,000. The platform reads lists of all.
MAX_FILES = 4096

SERVICE_ACCOUNT = "perch"
# Runs pg_upgrade, for one branch at a time: like initdb it needs an account with a name.
UPGRADE_ACCOUNT = "perch-upgrade"
# Locked while an account is added.
ADDING = Path("/run/perch/useradd")


class AccountUnusable(Exception):
    """There is no usable account to run Postgres under; the message says what to do."""


@dataclass(frozen=True)
class Account:
    uid: int
    gid: int


def own_account() -> Account:
    """The account that owns Perch's own files."""
    return Account(0, 0) if acts_as_root() else Account(os.geteuid(), os.getegid())


@functools.cache
def service_account() -> Account:
    """The account of the metadata cluster and of initdb, which needs an account with a name.

    As root this is `perch`, which is created if it is missing. Raises AccountUnusable.
    """
    return named_account(SERVICE_ACCOUNT) if acts_as_root() else own_account()


def named_account(name: str) -> Account:
    """The account with the name, which is created if it is missing. Raises AccountUnusable."""
    if not _exists(name):
        try:
            # Programs that run `useradd` at the same time can each add the same name.
            with locked_directory(ADDING):
                if not _exists(name):
                    _add_account(name)
        except OSError as error:
            raise AccountUnusable(f'make a system account "{name}": {error}') from error
    return _account_named(name)


@functools.cache
def upgrade_account() -> Account:
    """The account of pg_upgrade if each branch has an account of its own: `perch-upgrade`, which is
    created if it is missing. Otherwise the account that all computes share. Raises
    AccountUnusable."""
    return shared_account() or named_account(UPGRADE_ACCOUNT)


@functools.cache
def shared_account() -> Account | None:
    """The one account that all computes share: our own if we are not root, or the account that
    PERCH_COMPUTE_ACCOUNT names. None if each branch has its own. Raises AccountUnusable."""
    if not acts_as_root():
        return own_account()
    if not settings.COMPUTE_ACCOUNT:
        return None
    others = {kind.account for kind in KINDS.values()}
    taken = {SERVICE_ACCOUNT, UPGRADE_ACCOUNT, "nobody", "root", *others}
    if settings.COMPUTE_ACCOUNT in taken:
        raise AccountUnusable(
            f'computes cannot run as "{settings.COMPUTE_ACCOUNT}", which other programs use; '
            "set another account in PERCH_COMPUTE_ACCOUNT, or unset it to give each compute its own"
        )
    try:
        return _account_named(settings.COMPUTE_ACCOUNT)
    except KeyError:
        raise AccountUnusable(
            f'PERCH_COMPUTE_ACCOUNT: there is no account "{settings.COMPUTE_ACCOUNT}"'
        ) from None


def account_range() -> range:
    """The account numbers reserved for computes. Raises AccountUnusable if they cannot be used."""
    first, _, last = settings.COMPUTE_UIDS.partition("-")
    try:
        numbers = range(int(first), int(last) + 1)
    except ValueError:
        numbers = range(0)
    if not numbers or numbers[0] < 1000:
        raise AccountUnusable(
            f'PERCH_COMPUTE_UIDS must be a range of numbers from 1000 on, such as "50000-59999"; '
            f'got "{settings.COMPUTE_UIDS}"'
        )
    if not _is_mapped(numbers):
        raise AccountUnusable(
            f"the accounts {settings.COMPUTE_UIDS} do not exist in this user namespace: choose "
            "others in PERCH_COMPUTE_UIDS, or one account for all in PERCH_COMPUTE_ACCOUNT"
        )
    return numbers


def account_of(branch_dir: Path) -> Account:
    """The account that `new_account` gave to the branch with this directory.

    Raises FileNotFoundError, or AccountUnusable if Perch did not make the directory.
    """
    if shared := shared_account():
        return shared
    found = branch_dir.lstat()
    if found.st_uid != 0 or found.st_gid < account_range()[0]:
        raise AccountUnusable(f"{branch_dir} is not a branch's directory: root does not own it")
    return Account(found.st_gid, found.st_gid)


def is_served_by(connection: socket.socket | int, directory: Path) -> bool:
    """True if the connected Unix socket leads to a process of the account that owns `directory`.

    `connection` is a socket or its descriptor; `directory` is where the socket was looked up. Its
    owner may have put a link to another account's socket there."""
    if isinstance(connection, int):
        with socket.socket(fileno=os.dup(connection)) as duplicate:
            return is_served_by(duplicate, directory)
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    _, uid, _ = struct.unpack("3i", credentials)
    try:
        return bool(uid == os.lstat(directory).st_uid)
    except FileNotFoundError:  # its endpoint was deleted meanwhile
        return False


def running_as(account: Account) -> dict[str, Any]:
    """Keyword arguments that make `subprocess` run a program under the account, with nothing of
    our environment."""
    options: dict[str, Any] = {"env": ENVIRONMENT, "umask": 0o077, "cwd": "/"}
    if acts_as_root():
        options |= {"user": account.uid, "group": account.gid, "extra_groups": []}
    return options


@contextmanager
def launched_as(
    account: Account,
    command: Sequence[Path | str],
    *,
    most_processes: int | None = None,
    gives_way: bool = False,
) -> Iterator[dict[str, Any]]:
    """Yields keyword arguments that make `subprocess.Popen` run the command as `running_as` does,
    without making the caller wait. They work only within this context. If each branch has its own
    account, that account is limited to `most_processes`, and each of them to MAX_FILES. With
    `gives_way`, the command has the lowest priority for the processor.

    For a child that changes its user, Python forks. A fork copies our page tables, which takes
    milliseconds in a process of our size, and as long again for our later writes to that memory.
    So the programs `prlimit` and `setpriv` set the limit and the user and then execute the command.
    For this, `setpriv` gets this process's capabilities, which it does not pass on.

    `start_as` and `run_as` also restrict the command; other callers confine it themselves.
    """
    options = running_as(account)
    if gives_way and (nice := _find_program("nice")):
        command = [nice, "-n", "19", *command]
    setpriv = _find_program("setpriv") if "user" in options else None
    if setpriv is None:
        # If Python changes the user itself, the capabilities must not stay with the program.
        yield {"args": [*command], **options}
        return
    for name in ("user", "group", "extra_groups"):
        del options[name]
    become = [setpriv, "--reuid", str(account.uid), "--regid", str(account.gid), "--clear-groups"]
    if os.geteuid() != 0:
        become += ["--inh-caps=-all", "--ambient-caps=-all"]
    # A setuid program must not run under another account. So all that the command ever starts
    # keeps this account, and is ended with it.
    become.append("--no-new-privs")
    if most_processes and shared_account() is None and (prlimit := _find_program("prlimit")):
        files = min(MAX_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        become = [prlimit, f"--nproc={most_processes}", f"--nofile={files}", *become]
    with passing_capabilities():
        yield {"args": [*become, *command], **options}


def start_as(
    account: Account,
    command: Sequence[Path | str],
    *,
    most_processes: int | None = None,
    **given: Any,
) -> "subprocess.Popen[bytes]":
    """Start a program as `launched_as` says, restricted by `start_restricted`. `given` is for
    `subprocess.Popen`. The account's processes can stop the program as soon as it has their user.
    If Python changed the user, this call would then never return. Raises OSError."""

    def start() -> "subprocess.Popen[bytes]":
        with launched_as(account, command, most_processes=most_processes) as launched:
            return subprocess.Popen(stdin=subprocess.DEVNULL, **{**launched, **given})

    return start_restricted(start)


def run_as(
    account: Account, command: Sequence[Path | str], *, gives_way: bool = False, **given: Any
) -> "subprocess.CompletedProcess[bytes]":
    """Run a program to its end, with the same restrictions. `given` is for `subprocess.run`. Raises
    OSError, subprocess.TimeoutExpired."""

    def run() -> "subprocess.CompletedProcess[bytes]":
        with launched_as(account, command, gives_way=gives_way) as launched:
            return subprocess.run(stdin=subprocess.DEVNULL, **{**launched, **given})

    return start_restricted(run)


def launch(
    account: Account, command: Sequence[Path | str], **given: Any
) -> "subprocess.Popen[bytes]":
    """Start a program that goes on without us, as `start_as` does. Raises OSError."""
    # In its own session, so that it survives the worker and its terminal.
    return start_as(account, command, start_new_session=True, **given)


def limit_command(*, memory: int, file_size: int) -> list[str]:
    """What makes the command behind it run with so many bytes of memory, and of each file, at most:
    SIGXFSZ ends it if it writes more. Nothing if the host has no program `prlimit`."""
    prlimit = _find_program("prlimit")
    return [prlimit, f"--as={memory}", f"--fsize={file_size}", "--core=0"] if prlimit else []


@functools.cache
def _find_program(program: str) -> str | None:
    return shutil.which(program, path="/usr/bin:/bin")


def set_owner(path: Path | int, account: Account) -> None:
    """Make the account the owner of the file, directory or open descriptor. Never follows a
    link."""
    if acts_as_root():
        if isinstance(path, int):
            os.fchown(path, account.uid, account.gid)
        else:
            os.chown(path, account.uid, account.gid, follow_symlinks=False)


def _account_named(name: str) -> Account:
    entry = pwd.getpwnam(name)
    return Account(entry.pw_uid, entry.pw_gid)


@contextmanager
def locked_directory(path: Path) -> Iterator[None]:
    """Hold the lock on a directory, which is made if it is missing. It is accessible to its owner
    alone, since a process that can open a directory can lock it and block others. Raises
    OSError."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fchmod(directory, 0o700)
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


def _add_account(name: str) -> None:
    program = shutil.which("useradd", path="/usr/sbin:/sbin:/usr/bin")
    if program is None:
        raise AccountUnusable(
            f'make a system account "{name}": useradd is not installed on this host'
        )
    done = subprocess.run(
        [
            *(program, "--system", "--user-group", "--no-create-home"),
            *("--home-dir", "/nonexistent", "--shell", "/usr/sbin/nologin", name),
        ],
        capture_output=True,
        text=True,
    )
    # An administrator may have created the account meanwhile.
    if done.returncode and not _exists(name):
        raise AccountUnusable(f'the account "{name}" cannot be created: {done.stderr.strip()}')


def _exists(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def _is_mapped(numbers: range) -> bool:
    """True if this user namespace maps the numbers, both as users and as groups."""
    return all(
        any(
            first <= numbers[0] and numbers[-1] < first + count
            for first, _, count in (map(int, line.split()) for line in text.splitlines())
        )
        for text in (Path(f"/proc/self/{kind}_map").read_text() for kind in ("uid", "gid"))
    )

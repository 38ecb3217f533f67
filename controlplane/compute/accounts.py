"""The accounts that Postgres runs under, where Perch runs as root.

Postgres refuses to run as root, and a Postgres that somebody has broken into must reach neither
the host's files, nor Perch's own database, nor another branch. So as root every branch has an
account of its own, a number from a range set aside that no name stands for, and the metadata
cluster has the account `perch`. An ordinary user has no other accounts: everything is its own.

A branch's account is the group of its directory, which root owns: nothing to keep elsewhere,
nothing that the account itself could change.
"""

import functools
import os
import pwd
import shutil
import socket
import struct
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.conf import settings

# What a Postgres sees of our environment: nothing secret may be in it.
ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C.UTF-8", "TZ": "UTC"}

SERVICE_ACCOUNT = "perch"


class AccountUnusable(Exception):
    """There is no account to run Postgres under; the message says what to do."""


@dataclass(frozen=True)
class Account:
    uid: int
    gid: int


def own_account() -> Account:
    return Account(os.geteuid(), os.getegid())


@functools.cache
def service_account() -> Account:
    """The account of the metadata cluster, and of initdb, which insists on one with a name.

    As root it is `perch`, made where it is missing. Raises AccountUnusable.
    """
    if os.geteuid() != 0:
        return own_account()
    try:
        return _named(SERVICE_ACCOUNT)
    except KeyError:
        _add_account(SERVICE_ACCOUNT)
    return _named(SERVICE_ACCOUNT)


@functools.cache
def shared_account() -> Account | None:
    """The one account of all computes, where PERCH_COMPUTE_ACCOUNT names one or we are not
    root; None where each has its own. Raises AccountUnusable."""
    if os.geteuid() != 0:
        return own_account()
    if not settings.COMPUTE_ACCOUNT:
        return None
    if settings.COMPUTE_ACCOUNT in (SERVICE_ACCOUNT, "nobody", "root"):
        raise AccountUnusable(
            f'computes cannot run as "{settings.COMPUTE_ACCOUNT}", which others use; name '
            "another account in PERCH_COMPUTE_ACCOUNT, or none to give each compute its own"
        )
    try:
        return _named(settings.COMPUTE_ACCOUNT)
    except KeyError:
        raise AccountUnusable(
            f'PERCH_COMPUTE_ACCOUNT: there is no account "{settings.COMPUTE_ACCOUNT}"'
        ) from None


def account_range() -> range:
    """The numbers set aside for computes. Raises AccountUnusable where they are not ours."""
    first, _, last = settings.COMPUTE_UIDS.partition("-")
    try:
        numbers = range(int(first), int(last) + 1)
    except ValueError:
        numbers = range(0)
    if not numbers or numbers[0] < 1000:
        raise AccountUnusable(
            f'PERCH_COMPUTE_UIDS must be two numbers from 1000 on, as "50000-59999"; '
            f'got "{settings.COMPUTE_UIDS}"'
        )
    if not _is_mapped(numbers):
        raise AccountUnusable(
            f"the accounts {settings.COMPUTE_UIDS} do not exist in this user namespace: choose "
            "others in PERCH_COMPUTE_UIDS, or one account for all in PERCH_COMPUTE_ACCOUNT"
        )
    return numbers


def account_of(branch_dir: Path) -> Account:
    """The account of the branch whose directory this is, as new_account gave it.

    Raises FileNotFoundError, AccountUnusable for a directory that is not as we make them.
    """
    if shared := shared_account():
        return shared
    found = branch_dir.lstat()
    if found.st_uid != 0 or found.st_gid < account_range()[0]:
        raise AccountUnusable(f"{branch_dir} is not a branch's directory: it is not root's")
    return Account(found.st_gid, found.st_gid)


def is_served_by(connection: socket.socket | int, directory: Path) -> bool:
    """Whether the connected unix socket, or that of this descriptor, leads to a process of the
    account that owns `directory`, where it was looked up: its owner may have put a link to
    another's socket there."""
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
    """Keyword arguments that make `subprocess` run a program under the account, knowing
    nothing of ours."""
    options: dict[str, Any] = {"env": ENVIRONMENT, "umask": 0o077, "cwd": "/"}
    if os.geteuid() == 0:
        options |= {"user": account.uid, "group": account.gid, "extra_groups": []}
    return options


def launched_as(
    account: Account, command: Sequence[Path | str], *, most_processes: int | None = None
) -> dict[str, Any]:
    """Keyword arguments that make `subprocess.Popen` run the command as `running_as` does, without
    its caller having to wait. An account of the command's own may have `most_processes`.

    For a child that becomes another user Python copies the tables of all our memory (fork), which
    takes milliseconds in a process of our size, and as long again once we go on writing to it. So
    small programs of the system's become the other user, and then the command, in one process.
    """
    options = running_as(account)
    setpriv = _found("setpriv") if "user" in options else None
    if setpriv is None:
        return {"args": [*command], **options}
    for name in ("user", "group", "extra_groups"):
        del options[name]
    become = [setpriv, "--reuid", str(account.uid), "--regid", str(account.gid), "--clear-groups"]
    # A program with the setuid bit, another account's or root's, gives it no other account: all
    # that it ever starts stays its own, and ends with it.
    become.append("--no-new-privs")
    if most_processes and shared_account() is None and (prlimit := _found("prlimit")):
        become = [prlimit, f"--nproc={most_processes}", *become]
    return {"args": [*become, *command], **options}


@functools.cache
def _found(program: str) -> str | None:
    return shutil.which(program, path="/usr/bin:/bin")


def give(path: Path | int, account: Account) -> None:
    """Make the file or directory, or the open descriptor, the account's; never what a link
    leads to."""
    if os.geteuid() == 0:
        if isinstance(path, int):
            os.fchown(path, account.uid, account.gid)
        else:
            os.chown(path, account.uid, account.gid, follow_symlinks=False)


def _named(name: str) -> Account:
    entry = pwd.getpwnam(name)
    return Account(entry.pw_uid, entry.pw_gid)


def _add_account(name: str) -> None:
    program = shutil.which("useradd", path="/usr/sbin:/sbin:/usr/bin")
    if program is None:
        raise AccountUnusable(f'make a system account "{name}": there is no useradd to do it with')
    done = subprocess.run(
        [
            *(program, "--system", "--user-group", "--no-create-home"),
            *("--home-dir", "/nonexistent", "--shell", "/usr/sbin/nologin", name),
        ],
        capture_output=True,
        text=True,
    )
    # Another process may have been first.
    if done.returncode and not _exists(name):
        raise AccountUnusable(f'the account "{name}" cannot be made: {done.stderr.strip()}')


def _exists(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def _is_mapped(numbers: range) -> bool:
    """Whether this user namespace has the numbers, both of users and of groups."""
    return all(
        any(
            first <= numbers[0] and numbers[-1] < first + count
            for first, _, count in (map(int, line.split()) for line in text.splitlines())
        )
        for text in (Path(f"/proc/self/{kind}_map").read_text() for kind in ("uid", "gid"))
    )

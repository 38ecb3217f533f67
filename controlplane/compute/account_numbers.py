"""Which number of the range a new branch's account gets: one that is nobody's.

Neither a branch of this state directory has it, nor one of another Perch on the same host, nor any
process. Other state directories cannot be known from here, so each number that is given out is
noted for the whole host: a link of its name in `CLAIMS` to the `branches` directory that has it.
A note is true for as long as a directory with that group lies there; nobody has to remove it.
"""

import fcntl
import os
import secrets
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from controlplane.compute.accounts import (
    Account,
    AccountUnusable,
    account_range,
    shared_account,
)

CLAIMS = Path("/run/perch/accounts")
# Of /proc/<pid>/status: the lines before those that name the user and group ids are short.
LONGEST_STATUS = 1024  # bytes


def new_account(branches: Path) -> Account:
    """An account for a new branch below `branches`.

    The caller holds the lock `accounts` until the branch's directory is there. Raises
    AccountUnusable.
    """
    if shared := shared_account():
        return shared
    with _claims() as claims:
        used = set(directories_by_number(branches)) | set(processes_by_number())
        free = [number for number in account_range() if number not in used]
        while free:
            # Any but the one that was just given back: what it may have left must not meet a
            # successor.
            chosen = free.pop(secrets.randbelow(len(free)))
            if _claim(claims, chosen, branches):
                return Account(chosen, chosen)
    raise AccountUnusable(
        "every account of PERCH_COMPUTE_UIDS has a branch or runs processes; name more"
    )


def is_of(branches: Path, number: int) -> bool:
    """Whether the account is one that a branch below `branches` has or had, and no other Perch of
    this host: its processes may be ended."""
    with _claims() as claims:
        return _claim(claims, number, branches)


def noted_for(number: int) -> Path | None:
    """The `branches` directory that the number was last given out for, as far as is noted."""
    try:
        return (CLAIMS / str(number)).readlink()
    except OSError:
        return None


def directories_by_number(branches: Path) -> Mapping[int, list[Path]]:
    """The directories of branches below `branches`, hidden ones and those that are being made
    included, by their account's number."""
    found = defaultdict(list)
    with suppress(FileNotFoundError):
        for place in list(branches.iterdir()):
            with suppress(FileNotFoundError):  # one that is being removed
                found[place.lstat().st_gid].append(place)
    return found


def processes_by_number() -> Mapping[int, list[int]]:
    """The processes of this host by the numbers of the range that any of their user ids has: the
    real, effective, saved or file system's. One that has ended but was not waited for has none."""
    numbers = account_range()
    found = defaultdict(list)
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            for number in _user_ids(entry):
                if number in numbers:
                    found[number].append(int(entry))
    return found


def _user_ids(pid: str) -> set[int]:
    try:
        with open(f"/proc/{pid}/status", "rb", buffering=0) as file:
            status = file.read(LONGEST_STATUS)
    except OSError:
        return set()
    if b"\nState:\tZ" in status:
        return set()
    _, _, rest = status.partition(b"\nUid:\t")
    return set(map(int, rest.partition(b"\n")[0].split()))


@contextmanager
def _claims() -> Iterator[Path | None]:
    """Where the host's numbers are noted, held against all others; None where the host lets us
    note nothing there, and this Perch is taken for the only one."""
    try:
        # Ours alone: whoever can read a directory can lock it, and keep all others from it.
        CLAIMS.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(CLAIMS, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        yield None
        return
    try:
        with suppress(OSError):
            os.fchmod(descriptor, 0o700)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield CLAIMS
    finally:
        os.close(descriptor)


def _claim(claims: Path | None, number: int, branches: Path) -> bool:
    """Note the number as that of a branch below `branches`; False where another has it."""
    if claims is None:
        return True
    note = claims / str(number)
    try:
        holder = note.readlink()
    except FileNotFoundError:
        pass
    else:
        if holder == branches:
            return True
        if number in directories_by_number(holder):
            return False
        note.unlink()
    with suppress(OSError):  # a full disk: it is taken again when it is asked for
        note.symlink_to(branches)
    return True

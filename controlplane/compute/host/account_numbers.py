"""Chooses an unused number of the range for the account of a new branch.

A number is unused if no branch of this state directory has it, no branch of another Perch on the
same host has it, and no process runs under it. Perch does not know the other state directories. So
each number that is given out is noted for the whole host: `CLAIMS` holds a symbolic link, named
after the number, to the `branches` directory that has it. A note is valid while a directory with
that group is there, so notes need not be removed.
"""

import os
import re
import secrets
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from controlplane.compute.host.accounts import (
    Account,
    AccountUnusable,
    account_range,
    locked_directory,
    shared_account,
)
from controlplane.compute.host.foreign_files import process_file

CLAIMS = Path("/run/perch/accounts")
# For one compute. Each descriptor takes some microseconds, and there may be millions.
MAX_UNLINKED_SECONDS = 0.5
# Says of a socket that descriptors wait in it to be received.
HOLDS_FILES = re.compile(rb"^scm_fds:\s*[1-9]", re.MULTILINE)
# Of /proc/<pid>/status: the lines before those with the user and group ids are short.
MAX_STATUS_BYTES = 1024  # bytes
# A process whose first thread has ended is called a zombie too, while its other threads run on.
ZOMBIE, SEVERAL_THREADS = b"\nState:\tZ", re.compile(rb"\nThreads:\t(?![01]\n)")


def new_account(branches: Path) -> Account:
    """An account for a new branch below `branches`.

    The caller holds the lock `accounts` until the branch's directory exists. Raises
    AccountUnusable.
    """
    if shared := shared_account():
        return shared
    with _claims() as claims:
        used = set(directories_by_number(branches)) | set(processes_by_number())
        free = [number for number in account_range() if number not in used]
        # At random, and first those that no branch has had: leftovers of a number's last branch,
        # such as files in /tmp, must not affect a new one.
        noted = set() if claims is None else set(os.listdir(claims))
        secrets.SystemRandom().shuffle(free)
        for chosen in sorted(free, key=lambda number: str(number) in noted):
            if _claim(claims, chosen, branches):
                return Account(chosen, chosen)
    raise AccountUnusable(
        "every account of PERCH_COMPUTE_UIDS has a branch or runs processes; enlarge the range"
    )


def is_owned_by(branches: Path, number: int) -> bool:
    """True if the account number is, or last was, that of a branch below `branches` and of no other
    Perch on this host: then its processes may be killed. Notes the number for `branches`."""
    with _claims() as claims:
        return _claim(claims, number, branches)


def recorded_directory(number: int) -> Path | None:
    """The `branches` directory that the number was last given out for; None if none is noted."""
    try:
        return (CLAIMS / str(number)).readlink()
    except OSError:
        return None


def directories_by_number(branches: Path) -> Mapping[int, list[Path]]:
    """The directories of branches below `branches`, by account number. This includes hidden
    branches and staging directories."""
    found = defaultdict(list)
    with suppress(FileNotFoundError):
        for place in list(branches.iterdir()):
            with suppress(FileNotFoundError):  # one that is being removed
                found[place.lstat().st_gid].append(place)
    return found


def processes_by_number() -> Mapping[int, list[int]]:
    """The ids of this host's processes, by each number of the range that is one of their user ids:
    real, effective, saved or file system. Those that have ended are left out."""
    numbers = account_range()
    found = defaultdict(list)
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            for number in set(user_ids(int(entry))):
                if number in numbers:
                    found[number].append(int(entry))
    return found


class Unlinked(NamedTuple):
    """Files that processes keep although no directory has them any more."""

    bytes: int
    files: int
    # Whether there are no others: files that wait in a socket cannot be measured, nor, unless Perch
    # runs as root, files that are only mapped, and there may be more than there is time for.
    is_all: bool


def unlinked_files(pids: Collection[int], *, at: Path) -> Unlinked:
    """What the processes keep so on the disk of `at`."""
    device, until = at.stat().st_dev, time.monotonic() + MAX_UNLINKED_SECONDS
    found, is_all = dict[int, int](), True
    for inode, size in chain.from_iterable(_unlinked_files(pid, device) for pid in pids):
        if size is None:
            is_all = is_all and inode in found
        elif inode:
            found[inode] = size
        if time.monotonic() > until:
            is_all = False
            break
    return Unlinked(sum(found.values()), len(found), is_all)


def _unlinked_files(pid: int, device: int) -> Iterator[tuple[int, int | None]]:
    """The inodes and bytes of the process's unlinked files. The bytes are None if they cannot be
    told, and both are 0 for any other open file."""
    # Each thread may have descriptors of its own, and the first one may have ended. All have the
    # same memory.
    has_memory = False
    for thread in _entries(f"/proc/{pid}/task"):
        for link in chain([f"{thread}/exe"], _entries(f"{thread}/fd")):
            found: tuple[int, int | None] = (0, 0)
            with suppress(OSError):
                kind = os.readlink(link)
                # Not every file may be looked at: one on a disk of its owner may block.
                if kind.endswith(" (deleted)"):
                    found = _if_unlinked(os.stat(link), device)
                elif kind.startswith("socket:"):
                    name = link.removeprefix(f"/proc/{pid}/").replace("fd/", "fdinfo/")
                    found = 0, None if HOLDS_FILES.search(process_file(pid, name)) else 0
            yield found
        if not has_memory:
            with suppress(OSError), open(f"{thread}/maps", "rb") as maps:
                for line in maps:
                    has_memory = True
                    if line.endswith(b" (deleted)\n"):
                        yield _mapped_file(pid, line, device)


def _mapped_file(pid: int, line: bytes, device: int) -> tuple[int, int | None]:
    """The same for the unlinked file of a line of `maps`."""
    area, _, _, disk, number, _ = line.split(None, 5)
    try:
        # Only root may look at it. The name of the area has no leading zeros.
        begin, end = (int(part, 16) for part in area.split(b"-"))
        return _if_unlinked(os.stat(f"/proc/{pid}/map_files/{begin:x}-{end:x}"), device)
    except OSError:
        major, minor = (int(part, 16) for part in disk.split(b":"))
        return (int(number), None) if os.makedev(major, minor) == device else (0, 0)


def _if_unlinked(status: os.stat_result, device: int) -> tuple[int, int]:
    is_unlinked = status.st_dev == device and status.st_nlink == 0
    return (status.st_ino, status.st_blocks * 512) if is_unlinked else (0, 0)


def _entries(place: str) -> Iterator[str]:
    with suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            yield entry.path


def user_ids(pid: int) -> list[int]:
    """The process's real, effective, saved and file system user id; none if it has ended."""
    try:
        with open(f"/proc/{pid}/status", "rb", buffering=0) as file:
            status = file.read(MAX_STATUS_BYTES)
    except OSError:
        return []
    if ZOMBIE in status and not SEVERAL_THREADS.search(status):
        return []
    _, _, rest = status.partition(b"\nUid:\t")
    return [*map(int, rest.partition(b"\n")[0].split())]


@contextmanager
def _claims() -> Iterator[Path | None]:
    """Hold the lock on the host's notes; yields their directory. Yields None if this host does not
    let us write there: then this Perch is taken for the only one."""
    with ExitStack() as held:
        try:
            held.enter_context(locked_directory(CLAIMS))
        except OSError:
            yield None
        else:
            yield CLAIMS


def _claim(claims: Path | None, number: int, branches: Path) -> bool:
    """Note the number for `branches`; False if another `branches` directory uses it."""
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
    with suppress(OSError):  # e.g. a full disk: the number is noted when it is next asked for
        note.symlink_to(branches)
    return True

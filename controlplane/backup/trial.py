"""Tries out a backup, for `backup --verify`: restores its rows and a sample of its branches into a
state directory that is removed afterwards, and starts them.

Settings name one state directory for the whole process, so this runs in a process of its own.
"""

import fcntl
import os
import random
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from django.conf import settings

from controlplane.backup.manifest import BranchCopy, branch_copy, read_manifest
from controlplane.backup.restoring import check_fits, new_state_directory, restore_rows
from controlplane.backup.taking import require_room
from controlplane.compute.data import branch_data
from controlplane.compute.data.branch_data import create_from_copy
from controlplane.compute.data.integrity import DataDamaged, check_data
from controlplane.compute.host.filesystem import remove_tree
from controlplane.compute.host.tree import TreeUntrusted
from controlplane.compute.processes.process import StartFailed
from controlplane.compute.processes.session import session
from controlplane.compute.workshop import MAX_PREPARED_TRANSACTIONS, serving, sockets_of

FAILURES = (StartFailed, DataDamaged, TreeUntrusted, psycopg.Error)


class TrialFailed(Exception):
    """Something in the backup does not start, or no trial can be made; the message says why."""


def try_out(backup: Path, count: int, say: Callable[[str], object], *, mark: str) -> None:
    """Restore the backup's rows, and as many of its branches, chosen at random, into the state
    directory of the settings, and start each. The files are known to be unchanged.

    Raises TrialFailed, RestoreRefused, NoBackup, NoRoom, DumpFailed, StateDirectoryUnusable,
    AccountUnusable, OSError.
    """
    manifest = read_manifest(backup)
    check_fits(manifest, has_data=count > 0 and bool(manifest.branches))
    try:
        with new_state_directory():
            restore_rows(backup, manifest, mark=mark)
            say("The rows can be restored.")
            names = sorted(manifest.branches)
            for branch_id in random.sample(names, min(count, len(names))):
                _try_branch(backup, branch_id, manifest.branches[branch_id])
                say(f"{branch_id}  starts, and its databases can be read")
    finally:
        # It may be outside of the state directory.
        remove_tree(settings.SOCKET_DIR)


def _try_branch(backup: Path, branch_id: str, copy: BranchCopy) -> None:
    tree = branch_copy(backup, branch_id)
    require_room([tree], at=settings.STATE_DIR / "branches")
    names = list(copy.databases.values())
    # Not the branch's id: the service on this host may work on the branch, and the names of control
    # groups are the host's.
    name = f"trial-{os.getpid()}"
    try:
        create_from_copy(name, tree)
        with serving_copy(name) as sockets, session(sockets) as connection:
            rows = connection.execute(
                "SELECT unnest(%s::text[]) EXCEPT SELECT datname FROM pg_database", [names]
            ).fetchall()
    except FAILURES as error:
        raise TrialFailed(f"the branch {branch_id} does not start: {error}") from error
    finally:
        branch_data.remove(name)
    if rows:
        raise TrialFailed(f"the branch {branch_id} lacks the database {rows[0][0]}")


@contextmanager
def serving_copy(name: str) -> Iterator[Path]:
    """Run Postgres on a branch's directory that was made only to try it out, and read the catalog
    of each database. Yields the directory of its sockets. Raises StartFailed, DataDamaged,
    psycopg.Error."""
    # A start with fewer than the log has would fail.
    chosen = {"max_prepared_transactions": str(MAX_PREPARED_TRANSACTIONS)}
    with serving(name, sockets_of(name), chosen) as sockets:
        check_data(sockets)
        yield sockets


@contextmanager
def trial_directory(backup: Path, scratch: str | None) -> Iterator[Path]:
    """Give the path of the state directory for a trial, which is removed at the end: in the
    directory `scratch`, or by default beside the backup, where blocks may be shared, or else among
    the temporary files. Raises TrialFailed."""
    places = [Path(scratch)] if scratch else [backup.parent, Path(tempfile.gettempdir())]
    place = next(filter(_can_hold, places), None)
    if place is None:
        raise TrialFailed(
            f"no trial can be made in {places[0]}: name a directory with --scratch that can be "
            "written to and that the computes' accounts can enter"
        )
    directory = place.resolve() / f".{backup.name}.trial"
    with _trial_lock(backup):
        # A trial that was killed has left it.
        remove_tree(directory)
        try:
            yield directory
        finally:
            remove_tree(directory)


@contextmanager
def _trial_lock(backup: Path) -> Iterator[None]:
    """Raise TrialFailed if another process tries out the backup. The kernel releases the lock when
    its holder dies."""
    descriptor = os.open(backup, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise TrialFailed(f"another process verifies {backup}") from None
    else:
        yield
    finally:
        os.close(descriptor)


def _can_hold(place: Path) -> bool:
    """Whether a state directory can be in `place`."""
    if not (place.is_dir() and os.access(place, os.W_OK | os.X_OK)):
        return False
    path = place.resolve()
    above = (path, *path.parents)
    return os.geteuid() != 0 or all(one.stat().st_mode & stat.S_IXOTH for one in above)

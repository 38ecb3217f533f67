"""Copies one branch into a backup, whatever its endpoint does meanwhile.

Operations do not wait for the copy, except for its last attempt. A running compute is copied as a
base backup while it serves its clients; an idle branch as it lies there. If a
compute starts or ends during the copy, or other data replaces the branch's, the copy starts again
from the branch as it then is, after those of all other branches. The last of `MAX_ATTEMPTS` holds
the branch's lock until it has ended, so that an owner who keeps starting and suspending an endpoint
cannot hold up the backup.

`idle_data` reads the data of a branch on which no process works, also for the copies in the
history's store, without keeping any operation from it.
"""

import errno
import hashlib
import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from time import monotonic, sleep

from controlplane import clock
from controlplane.backup.manifest import BranchCopy, size_of
from controlplane.compute import compute
from controlplane.compute.data.base_backup import PROCESS_FILES, back_up
from controlplane.compute.data.branch_data import NoSuchBranchData, data_dir
from controlplane.compute.host.accounts import own_account
from controlplane.compute.host.cloning import clone_tree
from controlplane.compute.host.filesystem import lock_branches, remove_tree
from controlplane.compute.host.foreign_files import read_regular
from controlplane.compute.host.patience import on_progress
from controlplane.compute.host.tree import TreeUntrusted, open_directory
from controlplane.compute.processes.occupants import is_leased
from controlplane.compute.processes.recovery import CONTROL, Control
from controlplane.compute.processes.session import socket_dir
from controlplane.models import Branch, Endpoint
from controlplane.operations.catalog.importing import import_branch_catalog

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 5
# Seconds that a copy waits for other work on the branch, which may itself be a long copy.
LOCK_TIMEOUT = 3600.0
# Seconds between two updates that mark a running compute as in use: it must not be suspended for
# idleness before its copy has ended.
KEEP_AWAKE_INTERVAL = 2.0
# Errors of the directory that the backup is written to; these concern every branch.
TARGET_ERRNOS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO}

# The databases that were applied to a branch's data (names by row id), and the names of its roles.
Catalog = tuple[dict[str, str], list[str]]
MAX_CONTROL_FILE_BYTES = 8192  # bytes
# In pg_control, from the checkpoint's timeline on: the next ids of transactions, objects and groups
# of lockers, in every version, and nothing that a start or a shutdown alone changes.
NEXT_IDS = slice(48, 88)


class CopyFailed(Exception):
    """A branch could not be copied; the message says why."""


class DataInUse(Exception):
    """Another state of the branch's data began while it was read."""


def copy_branch(branch_id: str, target: Path, attempt: int) -> BranchCopy | None:
    """Copy the branch's data to the new directory `target`. `attempt` counts from 1 to
    MAX_ATTEMPTS; None asks for the next one.

    Raises NoSuchBranchData, CopyFailed; OSError if the target cannot be written.
    """
    if attempt > 1:
        sleep(0.1 * 2 ** (attempt - 1))
    try:
        return _attempt(branch_id, target, gives_way=attempt < MAX_ATTEMPTS)
    except NoSuchBranchData:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno in TARGET_ERRNOS:
            raise
        # The error concerns only this branch, whose compute is untrusted.
        log.warning("copy failed", extra={"branch": branch_id, "error": str(error)})
        remove_tree(target)
        # Another attempt would find the same files, and perhaps copy for long before.
        if attempt == MAX_ATTEMPTS or isinstance(error, TreeUntrusted):
            raise CopyFailed(str(error) or type(error).__name__) from error
    return None


def _attempt(branch_id: str, target: Path, *, gives_way: bool) -> BranchCopy:
    began = clock.now()
    data = data_dir(branch_id)
    with ExitStack() as held:
        # Operations under way end first.
        held.enter_context(lock_branches(branch_id, timeout=LOCK_TIMEOUT))
        if not data.exists():
            raise NoSuchBranchData(f"the branch {branch_id} has no data")
        endpoint_id = compute.running_endpoint(branch_id)
        # Processes of a Postgres that was killed may still write.
        if endpoint_id is None and is_leased(branch_id):
            compute.stop(branch_id)
        if gives_way:
            held.close()
        if endpoint_id is None:
            with idle_data(branch_id):
                clone_tree(data, target, owner=own_account(), skip=PROCESS_FILES)
                databases, roles = _catalog_of(branch_id)
        else:
            databases, roles = _copy_running(branch_id, endpoint_id, target, locks=gives_way)
    return BranchCopy(
        taken_at=began,
        was_running=endpoint_id is not None,
        size=size_of(target),
        databases=databases,
        roles=roles,
    )


def _copy_running(branch_id: str, endpoint_id: str, target: Path, *, locks: bool) -> Catalog:
    """Copy the branch while its compute runs. Returns its catalog at the moment that the copy
    represents. The branch's lock is held then, so that no operation changes the data or the rows
    alone; `locks` is False if the caller holds it."""
    catalog: Catalog = {}, []

    @contextmanager
    def at_end() -> Iterator[None]:
        nonlocal catalog
        with lock_branches(branch_id, timeout=LOCK_TIMEOUT) if locks else nullcontext():
            import_branch_catalog(Branch.objects.get(id=branch_id))
            catalog = _catalog_of(branch_id)
            yield

    # The copy counts as activity.
    next_note = monotonic() + KEEP_AWAKE_INTERVAL

    def keep_awake() -> None:
        nonlocal next_note
        now = monotonic()
        if now >= next_note:
            next_note = now + KEEP_AWAKE_INTERVAL
            endpoints = Endpoint.objects.filter(branch_id=branch_id, deleted_at=None)
            endpoints.update(last_active=clock.now())

    with on_progress(keep_awake):
        place = socket_dir(endpoint_id)
        back_up(data_dir(branch_id), place, target, own_account(), at_end=at_end())
    return catalog


def _catalog_of(branch_id: str) -> Catalog:
    branch = Branch.objects.get(id=branch_id)
    databases = branch.databases.exclude(applied_name=None).values_list("id", "applied_name")
    names = {str(row): name for row, name in databases if name is not None}
    return names, sorted(set(branch.roles.values_list("name", flat=True)))


@contextmanager
def idle_data(branch_id: str) -> Iterator[int]:
    """Yields the open data directory. If it was not the same state all the time, DataInUse is
    raised: at the end, or earlier as soon as work inside reports progress.

    The branch's lock is not needed. A Postgres that starts writes its control file before any data,
    and whatever replaces or removes the data first renames its directory. Raises OSError, too.
    """

    def require_idle() -> None:
        if is_leased(branch_id):
            raise DataInUse(f"a process works on the branch {branch_id}")

    data = data_dir(branch_id)
    with open_directory(data) as directory:
        # Before the first look: a compute that ends right after it has written the file again.
        before = _control_file(directory)
        require_idle()
        with on_progress(require_idle):
            yield directory
        require_idle()
        is_same = data.exists() and os.path.samestat(data.stat(), os.fstat(directory))
        if not is_same or _control_file(directory) != before:
            raise DataInUse(f"the data of the branch {branch_id} was changed")


def state_of(data: int) -> str:
    """Identifies what was committed in the data in the open directory, as long as it is not
    replaced: a Postgres that commits nothing, as for an availability check, and is shut down in
    order leaves the same. Raises OSError."""
    content = _control_file(data)
    if len(content) >= CONTROL.size and Control(*CONTROL.unpack_from(content)).is_shut_down:
        content = content[:16] + content[NEXT_IDS]
        # The commit of a prepared transaction takes no id, but removes its file.
        with open_directory("pg_twophase", dir_fd=data) as prepared:
            content += os.fsencode("/".join(sorted(os.listdir(prepared))))
    return hashlib.sha256(content).hexdigest()


def _control_file(data: int) -> bytes:
    with open_directory("global", dir_fd=data) as directory:
        return read_regular("pg_control", MAX_CONTROL_FILE_BYTES, dir_fd=directory)

"""Reads the data of a branch on which no process works, without keeping any operation from it: for
backups, and for the copies in the history's store."""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager

from controlplane.compute.data.branch_data import data_dir
from controlplane.compute.host.foreign_files import read_regular
from controlplane.compute.host.patience import on_progress
from controlplane.compute.host.tree import open_directory
from controlplane.compute.processes.occupants import is_leased
from controlplane.compute.processes.recovery import CONTROL, Control

MAX_CONTROL_FILE_BYTES = 8192  # bytes
# In pg_control, from the checkpoint's timeline on: the next ids of transactions, objects and groups
# of lockers, in every version, and nothing that a start or a shutdown alone changes.
NEXT_IDS = slice(48, 88)


class DataInUse(Exception):
    """Another state of the branch's data began while it was read."""


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

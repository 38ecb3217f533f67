"""A Postgres that only the platform uses, on a branch that is being made or that has no compute.

No endpoint leads to its sockets. While a branch is made, its name is that of its staging directory,
and its maker holds the lock of that name.
"""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from django.conf import settings

from controlplane.compute import compute
from controlplane.compute.data import branch_data
from controlplane.compute.data.branch_data import branch_dir, data_dir
from controlplane.compute.data.outbound import OutboundNotBlocked, hold_compute
from controlplane.compute.host.accounts import account_of, set_owner
from controlplane.compute.host.binaries import major_of, note_major
from controlplane.compute.host.filesystem import forget_lock, lock_branches, remove_tree
from controlplane.compute.host.foreign_files import put_into
from controlplane.compute.host.logs import flush_log
from controlplane.compute.host.patience import patience
from controlplane.compute.processes.limits import (
    end_group,
    forget_limits,
    limit_compute,
    max_processes,
)
from controlplane.compute.processes.occupants import lease
from controlplane.compute.processes.process import clear_stale_pid_file, start_postgres
from controlplane.compute.settings.configuration import ComputeSpec

# As many prepared transactions as an endpoint may allow: recovery ends with an error if the log has
# more at once than are allowed.
MAX_PREPARED_TRANSACTIONS = 4000
# Name of the files that this Postgres leaves in a branch's directory, without the suffix.
NAME = "schema"
# Compute units: MIN_CU sets its memory, as only we use it; MAX_CU sets its speed.
MIN_CU, MAX_CU = 0.25, 1.0
# Seconds that it has to end, whether the work was cancelled or not.
END_TIMEOUT = 30.0


def end_workshop(branch_id: str) -> None:
    """End what a dead worker has left running on a branch that was being made, or received from
    another host. Raises StopFailed."""
    compute.stop(branch_data.staging_id(branch_id))
    for place in (sockets_of(branch_id), sockets_of(branch_id, source=True)):
        end_group(place.name)
        forget_limits(place.name)
        remove_tree(place)


@contextmanager
def making(branch_id: str) -> Iterator[None]:
    """Hold the name of the branch's staging directory while our Postgres makes its data there.
    Raises StopFailed."""
    workshop = branch_data.staging_id(branch_id)
    with lock_branches(workshop):
        try:
            end_workshop(branch_id)
            yield
        finally:
            forget_lock(workshop)


@contextmanager
def serving(
    branch_id: str, sockets: Path, pg_settings: Mapping[str, str], *, is_standby: bool = False
) -> Iterator[Path]:
    """Run Postgres on the branch for ourselves alone: no endpoint leads to its sockets."""
    compute.stop(branch_id)
    place, data = branch_dir(branch_id), data_dir(branch_id)
    account = account_of(place)
    remove_tree(sockets)
    sockets.mkdir(mode=0o700)
    set_owner(sockets, account)
    note_major(sockets, major_of(data), account)
    spec = ComputeSpec(
        sockets.name, branch_id, min_cu=MIN_CU, max_cu=MAX_CU, pg_settings=pg_settings
    )
    try:
        config = compute.write_configuration(spec, f"{NAME}.conf")
        clear_stale_pid_file(data, sockets=sockets)
        # A compute that was taken over may have written it, and it would override ours.
        put_into(data, "postgresql.auto.conf", "", account)
        # It needs no network, but runs as well on a host that cannot filter.
        with suppress(OutboundNotBlocked):
            hold_compute(branch_id, closed=True)
        with lease(branch_id) as inherited:
            start_postgres(
                data,
                config,
                place / f"{NAME}.log",
                on_spawn=lambda pid: limit_compute(sockets.name, pid, max_cu=MAX_CU),
                lease=inherited,
                most_processes=max_processes(MAX_CU),
                is_standby=is_standby,
            )
        yield sockets
    finally:
        # Must also end after a cancel: its directory is about to be removed.
        with patience(END_TIMEOUT, cancelled=threading.Event()):
            compute.stop(branch_id)
            compute.end_started(branch_id, sockets.name)
        forget_limits(sockets.name)
        remove_tree(sockets)
        forget_files(branch_id)


def forget_files(branch_id: str) -> None:
    """Remove what our own Postgres, which has ended, left beside the branch's data."""
    place = branch_dir(branch_id)
    # Otherwise the rest of its log would be written after the file was removed.
    flush_log(place / f"{NAME}.log")
    for left in place.glob(f"{NAME}.*"):
        left.unlink(missing_ok=True)


def sockets_of(branch_id: str, *, source: bool = False) -> Path:
    """Where our Postgres on the branch that is being made listens; or the one on its source."""
    return Path(settings.SOCKET_DIR) / f"{NAME}{'-of' * source}-{branch_id}"

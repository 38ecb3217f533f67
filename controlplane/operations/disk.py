"""Keeps this host's disk from filling up. It does not query the database, which may be the first to
stop on a full disk.

While the free space, or the number of free inodes, is below half of its reserve, each round stops
the compute that has written most since the last one; files count as a block at least, and those
that are open as well when they were deleted. A compute is not stopped if it has written too little
to matter. If much is lost that no compute is seen to have taken, those that may keep what cannot be
measured are stopped one by one until it comes back. A stopped compute does not start again until
the whole reserve is free. Only this worker's memory holds which computes these are: after the
worker has restarted they may start, and are stopped again if they continue.
"""

import logging
from contextlib import suppress
from dataclasses import replace

from controlplane.compute import compute
from controlplane.compute.data.branch_data import branch_dir, data_dir
from controlplane.compute.host.account_numbers import processes_by_number, unlinked_bytes
from controlplane.compute.host.accounts import AccountUnusable, account_of, shared_account
from controlplane.compute.host.filesystem import LockTimeout, lock_branches
from controlplane.compute.host.space import host_space, make_room
from controlplane.compute.host.tree import size_on_disk
from controlplane.compute.observation import size_outside_of_data
from controlplane.compute.processes.process import StopFailed
from controlplane.features import features
from controlplane.models import Host

log = logging.getLogger(__name__)

REFUSAL = (
    "the endpoint was suspended because it was filling this host's disk; "
    "it can start again once there is space"
)

# Seconds in which the compute that fills the disk may shut down in order.
STOP_TIME = 5.0

# The running branches' sizes in bytes at the last look, while the disk is short of space.
_sizes: dict[str, int] = {}
# The bytes that were free then, and those that were held for other hosts.
_free = _received = 0
# The ids of the branches whose computes were stopped because of what they wrote.
_stopped: set[str] = set()
# The bytes that the disk has lost since it is short, and that no branch is seen to have taken.
_missing = 0
# The part of the reserve that may be missing before computes are stopped for it.
MISSING_PART = 8


def guard_disk(host: Host) -> None:
    """Stop a compute that fills the disk, then make sure that the metadata can be written. The
    order matters: space freed by giving back the ballast would be filled like all space before."""
    global _free, _received, _missing
    space = host_space()
    if space.is_short:
        (growth, unsure), lost, _free = _growth(), _free - space.free, space.free
        received = sum(feature.received_bytes() for feature in features())
        _missing = max(0, _missing + lost - sum(growth.values()) - (received - _received))
        _received = received
        if space.is_critical:
            # Whoever has grown most has grown by its even share at least, unless what fills the
            # disk is not to be seen: then an innocent one would be stopped in its place.
            least, much = lost // (2 * len(growth) or 1), space.reserve // MISSING_PART
            if _missing > much:
                # Those that could not be measured are stopped one by one, until the space comes
                # back; and once the disk is almost full, all.
                suspects = unsure | growth.keys() if space.free < much else unsure
                growth |= {name: growth.get(name, 0) + _missing for name in suspects - _stopped}
            _stop_fastest_growing(growth, space.shortage, least=least)
    else:
        _sizes.clear()
        _stopped.clear()
        _free = _received = _missing = 0
    make_room()


def must_make_room() -> bool:
    """Whether the disk would be short also without the log of other hosts that this one receives,
    which is removed first (`fleet.receivers.receptions`)."""
    space = host_space()
    removable = sum(feature.removable_bytes() for feature in features()) if space.is_short else 0
    return replace(space, free=space.free + removable).is_short


def start_refusal(branch_id: str) -> str | None:
    """Return why the branch's compute must not start now; None if it may."""
    return REFUSAL if branch_id in _stopped else None


def _growth() -> tuple[dict[str, int], set[str]]:
    """Return by how many bytes each running branch has grown since the last look, and the branches
    that may keep more than was seen."""
    # Of an account that all share it cannot be told whose files it keeps open.
    found, unsure, processes = {}, set(), processes_by_number() if shared_account() is None else {}
    for branch_id, endpoint_id in compute.running_branches().items():
        try:
            data, account = data_dir(branch_id), account_of(branch_dir(branch_id))
            unlinked, is_all = unlinked_bytes(processes.get(account.uid, ()), at=data)
            if not is_all:
                unsure.add(branch_id)
            found[branch_id] = size_on_disk(data) + unlinked
            found[branch_id] += size_outside_of_data(endpoint_id, branch_id)
        except (OSError, AccountUnusable) as error:
            unsure.add(branch_id)
            log.warning("size unknown", extra={"branch": branch_id, "error": str(error)})
    growth = {name: size - _sizes[name] for name, size in found.items() if name in _sizes}
    _sizes.clear()
    _sizes.update(found)
    return growth, unsure


def _stop_fastest_growing(growth: dict[str, int], shortage: str, *, least: int) -> None:
    """Stop the compute of the branch that has grown most, if it has grown by `least` bytes."""
    branch_id = max(growth, key=lambda name: growth[name], default=None)
    if branch_id is None or growth[branch_id] <= max(0, least):
        return
    fields = {"branch": branch_id, "grown": growth[branch_id], "disk": shortage}
    log.error("disk nearly full, suspending the endpoint that fills it", extra=fields)
    _stopped.add(branch_id)
    try:
        with suppress(LockTimeout), lock_branches(branch_id, timeout=0):
            compute.stop(branch_id, timeout=STOP_TIME)
            return
        # An operation works on it, and may itself be waiting for this compute to end.
        compute.kill(branch_id, compute.running_endpoint(branch_id))
    except StopFailed as error:
        log.error("compute not stopped", extra={"branch": branch_id, "error": str(error)})

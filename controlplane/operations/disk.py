"""Keeps this host's disk from filling up. It asks nothing of the database, which may be the first
to stop on a full disk.

Below half of the reserve the compute that has written most since the last look is stopped, one
with each look, and does not start again until the whole reserve is there. Which ones these are
only this worker's memory knows: after its restart they may start, and are stopped again if they
go on.
"""

import logging

from controlplane.compute import compute
from controlplane.compute.branch_data import data_dir
from controlplane.compute.filesystem import LockTimeout, lock_branches
from controlplane.compute.process import StopFailed
from controlplane.compute.space import host_space, in_words, make_room
from controlplane.compute.tree import TreeUntrusted, tree_size
from controlplane.models import Region

log = logging.getLogger(__name__)

REFUSAL = (
    "the endpoint was suspended because it was filling this host's disk; "
    "it starts again once there is room"
)

# The running branches' sizes in bytes at the last look, while the disk is short of space.
_sizes: dict[str, int] = {}
# The branches whose computes were stopped for what they wrote.
_stopped: set[str] = set()


def guard_disk(region: Region) -> None:
    """Stop who fills the disk, then see that the metadata can write. In this order: the ballast
    would go the way of all that was there before it."""
    space = host_space()
    if space.is_short:
        growth = _growth()
        if space.is_critical:
            _stop_worst(growth, in_words(space.free))
    else:
        _sizes.clear()
        _stopped.clear()
    make_room()


def why_stopped(branch_id: str) -> str | None:
    """Why the branch's compute must not start now; None where it may."""
    return REFUSAL if branch_id in _stopped else None


def _growth() -> dict[str, int]:
    """Bytes by which the running branches have grown since the last look."""
    found = {}
    for branch_id in compute.running_branches():
        try:
            found[branch_id] = tree_size(data_dir(branch_id))
        except (OSError, TreeUntrusted) as error:
            log.warning("size unknown", extra={"branch": branch_id, "error": str(error)})
    growth = {name: size - _sizes[name] for name, size in found.items() if name in _sizes}
    _sizes.clear()
    _sizes.update(found)
    return growth


def _stop_worst(growth: dict[str, int], free: str) -> None:
    """Stop the compute that has grown most, where any has."""
    for branch_id in sorted(growth, key=lambda name: growth[name], reverse=True):
        if growth[branch_id] <= 0:
            return
        try:
            with lock_branches(branch_id, timeout=0):
                fields = {"branch": branch_id, "grown": growth[branch_id], "free": free}
                log.error("disk nearly full, stopping who fills it", extra=fields)
                _stopped.add(branch_id)
                compute.stop(branch_id)
        except LockTimeout:
            continue  # an operation works on it: the next in line, and this one with the next look
        except StopFailed as error:
            log.error("compute not stopped", extra={"branch": branch_id, "error": str(error)})
        return

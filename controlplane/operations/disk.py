"""Keeps this host's disk from filling up. It does not query the database, which may be the first to
stop on a full disk.

While the free space, or the number of free inodes, is below half of its reserve, or below the whole
reserve and falling fast, each round stops the compute that has grown most, in what is short, since
the shortage began. The sizes of before the shortage are those that `rounds.sizes` has measured.
Files count as a block at least, and those that are open as well when they were deleted. A compute
that has grown too little to matter goes on: the files of the one that has caused the shortage
remain, which is no reason to stop others. If much is
lost that no compute is seen to have taken, those that may keep what cannot be measured are stopped
one by one until it comes back. A stopped compute does not start again until the whole reserve is
free. Only this worker's memory holds which computes these are: after the worker has restarted they
may start, and are stopped again if they continue.
"""

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from controlplane.compute import compute
from controlplane.compute.data.branch_data import branch_dir, data_dir
from controlplane.compute.host.account_numbers import Unlinked, processes_by_number, unlinked_files
from controlplane.compute.host.accounts import AccountUnusable, account_of, shared_account
from controlplane.compute.host.filesystem import LockTimeout, lock_branches
from controlplane.compute.host.space import host_space, make_room
from controlplane.compute.host.tree import count_files, size_on_disk
from controlplane.compute.observation import last_sizes_on_disk, places_outside_of_data
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

# The ids of the branches whose computes were stopped because of what they wrote.
_stopped: set[str] = set()
# The part of the reserve that may be missing before computes are stopped for it.
MISSING_PART = 8
# Half of the reserve is not waited for if as much as since the last look is left only so many times
# more: a look at many files, and the end of their compute, take as long as several looks.
LOOKS_LEFT = 8


@dataclass
class _Watch:
    """What is seen of one thing that the disk may run short of: bytes, or inodes."""

    # How much of it a tree takes, and what of `Unlinked` counts beside it.
    measure: Callable[[Path], int]
    measure_unlinked: Callable[[Unlinked], int]
    # The branches' sizes at the last look, and by how much each has grown since half is short.
    sizes: dict[str, int] = field(default_factory=dict)
    growth: dict[str, int] = field(default_factory=dict)
    # What was free at the last look, what the log of other hosts took, and whether it was short.
    free: int = 0
    received: int = 0
    is_short: bool = False
    # What the disk has lost since it is short, and no branch is seen to have taken.
    missing: int = 0

    def rest(self, sizes: dict[str, int], free: int) -> None:
        """It is not short, and the branches have these sizes."""
        self.sizes, self.growth, self.missing = sizes, {}, 0
        self.free, self.is_short = free, False

    def look(self, free: int, reserve: int, *, received: int = 0) -> tuple[str, int] | None:
        """Look at what is short. Return the branch whose compute must be stopped, and by how much
        it has grown."""
        found, unsure = self._sizes()
        grown = {
            name: size - self.sizes[name] for name, size in found.items() if name in self.sizes
        }
        lost = self.free - free
        if self.is_short:
            lost -= received - self.received
            self.missing = max(0, self.missing + lost - sum(grown.values()))
        is_critical = free < reserve // 2 or lost * LOOKS_LEFT > free
        before = self.growth if is_critical else {}
        self.growth = before | {name: before.get(name, 0) + more for name, more in grown.items()}
        # Those that do not run are kept: nobody starts afresh by a restart.
        self.sizes = self.sizes | found
        self.free, self.received, self.is_short = free, received, True
        if not is_critical:
            return None
        growth = {name: self.growth.get(name, 0) for name in found}
        # A compute matters if it has grown by half of an even share of what is left; and of what
        # was just lost, or an innocent one would be stopped in the place of what is not to be seen.
        least, much = max(lost, free) // (2 * len(growth) or 1), reserve // MISSING_PART
        if self.missing > much:
            # Those that could not be measured are stopped one by one, until the space comes back;
            # and once the disk is almost full, all.
            suspects = unsure | growth.keys() if free < much else unsure
            growth |= {name: growth.get(name, 0) + self.missing for name in suspects - _stopped}
        name = max(growth, key=lambda name: growth[name], default=None)
        if name is None or growth[name] <= max(0, least):
            return None
        # It is stopped again only if it grows again.
        self.growth.pop(name, None)
        return name, growth[name]

    def _sizes(self) -> tuple[dict[str, int], set[str]]:
        """Return the sizes of the running branches, and those that may keep more than was seen."""
        # Of an account that all share it cannot be told whose files it keeps open.
        found, unsure = {}, set()
        processes = processes_by_number() if shared_account() is None else {}
        for branch_id, endpoint_id in compute.running_branches().items():
            try:
                data, account = data_dir(branch_id), account_of(branch_dir(branch_id))
                unlinked = unlinked_files(processes.get(account.uid, ()), at=data)
                if not unlinked.is_all:
                    unsure.add(branch_id)
                size = self.measure(data) + self.measure_unlinked(unlinked)
                for place in places_outside_of_data(endpoint_id, branch_id):
                    with suppress(FileNotFoundError):
                        size += self.measure(place)
                found[branch_id] = size
            except (OSError, AccountUnusable) as error:
                unsure.add(branch_id)
                log.warning("size unknown", extra={"branch": branch_id, "error": str(error)})
        return found, unsure


_files = _Watch(count_files, lambda unlinked: unlinked.files)
_bytes = _Watch(size_on_disk, lambda unlinked: unlinked.bytes)


def guard_disk(host: Host) -> None:
    """Stop a compute that fills the disk, then make sure that the metadata can be written. The
    order matters: space freed by giving back the ballast would be filled like all space before."""
    space = host_space()
    if not space.is_short:
        _stopped.clear()
    # Inodes first: they are counted sooner, even of one that has taken most of them.
    sizes = last_sizes_on_disk()
    if not space.lacks_files:
        _files.rest({name: count for name, (_, count) in sizes.items()}, space.free_files)
    elif found := _files.look(space.free_files, space.reserved_files):
        # Until a shutdown in order has ended, many times the reserve can be taken.
        _stop(*found, space.shortage, at_once=True)
    if space.free >= space.reserve:
        _bytes.rest({name: size for name, (size, _) in sizes.items()}, space.free)
    else:
        received = sum(feature.received_bytes() for feature in features())
        if found := _bytes.look(space.free, space.reserve, received=received):
            _stop(*found, space.shortage)
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


def _stop(branch_id: str, grown: int, shortage: str, *, at_once: bool = False) -> None:
    fields = {"branch": branch_id, "grown": grown, "disk": shortage}
    log.error("disk nearly full, suspending the endpoint that fills it", extra=fields)
    _stopped.add(branch_id)
    try:
        if not at_once:
            with suppress(LockTimeout), lock_branches(branch_id, timeout=0):
                compute.stop(branch_id, timeout=STOP_TIME)
                return
        # Or an operation works on it, and may itself be waiting for this compute to end.
        compute.kill(branch_id, compute.running_endpoint(branch_id))
    except StopFailed as error:
        log.error("compute not stopped", extra={"branch": branch_id, "error": str(error)})

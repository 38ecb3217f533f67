"""Limits a compute to its compute units and to a number of processes by a control group, if the
host lets us make one, and kills all processes in the group.

Without that right (an ordinary user, most containers), the size only shapes Postgres's settings; as
root, the account's own limit (`accounts.launched_as`) bounds its processes. Limits are per
endpoint: the CPU time, memory and connections of its largest size.
"""

import errno
import logging
import os
import signal
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from django.conf import settings

from controlplane.compute.host.tree import open_file
from controlplane.compute.settings.configuration import max_connections

CGROUPS = Path("/sys/fs/cgroup")
CPU_PERIOD_US = 100_000  # microseconds
BYTES_PER_CU = 4 << 30
# Beside those of clients: at most 64 workers, 16 of autovacuum, 10 WAL senders and some 20 of
# Postgres's own; the pooler, and what the platform itself runs under the account.
MAX_OTHER_PROCESSES = 200
# The files with a group's CPU weight in versions 2 and 1, their default, which equals one busy
# process outside all groups, and their maximum.
WEIGHTS = (("cpu.weight", 100, 10_000), ("cpu.shares", 1024, 262_144))
# Seconds that the processes of a group may take to end after they were killed.
KILL_TIMEOUT = 5.0

log = logging.getLogger(__name__)


def max_processes(max_cu: float) -> int:
    """How many processes a compute may have. Postgres reaches its own limits first: it has up to
    twice as many processes as connections, counting those that have yet to authenticate."""
    return 2 * max_connections(max_cu) + MAX_OTHER_PROCESSES


def limit_compute(endpoint_id: str, pid: int, *, max_cu: float, root: Path = CGROUPS) -> bool:
    """Put the process, and so its children, into a group with the limits of `max_cu` compute units.
    True if all limits are in force.

    Version 2 of the interface (one tree) is tried before version 1 (a tree per resource).
    """
    processes = max_processes(max_cu)
    quota, memory = round(CPU_PERIOD_US * max_cu), round(BYTES_PER_CU * max_cu)
    trees: Mapping[Path, Mapping[str, str]]
    if (root / "cgroup.controllers").exists():
        limits = {"cpu.max": f"{quota} {CPU_PERIOD_US}", "memory.max": str(memory)}
        trees = {root: {**limits, "pids.max": str(processes)}}
    else:
        trees = {
            root / "cpu": {"cpu.cfs_period_us": str(CPU_PERIOD_US), "cpu.cfs_quota_us": str(quota)},
            root / "memory": {"memory.limit_in_bytes": str(memory)},
            root / "pids": {"pids.max": str(processes)},
        }
    entered = {tree: _enter(tree, limits, endpoint_id, pid) for tree, limits in trees.items()}
    return all(entered.values())


def _enter(tree: Path, limits: Mapping[str, str], endpoint_id: str, pid: int) -> bool:
    """Put the process into the endpoint's group in `tree` and set the limits; False if any of that
    failed.

    If only a limit is refused, the process joins all the same, so that `end_group` finds what the
    compute has started. It joins last: a group that `end_group` has ended allows no fork until it
    has its limits again.
    """
    group = _group(tree, endpoint_id)
    if not tree.is_dir():
        return False
    refusals = []

    def attempt(change: Callable[[], object]) -> None:
        try:
            change()
        except OSError as error:
            refusals.append(str(error))

    attempt(lambda: group.mkdir(parents=True, exist_ok=True))
    if (tree / "cgroup.controllers").exists():
        attempt(lambda: _delegate(tree))
    attempt(lambda: _set_weight(group.parent))
    for name, value in (*limits.items(), ("cgroup.procs", str(pid))):
        attempt(partial((group / name).write_text, value))
    if refusals:
        fields = {"endpoint": endpoint_id, "tree": str(tree), "error": "; ".join(refusals)}
        log.debug("cgroup refused", extra=fields)
    return not refusals


def _delegate(tree: Path) -> None:
    """Make version 2 pass its controllers on to the computes' groups, as far as it has them."""
    offered = (tree / "cgroup.controllers").read_text().split()
    wanted = " ".join(f"+{name}" for name in ("cpu", "memory", "pids") if name in offered)
    for parent in (tree, tree / "perch"):
        (parent / "cgroup.subtree_control").write_text(wanted)


def _set_weight(group: Path) -> None:
    """Give all computes together the weight of one busy process per processor. By default, they
    would together get the CPU time of a single process when the host has other work."""
    for name, usual, most in WEIGHTS:
        if (group / name).exists():
            weight = min(most, usual * len(os.sched_getaffinity(0)))
            (group / name).write_text(str(weight))


def end_group(endpoint_id: str, *, root: Path = CGROUPS) -> bool:
    """Kill every process of the endpoint's groups, whatever program or user it has become. True if
    there was a group and nothing is left in it.

    First its processes lose the right to fork, so that none starts between listing and killing.
    """
    groups = list(_groups(endpoint_id, root))
    for group in groups:
        for name, value in (("pids.max", "0"), ("cgroup.kill", "1")):
            with suppress(OSError):
                _write_existing(group / name, value)
    deadline = time.monotonic() + KILL_TIMEOUT
    while members := [pid for group in groups for pid in _members(group)]:
        if time.monotonic() > deadline:
            log.error("control group not removed", extra={"endpoint": endpoint_id})
            return False
        for pid in members:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.001)
    return bool(groups)


def forget_limits(endpoint_id: str, *, root: Path = CGROUPS) -> bool:
    """Remove the endpoint's groups; False if a process is still in one."""
    is_gone = True
    for group in _groups(endpoint_id, root):
        try:
            group.rmdir()
        except OSError as error:
            is_gone = is_gone and error.errno != errno.EBUSY
    return is_gone


def _group(tree: Path, endpoint_id: str) -> Path:
    """The endpoint's group. Its name is also that of the state directory, because a backup that is
    restored beside its service has endpoints with the same ids."""
    return tree / "perch" / f"{endpoint_id}.{zlib.crc32(os.fsencode(settings.STATE_DIR)):08x}"


def _groups(endpoint_id: str, root: Path) -> Iterator[Path]:
    for tree in (root, root / "cpu", root / "memory", root / "pids"):
        if (group := _group(tree, endpoint_id)).is_dir():
            yield group


def _members(group: Path) -> list[int]:
    """The processes of the group. A zombie is in it no more."""
    try:
        return [int(line) for line in (group / "cgroup.procs").read_text().split()]
    except OSError:
        return []


def _write_existing(path: Path, text: str) -> None:
    with open_file(path, os.O_WRONLY) as descriptor:
        os.write(descriptor, text.encode())

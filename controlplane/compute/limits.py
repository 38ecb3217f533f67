"""Holds a compute to its compute units by a control group, where the host lets us make one.

Without the right to (an ordinary user, most containers) the size only shapes Postgres's
settings. Limits are per endpoint: CPU time and memory of its largest size.
"""

import errno
import logging
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
PERIOD = 100_000  # microseconds
BYTES_PER_CU = 4 << 30

log = logging.getLogger(__name__)


def limit_compute(endpoint_id: str, pid: int, *, max_cu: float, root: Path = CGROUPS) -> bool:
    """Put the process, and so its children, into a group of `max_cu`; whether it was done.

    Version 2 of the interface (one tree) is tried before version 1 (a tree per resource).
    """
    quota, memory = round(PERIOD * max_cu), round(BYTES_PER_CU * max_cu)
    if (root / "cgroup.controllers").exists():
        trees = {root: {"cpu.max": f"{quota} {PERIOD}", "memory.max": str(memory)}}
    else:
        trees = {
            root / "cpu": {"cpu.cfs_period_us": str(PERIOD), "cpu.cfs_quota_us": str(quota)},
            root / "memory": {"memory.limit_in_bytes": str(memory)},
        }
    try:
        for tree, limits in trees.items():
            group = tree / "perch" / endpoint_id
            group.mkdir(parents=True, exist_ok=True)
            if tree == root:
                for parent in (root, root / "perch"):
                    (parent / "cgroup.subtree_control").write_text("+cpu +memory")
            for name, value in limits.items():
                (group / name).write_text(value)
            (group / "cgroup.procs").write_text(str(pid))
    except OSError as error:
        log.debug("cgroup refused", extra={"endpoint": endpoint_id, "error": str(error)})
        return False
    return True


def forget_limits(endpoint_id: str, *, root: Path = CGROUPS) -> bool:
    """Remove the endpoint's groups; False where a process is still in one."""
    is_gone = True
    for tree in (root, root / "cpu", root / "memory"):
        try:
            (tree / "perch" / endpoint_id).rmdir()
        except OSError as error:
            is_gone = is_gone and error.errno != errno.EBUSY
    return is_gone

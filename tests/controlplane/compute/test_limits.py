"""A compute is limited to its compute units if the host allows control groups."""

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from controlplane.compute.processes.limits import (
    CGROUPS,
    end_group,
    forget_limits,
    limit_compute,
    max_processes,
)
from tests.support.stack import Stack

on_version_1 = pytest.mark.skipif(
    os.geteuid() != 0 or not (CGROUPS / "cpu" / "cpu.cfs_quota_us").exists(),
    reason="no right to make version 1 control groups here",
)


def group_of(pid: int, resource: str) -> Path:
    """Return the version 1 control group of a process."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, resources, path = line.split(":", 2)
        if resource in resources.split(","):
            return CGROUPS / resource / path.lstrip("/")
    raise AssertionError(f"process {pid} is in no group for {resource}")


@on_version_1
def test_a_compute_gets_the_processor_time_and_memory_of_its_largest_size(stack: Stack) -> None:
    client = stack.client()
    project = client.new_project(autoscaling_limit_max_cu=0.5)
    data = stack.data_dir(project["branch"]["id"])
    pid = int((data / "postmaster.pid").read_text().splitlines()[0])
    cpu, memory = group_of(pid, "cpu"), group_of(pid, "memory")
    assert (cpu / "cpu.cfs_quota_us").read_text() == "50000\n"
    assert (memory / "memory.limit_in_bytes").read_text() == f"{2 << 30}\n"
    # All computes together have the weight of one busy process per processor, not of one process.
    together = int((cpu.parent / "cpu.shares").read_text())
    assert together == 1024 * len(os.sched_getaffinity(0))
    with stack.compute(project["endpoints"][0]["id"]) as connection:
        backend = connection.info.backend_pid
        assert group_of(backend, "cpu") == cpu, "what it forks is held as well"
    endpoint = project["endpoints"][0]
    path = f"/projects/{endpoint['project_id']}/endpoints/{endpoint['id']}"
    client.finish(client.post(f"{path}/suspend"))
    assert not cpu.exists()


@on_version_1
def test_a_group_with_processes_is_not_removed() -> None:
    with subprocess.Popen(["sleep", "60"]) as running:
        try:
            assert limit_compute("ep-quiet-heron-999999", running.pid, max_cu=1)
            assert not forget_limits("ep-quiet-heron-999999")
        finally:
            running.kill()
    assert forget_limits("ep-quiet-heron-999999")
    assert list(CGROUPS.glob("*/perch/ep-quiet-heron-999999*")) == []


@on_version_1
def test_a_service_leaves_the_computes_of_another_with_the_same_endpoints(
    settings: Any, tmp_path: Path
) -> None:
    """As a service that was restored from a backup beside the one that was backed up."""
    endpoint_id, ours = "ep-quiet-heron-999998", settings.STATE_DIR
    with subprocess.Popen(["sleep", "60"]) as running:
        try:
            assert limit_compute(endpoint_id, running.pid, max_cu=1)
            settings.STATE_DIR = tmp_path
            assert not end_group(endpoint_id)
            assert running.poll() is None
            settings.STATE_DIR = ours
            assert end_group(endpoint_id)
            assert running.wait(timeout=10) == -signal.SIGKILL
        finally:
            running.kill()
    assert forget_limits(endpoint_id)


def test_version_2_has_one_group_for_both_limits(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu memory\n")
    weight = tmp_path / "perch" / "cpu.weight"
    weight.parent.mkdir()
    weight.touch()
    assert limit_compute("ep-quiet-heron-123456", 4711, max_cu=1.5, root=tmp_path)
    (group,) = (tmp_path / "perch").glob("ep-quiet-heron-123456.*")
    assert (group / "cpu.max").read_text() == "150000 100000"
    assert (group / "memory.max").read_text() == str(6 << 30)
    assert (group / "cgroup.procs").read_text() == "4711"
    assert weight.read_text() == str(100 * len(os.sched_getaffinity(0)))


def test_after_a_group_was_ended_the_next_compute_can_fork(tmp_path: Path) -> None:
    """This also holds if another limit cannot be set; here a directory takes its place."""
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids\n")
    endpoint_id = "ep-quiet-heron-123456"
    limit_compute(endpoint_id, 4711, max_cu=1, root=tmp_path)
    (group,) = (tmp_path / "perch").glob("ep-*")
    for file in group.iterdir():
        file.unlink()
    (group / "cpu.max").mkdir()
    (group / "pids.max").touch()
    end_group(endpoint_id, root=tmp_path)
    assert (group / "pids.max").read_text() == "0"
    assert not limit_compute(endpoint_id, 4711, max_cu=1, root=tmp_path)
    assert (group / "pids.max").read_text() == str(max_processes(1))
    assert (group / "memory.max").exists()
    assert (group / "cgroup.procs").read_text() == "4711"


def test_without_permission_the_compute_starts_without_limits(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("")
    (tmp_path / "perch").write_text("in the way")
    assert not limit_compute("ep-quiet-heron-123456", 4711, max_cu=1, root=tmp_path)
    forget_limits("ep-quiet-heron-123456", root=tmp_path)

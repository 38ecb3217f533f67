"""Cancels and retries operations as a client of the API does, and holds operations half-way."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil

from tests.support.processes import processes_of
from tests.support.project import Project
from tests.support.stack import Stack
from tests.support.waiting import wait_for

# Seconds within which an operation that is held half-way must reach its safe point.
SOON = 5.0


def cancel(project: Project, operation: Any) -> Any:
    """Cancel the operation. Returns the operations that were cancelled."""
    return project.client.post(steering_path(project, operation, "cancel"))["operations"]


def retry(project: Project, operation: Any) -> Any:
    """Retry the operation. Returns the new operations."""
    return project.client.post(steering_path(project, operation, "retry"))["operations"]


def steering_path(project: Project, operation: Any, verb: str) -> str:
    return f"{project.path}/operations/{operation['id']}/{verb}"


def chain_path(project: Project, operation: Any, verb: str) -> str:
    return f"{project.path}/chains/{operation['chain_id']}/{verb}"


def told(operations: Any) -> list[tuple[str, str]]:
    return [(row["action"], row["status"]) for row in operations]


def ended(project: Project, operation: Any, *, timeout: float = 30.0) -> Any:
    """Return the operation once it has ended."""
    return project.client.ended(project.id, operation["id"], timeout=timeout)


def begun(project: Project, operation: Any) -> Any:
    """Return the operation once a worker has taken its job."""
    query = "SELECT taken_by IS NOT NULL FROM controlplane_job WHERE subject = %s"
    with project.stack.database() as database:
        wait_for(
            lambda: (True,) in database.execute(query, [operation["id"]]).fetchall(),
            "the begin of the operation",
        )
    return operation


@contextmanager
def standing_worker(stack: Stack) -> Iterator[None]:
    """No job is taken from the queue while the block lasts."""
    stopped = processes_of(stack, "worker")
    for process in stopped:
        process.suspend()
    try:
        yield
    finally:
        for process in stopped:
            process.resume()


@contextmanager
def wedged_starts(project: Project) -> Iterator[None]:
    """While the block lasts, a Postgres that starts on the project's branch waits forever for a
    piece of its log: it is neither ready nor working. The endpoint is idle."""
    data = project.stack.data_dir(project.branch_id)
    settings = data / "postgresql.auto.conf"
    before = settings.read_text()
    settings.write_text(before + "restore_command = 'sleep 600'\n")
    (data / "recovery.signal").touch()
    try:
        yield
    finally:
        (data / "recovery.signal").unlink(missing_ok=True)
        settings.write_text(before)


@contextmanager
def long_copies(project: Project) -> Iterator[None]:
    """While the block lasts, a copy of the project's branch takes some seconds: a base backup sends
    the holes of a large file, and the copy of a suspended branch opens many files."""
    base = project.stack.data_dir(project.branch_id) / "base" / "1"
    owner = base.stat()
    heavy = [base / str(number) for number in range(1_000_000, 1_020_000)]
    for path in heavy:
        path.touch()
        os.chown(path, owner.st_uid, owner.st_gid)
    os.truncate(heavy[0], 3 << 30)
    try:
        yield
    finally:
        for path in heavy:
            path.unlink(missing_ok=True)


def starting(project: Project) -> psutil.Process:
    """Return the Postgres that is starting on the project's branch, once there is one."""
    found: list[psutil.Process] = []

    def is_there() -> bool:
        try:
            found[:] = [project.postmaster()]
        except (FileNotFoundError, IndexError, psutil.NoSuchProcess):
            return False
        return True

    wait_for(is_there, "a Postgres that starts")
    return found[0]

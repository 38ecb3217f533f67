"""Computes that hang, and processes that a killed Postgres leaves: they are noticed, and ended by
whatever operation stops them."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil
import psycopg
import pytest

from controlplane.compute import observation
from controlplane.compute.host.binaries import MAJOR, default_major
from controlplane.compute.settings.configuration import PLATFORM_ROLE
from tests.selection import first_of
from tests.support.bare_postgres import Programs, bare_postgres, private_directory
from tests.support.processes import is_alive
from tests.support.project import Project
from tests.support.waiting import wait_for


def processes(project: Project) -> list[psutil.Process]:
    """Return the project's postmaster and its children."""
    postmaster = project.postmaster()
    return [postmaster, *postmaster.children()]


@contextmanager
def committing(project: Project) -> Iterator[psutil.Process]:
    """A backend that inserts and commits row after row without waiting."""
    connection = project.compute()
    connection.execute("CREATE TABLE made (number int)")
    connection.execute("SET synchronous_commit = off")
    work = "DO $$ BEGIN LOOP INSERT INTO made VALUES (1); COMMIT; END LOOP; END $$"

    def run() -> None:
        with suppress(psycopg.Error):
            connection.execute(work)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield psutil.Process(connection.info.backend_pid)
    finally:
        thread.join(30)
        connection.close()


@pytest.mark.thorough
def test_a_compute_that_does_not_answer_becomes_idle_with_the_reason(
    fresh_project: Project,
) -> None:
    project = fresh_project
    # It is checked three times within its timeout; a longer timeout would take longer.
    project.change(suspend_timeout_seconds=3)
    hung = processes(project)
    hung[0].suspend()
    # On a busy host it has more time.
    wait_for(lambda: project.endpoint()["current_state"] == "idle", "idle", timeout=90)
    newest = project.operations()[0]
    assert newest["action"] == "check_availability"
    assert newest["status"] == "failed"
    assert "without answering, and was stopped" in newest["error"]
    assert not any(map(is_alive, hung))
    project.start()
    assert project.sql("SELECT 1") == [(1,)]


@pytest.mark.parametrize(("load", "is_silent"), first_of([(10.0, False), (0.0, True)]))
def test_a_compute_of_a_busy_host_has_more_time_to_answer(
    monkeypatch: pytest.MonkeyPatch, load: float, is_silent: bool
) -> None:
    processors = len(os.sched_getaffinity(0))
    monkeypatch.setattr(os, "getloadavg", lambda: (load * processors,) * 3)
    monkeypatch.setattr(observation, "ANSWER_TIMEOUT", 2.0)
    with private_directory() as scratch, bare_postgres(Programs(scratch)) as server:
        monkeypatch.setattr(observation, "socket_dir", lambda _: server.directory)
        server.start()
        (server.directory / MAJOR).write_text(str(default_major()))
        server.execute(f"CREATE ROLE {PLATFORM_ROLE} SUPERUSER LOGIN")
        assert not observation.is_silent("ep-1")
        postmaster = psutil.Process(server.pid)
        postmaster.suspend()
        resuming = threading.Timer(3.0, postmaster.resume)
        resuming.start()
        assert observation.is_silent("ep-1") == is_silent
        resuming.join()


@pytest.mark.thorough
@pytest.mark.parametrize("which", ["postmaster", "all"])
def test_a_stopped_compute_is_suspended_soon(project: Project, which: str) -> None:
    hung = processes(project)
    for process in hung if which == "all" else hung[:1]:
        # A backend of the platform's own may have ended since it was listed.
        with suppress(psutil.NoSuchProcess):
            process.suspend()
    began = time.monotonic()
    project.suspend()
    assert time.monotonic() - began < 10
    assert not any(map(is_alive, hung))


@pytest.mark.thorough
def test_processes_that_a_killed_postmaster_leaves_are_ended(project: Project) -> None:
    with committing(project) as backend:
        project.postmaster().send_signal(signal.SIGKILL)
        wait_for(lambda: project.endpoint()["current_state"] == "idle", "idle", timeout=10)
        wait_for(lambda: not is_alive(backend), "the end of the backend", timeout=5)
    project.start()
    assert project.sql("DROP TABLE made") == []


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["suspend", "delete"])
def test_every_operation_ends_processes_that_a_killed_postmaster_left(
    project: Project, how: str
) -> None:
    with committing(project) as backend:
        # Before the death is noticed: the operation itself has to find these processes.
        with project.locked():
            project.postmaster().send_signal(signal.SIGKILL)
            if how == "suspend":
                answer = project.client.post(project.endpoint_path(rest="/suspend"))
            else:
                answer = project.client.delete(project.path)
        if how == "suspend":
            project.done(answer)
        else:
            place = project.stack.data_dir(project.branch_id).parent
            wait_for(lambda: not place.exists(), "the end of the branch")
        wait_for(lambda: not is_alive(backend), "the end of the backend", timeout=5)


@pytest.mark.thorough
def test_deleted_resources_leave_no_sockets_and_no_locks(project: Project) -> None:
    made = project.new_branch(endpoint=True)
    branch_id, endpoint_id = made["branch"]["id"], made["endpoints"][0]["id"]
    sockets = project.stack.state_dir / "sockets"
    locks = project.stack.state_dir / "locks"
    assert (sockets / endpoint_id).exists()
    project.client.finish(project.client.delete(project.branch_path(branch_id)))
    wait_for(lambda: not (sockets / endpoint_id).exists(), "the end of the sockets")
    wait_for(lambda: not list(locks.glob(f"{branch_id}*")), "the end of the locks")


@pytest.mark.thorough
def test_a_deleted_endpoint_that_had_crashed_leaves_no_sockets(project: Project) -> None:
    place = project.stack.state_dir / "sockets" / project.endpoint_id
    with project.locked():
        project.postmaster().send_signal(signal.SIGKILL)
        project.client.delete(project.endpoint_path())
    wait_for(lambda: not place.exists(), "the end of the sockets")

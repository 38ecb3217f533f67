"""Running processes and the states in the API are made to agree, without a request."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from controlplane.compute import compute
from controlplane.models import Account, Endpoint
from controlplane.operations.own_host import own_host
from controlplane.operations.rounds.reconcile import reconcile_branch
from tests.controlplane.rows import make_project
from tests.support.project import Project
from tests.support.stack import Stack
from tests.support.waiting import wait_for


def age(project: Project, hours: int) -> None:
    """Make the project's endpoint older."""
    with project.stack.database() as connection:
        connection.execute(
            "UPDATE controlplane_endpoint SET check_due_at = NULL,"
            " created_at = created_at - %s * interval '1 hour'"
            " WHERE project_id = %s",
            [hours, project.id],
        )


def test_a_compute_that_died_is_soon_idle(project: Project) -> None:
    project.postmaster().kill()
    wait_for(lambda: project.endpoint()["current_state"] == "idle", "idle", timeout=10)
    assert "suspended_at" in project.endpoint()
    project.start()
    assert project.sql("SELECT 1") == [(1,)]


def test_a_start_just_after_a_crash_succeeds(project: Project) -> None:
    with project.compute() as connection:
        connection.execute("SELECT 1")
        project.postmaster().kill()
        project.client.post(project.endpoint_path(rest="/suspend"))
        project.start()
    assert project.sql("SELECT 1") == [(1,)]


@pytest.mark.django_db
def test_what_a_compute_that_is_gone_has_hidden_is_ended(
    account: Account, tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have removed its postmaster.pid and left its lease."""
    settings.STATE_DIR = tmp_path
    (tmp_path / "locks").mkdir()
    endpoint = make_project(account, own_host()).endpoints.get()
    Endpoint.objects.update(current_state="active")
    ended: list[tuple[str, str]] = []
    monkeypatch.setattr(compute, "stop", lambda *_, **__: None)
    monkeypatch.setattr(compute, "kill", lambda *ids: ended.append(ids))
    reconcile_branch(endpoint.branch_id)
    endpoint.refresh_from_db()
    assert (endpoint.current_state, ended) == ("idle", [(endpoint.branch_id, endpoint.id)])


@pytest.mark.thorough
def test_a_postgres_without_an_endpoint_is_stopped(project: Project) -> None:
    """Such as one that was started before the metadata was restored from a backup."""
    project.suspend()
    branch = project.stack.data_dir(project.branch_id).parent
    stray = branch.with_name("br-stray-dog-123456")
    shutil.copytree(branch, stray, ignore=shutil.ignore_patterns("*.pipe"))
    for copy in [stray, *stray.rglob("*")]:
        # Files of a compute belong to the compute's account, those of the service to the service's.
        owner = (branch / copy.relative_to(stray)).stat()
        os.chown(copy, owner.st_uid, owner.st_gid)
    process = start_by_hand(project.stack, stray.name, project.endpoint_id)
    wait_for(lambda: not psutil.pid_exists(process), "the end of the stray Postgres")
    shutil.rmtree(stray)


@pytest.mark.thorough
def test_a_postgres_of_a_suspended_endpoint_is_stopped(project: Project) -> None:
    project.suspend()
    process = start_by_hand(project.stack, project.branch_id, project.endpoint_id)
    wait_for(lambda: not psutil.pid_exists(process), "the end of the Postgres")
    assert project.endpoint()["current_state"] == "idle"


def start_by_hand(stack: Stack, branch_id: str, endpoint_id: str) -> int:
    """Start a Postgres on a branch for an endpoint, without the service. Returns its process id."""
    program = (
        "import sys, django\n"
        "django.setup()\n"
        "from controlplane.compute.data.branch_data import branch_dir, data_dir\n"
        "from controlplane.compute.host.accounts import account_of, set_owner\n"
        "from controlplane.compute.processes.session import socket_dir\n"
        "from controlplane.compute.processes.process import start_postgres\n"
        "place, sockets = branch_dir(sys.argv[1]), socket_dir(sys.argv[2])\n"
        "sockets.mkdir(mode=0o700, exist_ok=True)\n"
        "set_owner(sockets, account_of(place))\n"
        "start_postgres(place / 'data', place / 'postgresql.conf', place / 'postgres.log')\n"
        "print((place / 'data' / 'postmaster.pid').read_text().splitlines()[0])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, branch_id, endpoint_id],
        env={**os.environ, "PERCH_STATE_DIR": str(stack.state_dir)},
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


class TestCheckAvailability:
    """A check is due two hours after the endpoint's creation. The worker's round runs every
    minute."""

    @pytest.fixture
    def checked(self, project: Project) -> Project:
        age(project, 3)
        return project

    @staticmethod
    def newest(project: Project) -> tuple[str, str]:
        """Return the newest of the project's checks. The worker's own round may have scheduled
        it."""
        for operation in project.operations():
            if operation["action"] == "check_availability":
                return operation["action"], operation["status"]
        return "", ""

    @pytest.mark.thorough
    def test_it_leaves_an_idle_endpoint_idle(self, checked: Project) -> None:
        checked.suspend()
        look_now(checked.stack)
        wait_for(lambda: self.newest(checked) == ("check_availability", "finished"), "the check")
        assert checked.endpoint()["current_state"] == "idle"
        assert not checked.is_running()

    @pytest.mark.thorough
    def test_it_leaves_an_active_endpoint_active(self, checked: Project) -> None:
        with checked.compute() as connection:
            look_now(checked.stack)
            wait_for(
                lambda: self.newest(checked) == ("check_availability", "finished"), "the check"
            )
            assert connection.execute("SELECT 1").fetchone() == (1,)
        assert checked.endpoint()["current_state"] == "active"

    @pytest.mark.thorough
    def test_damage_makes_it_fail(self, project: Project) -> None:
        ((relation,),) = project.sql("SELECT pg_relation_filepath('pg_catalog.pg_attribute')")
        project.suspend()
        path = project.stack.data_dir(project.branch_id) / relation
        content = path.read_bytes()
        path.write_bytes(content[:5000] + b"damaged!" + content[5008:])

        # Not due before, so that the worker's own round does not check the intact branch.
        age(project, 3)
        look_now(project.stack)
        wait_for(lambda: self.newest(project) == ("check_availability", "failed"), "the check")
        operation = project.operations()[0]
        assert operation["failures_count"] == 5
        assert "invalid page in block 0" in operation["error"]
        assert project.endpoint()["current_state"] == "idle"
        assert not project.is_running()


def look_now(stack: Stack) -> None:
    """Schedule the checks that are due, as the worker does once a minute."""
    program = (
        "import django\n"
        "django.setup()\n"
        "from controlplane.operations.own_host import own_host\n"
        "from controlplane.operations.rounds.upkeep import check_availability\n"
        "check_availability(own_host())\n"
    )
    subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PERCH_STATE_DIR": str(stack.state_dir)},
        check=True,
    )


class TestFailingStarts:
    """A failed start is retried. It ends with Postgres's error, and succeeds once the cause is
    removed."""

    @pytest.mark.thorough
    def test_it_works(self, project: Project) -> None:
        project.suspend()
        control = project.stack.data_dir(project.branch_id) / "global" / "pg_control"
        kept = control.rename(control.with_name("pg_control.kept"))
        start = project.client.post(project.endpoint_path(rest="/start"))
        (operation_id,) = [operation["id"] for operation in start["operations"]]

        seen: list[int] = []

        def has_ended() -> bool:
            pending = project.endpoint().get("pending_state")
            operation = project.operation(operation_id)
            if operation["failures_count"] not in seen:
                seen.append(operation["failures_count"])
            if operation["status"] == "running" and operation["failures_count"]:
                assert "retry_at" in operation
                assert "pg_control" in operation["error"]
                # Read before the operation: if it is unfinished afterwards, it was so then as well.
                assert pending == "active"
            return bool(operation["status"] == "failed")

        wait_for(has_ended, "the last attempt")
        operation = project.operation(operation_id)
        assert seen == [0, 1, 2, 3, 4, 5]
        assert "could not find the database system" in operation["error"]
        # Only the operator may know the path on the host.
        assert str(project.stack.state_dir) not in operation["error"]
        assert "retry_at" not in operation
        endpoint = project.endpoint()
        assert endpoint["current_state"] == "idle"
        assert "pending_state" not in endpoint
        assert not project.is_running()

        kept.rename(control)
        project.start()
        assert project.sql("SELECT 1") == [(1,)]

    @pytest.mark.thorough
    def test_a_suspend_does_not_wait_for_all_attempts(self, project: Project) -> None:
        project.suspend()
        control = project.stack.data_dir(project.branch_id) / "global" / "pg_control"
        kept = control.rename(control.with_name("pg_control.kept"))
        start = project.client.post(project.endpoint_path(rest="/start"))
        (operation_id,) = [operation["id"] for operation in start["operations"]]
        wait_for(lambda: project.operation(operation_id)["failures_count"], "a failed attempt")
        project.suspend()
        operation = project.operation(operation_id)
        assert operation["status"] == "failed"
        assert operation["failures_count"] < 5
        kept.rename(control)
        project.start()

    @pytest.mark.thorough
    def test_a_start_whose_cause_is_removed_meanwhile_succeeds(self, project: Project) -> None:
        project.suspend()
        control = project.stack.data_dir(project.branch_id) / "global" / "pg_control"
        kept = control.rename(control.with_name("pg_control.kept"))
        start = project.client.post(project.endpoint_path(rest="/start"))
        (operation_id,) = [operation["id"] for operation in start["operations"]]
        wait_for(
            lambda: project.operation(operation_id)["failures_count"] == 2, "two failed attempts"
        )
        kept.rename(control)
        project.done(start)
        assert "error" not in project.operation(operation_id)
        assert project.endpoint()["current_state"] == "active"

    def test_a_branch_without_data(self, project: Project) -> None:
        project.suspend()
        data = project.stack.data_dir(project.branch_id)
        kept = data.rename(data.with_name("kept"))
        start = project.client.post(project.endpoint_path(rest="/start"))
        (operation,) = project.client.finish(start)
        assert operation["status"] == "failed"
        assert operation["error"].startswith(f"the branch {project.branch_id} has no data; ")
        kept.rename(data)
        project.start()

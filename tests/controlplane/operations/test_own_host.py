"""A host is served from one state directory. Processes of a second one refuse to start."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

import psycopg
import pytest
from django.conf import settings as django_settings
from django.db import connection
from django.utils import timezone

from controlplane.models import Account, Endpoint, Host, Lane, Operation
from controlplane.models.host import AWAY_AFTER, MAX_HOST_NAME_BYTES
from controlplane.operations import own_host as own_host_module
from controlplane.operations.engine import execution
from controlplane.operations.own_host import POLL_INTERVAL, HostTaken, adopt_host, is_own, own_host
from controlplane.operations.rounds.reconcile import reconcile_branch
from controlplane.operations.rounds.upkeep import publish, publish_region_address
from controlplane.services.waking import start_for_client
from tests.controlplane.rows import make_host, make_project
from tests.support.second_host import NAME, running, second_host, variables
from tests.support.stack import ROOT, Stack, free_port
from tests.support.waiting import wait_for


def test_the_first_state_directory_owns_the_host(db: None, tmp_path: Path, settings: Any) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for place in (first, second):
        place.mkdir()
    settings.STATE_DIR = first
    host = own_host()
    assert own_host() == host
    settings.STATE_DIR = second
    with pytest.raises(HostTaken, match="hosts adopt"):
        own_host()
    adopt_host(host)
    assert own_host().state_id == (second / "identity").read_text().strip()


def test_a_host_without_an_owner(db: None, tmp_path: Path, settings: Any) -> None:
    settings.STATE_DIR = tmp_path
    make_host("local")
    assert own_host().state_id == (tmp_path / "identity").read_text().strip()


def test_a_host_has_a_name_of_which_queues_can_be_named(db: None, settings: Any) -> None:
    settings.HOST_NAME = "ip-10-0-0-12.eu-central-1.compute.internal"
    with pytest.raises(HostTaken, match=r"is too long.*another PERCH_HOST_NAME"):
        own_host()
    assert not Host.objects.exists()
    longest = "h" * MAX_HOST_NAME_BYTES
    for lane in Lane:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_notify(%s, '')", [f"perch_jobs#{Host(longest).queue(lane)}"])


def test_a_directory_keeps_its_identity_when_it_is_moved(
    db: None, tmp_path: Path, settings: Any
) -> None:
    settings.STATE_DIR = tmp_path / "before"
    settings.STATE_DIR.mkdir()
    host = own_host()
    settings.STATE_DIR = settings.STATE_DIR.rename(tmp_path / "after")
    assert own_host() == host


class TestCopies:
    """Copies of a state directory have the same identity."""

    @pytest.fixture
    def original(self, db: None, tmp_path: Path, settings: Any) -> Path:
        settings.STATE_DIR = tmp_path / "original"
        settings.STATE_DIR.mkdir()
        own_host()
        return tmp_path / "original"

    @pytest.fixture
    def copy(self, original: Path) -> Path:
        return shutil.copytree(original, original.with_name("copy"))

    def test_a_restarted_worker_serves_on_at_once(self, original: Path) -> None:
        publish(own_host())
        began = time.monotonic()
        publish(own_host())
        assert time.monotonic() - began < POLL_INTERVAL

    def test_a_copy_beside_a_living_original_is_refused(self, copy: Path, settings: Any) -> None:
        original = own_host()
        publish(original)
        settings.STATE_DIR = copy

        def go_on(_: float) -> None:
            settings.STATE_DIR = copy.with_name("original")
            publish(original)
            settings.STATE_DIR = copy

        with mock.patch.object(time, "sleep", go_on), pytest.raises(HostTaken, match="a copy of"):
            own_host()

    def test_it_serves_once_the_original_has_been_silent_and_the_original_ends(
        self, copy: Path, settings: Any
    ) -> None:
        host = own_host()
        publish(host)
        settings.STATE_DIR = copy
        Host.objects.update(worker_seen_at=timezone.now() - AWAY_AFTER)
        publish(own_host())
        # The original was paused, and goes on.
        settings.STATE_DIR = copy.with_name("original")
        with pytest.raises(HostTaken, match="is served from elsewhere"):
            publish(host)
        assert not is_own(Host.objects.get())

    def test_two_copies_that_start_together(self, copy: Path, settings: Any) -> None:
        third = shutil.copytree(copy, copy.with_name("third"))

        def other_starts(_: Host) -> None:
            settings.STATE_DIR = third
            with mock.patch.object(own_host_module, "_wait_until_silent"):
                own_host()
            settings.STATE_DIR = copy

        settings.STATE_DIR = copy
        with (
            mock.patch.object(own_host_module, "_wait_until_silent", other_starts),
            pytest.raises(HostTaken, match="a copy of"),
        ):
            own_host()

    def test_an_original_that_goes_on_runs_no_job_and_marks_no_compute_as_dead(
        self, account: Account, copy: Path, settings: Any
    ) -> None:
        (copy.with_name("original") / "locks").mkdir()
        host = own_host()
        endpoint = make_project(account, host).endpoints.get()
        operations = start_for_client(endpoint.id)
        Host.objects.update(state_place="of the copy")
        with pytest.raises(HostTaken, match="is served from elsewhere"):
            execution.run(operations[0].id)
        Operation.objects.update(status="finished")
        Endpoint.objects.update(current_state="active")
        reconcile_branch(endpoint.branch_id)
        endpoint.refresh_from_db()
        assert endpoint.current_state == "active"

    def test_after_a_restore_the_lost_original_is_refused(
        self, original: Path, settings: Any
    ) -> None:
        host = own_host()
        settings.STATE_DIR = original.with_name("restored")
        settings.STATE_DIR.mkdir()
        adopt_host(host)
        assert own_host() == host
        settings.STATE_DIR = original
        with pytest.raises(HostTaken, match="another state directory"):
            own_host()
        with pytest.raises(HostTaken, match="is served from elsewhere"):
            publish(host)


@pytest.mark.thorough
@pytest.mark.parametrize("command", ["worker", "proxy"])
def test_no_process_serves_a_host_of_another_state_directory(
    stack: Stack, tmp_path: Path, command: str
) -> None:
    tmp_path.chmod(0o711)
    for parent in tmp_path.parents:
        if parent != Path("/") and parent.stat().st_uid == os.geteuid():
            parent.chmod(parent.stat().st_mode | 0o011)
    done = subprocess.run(
        [sys.executable, "manage.py", command],
        cwd=ROOT,
        env={
            **os.environ,
            "DATABASE_URL": f"host={stack.state_dir}/sockets/metadata user=perch dbname=perch",
            "PERCH_STATE_DIR": str(tmp_path),
            "PERCH_SECRET_KEY_FILE": str(stack.state_dir / "secret-key"),
            "PERCH_PROXY_PORT": str(free_port()),
        },
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "is served from another state directory" in done.stderr
    assert f"run: {django_settings.PROGRAM} hosts adopt local" in done.stderr
    assert stack.answers()


@pytest.mark.thorough
def test_a_copy_is_refused_beside_the_original_and_ends_one_that_was_paused(
    stack: Stack, state_dir: Path
) -> None:
    original, copy = state_dir / "original", state_dir / "copy"
    with second_host(stack, original) as second, stack.database() as database:
        shutil.copytree(original, copy, ignore=shutil.ignore_patterns("sockets", "proxy", "*.new"))
        for command in ("worker", "proxy"):
            done = subprocess.run(
                [sys.executable, "manage.py", command],
                cwd=ROOT,
                env=variables(stack, copy) | {"PERCH_PROXY_PORT": str(free_port())},
                capture_output=True,
                text=True,
                timeout=300,
            )
            assert done.returncode != 0
            assert "a copy of the state directory" in done.stderr
        both = (second.worker, second.proxy)
        for process in both:
            os.killpg(process.pid, signal.SIGSTOP)
        database.execute(
            "UPDATE controlplane_host SET worker_seen_at = now() - interval '1 minute',"
            " proxy_seen_at = now() - interval '1 minute' WHERE id = %s",
            [NAME],
        )
        before = _place(database)
        with running("worker", variables(stack, copy), copy / "worker.log"):
            wait_for(lambda: _place(database) != before, "the copy to serve", timeout=120)
            for process in both:
                os.killpg(process.pid, signal.SIGCONT)
            for process in both:
                assert process.wait(120) != 0
            assert "is served from elsewhere" in (original / "worker.log").read_text()
            assert "is served from elsewhere" in (original / "proxy.log").read_text()


def _place(database: "psycopg.Connection[Any]") -> Any:
    row = database.execute("SELECT state_place FROM controlplane_host WHERE id = %s", [NAME])
    return row.fetchone()


def test_a_changed_host_and_port_are_published(db: None, tmp_path: Path, settings: Any) -> None:
    settings.STATE_DIR = tmp_path
    host = own_host()
    settings.HOST_ADDRESS, settings.PROXY_PORT = "h1.example.com", 6432
    settings.REGION_HOST, settings.REGION_PORT = "db.example.com", 6543
    publish(host)
    publish_region_address(host)
    host.refresh_from_db()
    assert (host.address, host.port) == ("h1.example.com", 6432)
    assert (host.region.host, host.region.port) == ("db.example.com", 6543)

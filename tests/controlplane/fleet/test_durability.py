"""Commits of a project with the durability "region" wait for a second host. A restore adds the log
that this host has received to what the store has."""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import Any

import psutil
import psycopg
import pytest

from tests.selection import first_of
from tests.support.numbers import Numbers
from tests.support.place import Place
from tests.support.processes import kill_with_children, opened_of_root
from tests.support.second_host import SecondHost, placing_on, running, second_host, variables
from tests.support.service import Service
from tests.support.stack import ROOT, new_state_dir
from tests.support.waiting import wait_for


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    """The host "local", with a store."""
    with new_state_dir() as parent:
        place = parent / "local"
        place.mkdir(mode=0o711)
        (parent / "store").mkdir()
        made = Service(place, PERCH_HISTORY_STORE=f"file://{parent}/store")
        try:
            yield made
        finally:
            made.down()


@contextmanager
def beside(service: Service, name: str) -> Iterator[SecondHost]:
    """Another host of the region."""
    directory = service.state_dir.parent / name
    store = f"file://{service.state_dir.parent}/store"
    try:
        with second_host(service.stack, directory, name, PERCH_HISTORY_STORE=store) as host:
            yield host
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def durable(service: Service, host: str, stack: Any) -> Place:
    """A project on the host whose commits wait for another host from its next start on."""
    with placing_on(service.stack, host):
        place = Place.create(stack, service.client)
    place.suspend()
    place.client.patch(place.path, {"project": {"settings": {"durability": "region"}}})
    return place


def attached(service: Service, place: Place) -> tuple[str, str]:
    """Start the compute. Returns the receiver and its host, once commits wait for it: on a busy
    machine the start may have gone on without one."""
    place.start()
    wait_for(lambda: any(one[2] for one in receivers(service, place)), "a second host")
    ((receiver, host, _),) = receivers(service, place)
    return receiver, host


def events(place: Place, kind: str) -> list[str]:
    found = place.client.get(f"{place.path}/events", type=kind)["events"]
    return [one["summary"] for one in found]


def receivers(service: Service, place: Place) -> list[tuple[str, str, bool]]:
    """The id and the host of each receiver of the branch's log, and whether commits wait for
    it."""
    with service.stack.database() as database:
        rows = database.execute(
            "SELECT id, host_id, attached_at IS NOT NULL AND lost_at IS NULL"
            " FROM controlplane_logreceiver WHERE branch_id = %s ORDER BY created_at",
            [place.branch_id],
        )
        return [(str(one[0]), str(one[1]), bool(one[2])) for one in rows]


def standby(place: Place) -> Any:
    return place.query("SHOW synchronous_standby_names")[0]


FAILING_NOTE = """
CREATE FUNCTION fail_note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = '57P01', MESSAGE = 'the database is away';
END $$;
CREATE TRIGGER fails BEFORE UPDATE OF attached_at ON controlplane_logreceiver FOR EACH ROW
    WHEN (OLD.attached_at IS NULL AND NEW.attached_at IS NOT NULL) EXECUTE FUNCTION fail_note();
"""


def named(service: Service, place: Place) -> bool:
    """Whether the compute's configuration names a receiver."""
    with suppress(psycopg.Error), service.stack.compute(place.endpoint_id) as platform:
        return platform.execute("SHOW synchronous_standby_names").fetchone() != ("",)
    return False


def receiving(receiver_id: str) -> psutil.Process:
    """The pg_receivewal."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            words = " ".join(process.cmdline())
            if process.name() == "pg_receivewal" and receiver_id in words:
                return process
    raise AssertionError("nothing receives the log")


def received_now() -> str:
    """The command lines of all pg_receivewal."""
    all_ = psutil.process_iter(["name", "cmdline"])
    return str([one.info["cmdline"] for one in all_ if one.info["name"] == "pg_receivewal"])


def declare_lost(service: Service, name: str) -> None:
    """Declare the host lost, as if it had been silent for a minute."""
    with service.stack.database() as database:
        database.execute(
            "UPDATE controlplane_host SET worker_seen_at = worker_seen_at - interval '1 minute',"
            " proxy_seen_at = proxy_seen_at - interval '1 minute' WHERE id = %s",
            [name],
        )
    environment = variables(service.stack, service.state_dir, "local")
    command = [sys.executable, "manage.py", "hosts", "lost", name, "--yes"]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("kill", first_of(range(20)))
def test_a_lost_host_loses_no_commit(service: Service, kill: int) -> None:
    name = f"lost-{kill}"
    with beside(service, name) as host:
        place = durable(service, name, host.stack)
        attached(service, place)
        reduced = events(place, "durability.reduced")
        writer = Numbers(place, ends_with_service=True)
        with writer.writing():
            wait_for(lambda: len(writer.done_at) > 20 + 10 * kill, "some rows", timeout=60)
            host.kill_everything()
            shutil.rmtree(host.stack.state_dir)
        assert events(place, "durability.reduced") == reduced
        declare_lost(service, name)
        place.stack = service.stack
        found = place.query("SELECT array_agg(number ORDER BY number) FROM numbers")[0]
        assert found[: len(writer.done_at)] == list(range(1, len(writer.done_at) + 1))
        history = place.client.get(place.branch_path(None, "/history"))["history"]
        assert history["lost_seconds"] == 0
        place.client.delete(place.path)


@pytest.fixture(scope="class")
def second(service: Service) -> Iterator[SecondHost]:
    with beside(service, "second") as host:
        yield host


class TestReceivers:
    def test_one_that_stands_still_is_taken_out(self, service: Service, second: SecondHost) -> None:
        place = durable(service, "second", second.stack)
        receiver, on = attached(service, place)
        assert on == "local"
        reduced, restored = (events(place, f"durability.{one}") for one in ("reduced", "restored"))
        writer = Numbers(place)
        with writer.writing():
            frozen = receiving(receiver)
            frozen.suspend()
            stood = len(writer.done_at)
            wait_for(lambda: events(place, "durability.restored") != restored, "another receiver")
            written = len(writer.done_at)
            wait_for(lambda: len(writer.done_at) > written + 5, "more commits")
        gaps = [
            (after - before).total_seconds()
            for before, after in pairwise(writer.done_at[stood - 2 :])
        ]
        print(f"commits stood still for {max(gaps):.2f} s")
        assert max(gaps) < 5
        assert len(events(place, "durability.reduced")) == len(reduced) + 1
        ((other, on, waits),) = receivers(service, place)
        assert other != receiver
        assert (on, waits) == ("local", True)
        assert standby(place) == f'"{other}"'
        wait_for(lambda: not frozen.is_running(), "the end of the former receiver", timeout=20)
        place.client.delete(place.path)

    @pytest.mark.usefixtures("second")
    def test_commits_go_on_without_a_lost_one_while_no_worker_runs(self, service: Service) -> None:
        place = durable(service, "local", service.stack)
        receiver, _ = attached(service, place)
        reduced, restored = (events(place, f"durability.{one}") for one in ("reduced", "restored"))
        writer = Numbers(place)
        (worker,) = service.processes("worker")
        with writer.writing():
            worker.suspend()
            try:
                receiving(receiver).kill()
                written = len(writer.done_at)
                wait_for(lambda: len(writer.done_at) > written + 10, "more commits")
                assert receivers(service, place) == [(receiver, "second", False)]
                assert len(events(place, "durability.reduced")) == len(reduced) + 1
            finally:
                worker.resume()
            wait_for(lambda: events(place, "durability.restored") != restored, "another receiver")
        gaps = [
            (after - before).total_seconds()
            for before, after in pairwise(writer.done_at[written - 2 :])
        ]
        print(f"commits stood still for {max(gaps):.2f} s")
        assert max(gaps) < 5
        assert len(events(place, "durability.reduced")) == len(reduced) + 1
        place.client.delete(place.path)

    @pytest.mark.usefixtures("second")
    def test_commits_go_on_after_a_crash_of_a_backend_while_no_worker_runs(
        self, service: Service
    ) -> None:
        """The compute recovers. It answers nothing, but does not end."""
        place = durable(service, "local", service.stack)
        receiver, _ = attached(service, place)
        reduced = events(place, "durability.reduced")
        (worker,) = service.processes("worker")
        worker.suspend()
        try:
            with suppress(psycopg.Error), place.connect() as connection:
                backend = connection.execute("SELECT pg_backend_pid()").fetchone()
                assert backend is not None
                os.kill(backend[0], signal.SIGKILL)
                connection.execute("SELECT 1")
            wait_for(lambda: service.stack.is_running(place.endpoint_id), "the recovery")
            with service.stack.compute(place.endpoint_id) as platform, ThreadPoolExecutor() as pool:
                pool.submit(platform.execute, "CREATE TABLE kept AS SELECT 1 AS number").result(20)
            assert receivers(service, place) == [(receiver, "second", False)]
            assert len(events(place, "durability.reduced")) == len(reduced) + 1
        finally:
            worker.resume()
        place.client.delete(place.path)

    @pytest.mark.usefixtures("second")
    def test_commits_wait_until_the_loss_can_be_noted(self, service: Service) -> None:
        """If another host had taken the project over, they would be missing there."""
        place = durable(service, "local", service.stack)
        receiver, _ = attached(service, place)
        reduced = events(place, "durability.reduced")
        with (
            service.stack.compute(place.endpoint_id) as platform,
            service.stack.database() as database,
            ThreadPoolExecutor() as pool,
        ):
            with database.transaction():
                database.execute("LOCK TABLE controlplane_logreceiver")
                receiving(receiver).kill()
                waiting = pool.submit(platform.execute, "CREATE TABLE kept AS SELECT 1 AS number")
                with pytest.raises(TimeoutError):
                    waiting.result(8)
            waiting.result(30)
        assert len(events(place, "durability.reduced")) == len(reduced) + 1
        place.client.delete(place.path)

    @pytest.mark.usefixtures("second")
    def test_a_receiver_is_noted_although_the_database_failed_at_that_moment(
        self, service: Service
    ) -> None:
        place = durable(service, "local", service.stack)
        with service.stack.database() as database, ThreadPoolExecutor() as pool:
            database.execute(FAILING_NOTE)
            try:
                starting = pool.submit(place.start)
                wait_for(lambda: named(service, place), "a receiver in the configuration")
                assert [one[2] for one in receivers(service, place)] == [False]
            finally:
                database.execute("DROP TRIGGER fails ON controlplane_logreceiver")
                database.execute("DROP FUNCTION fail_note")
            starting.result(60)
        ((receiver, _, waits),) = receivers(service, place)
        assert (standby(place), waits) == (f'"{receiver}"', True)
        place.client.delete(place.path)

    @pytest.mark.usefixtures("second")
    def test_no_log_is_kept_once_the_setting_was_ended_during_a_sleep(
        self, service: Service
    ) -> None:
        place = durable(service, "local", service.stack)
        attached(service, place)
        reduced = events(place, "durability.reduced")
        place.suspend()
        place.client.patch(place.path, {"project": {"settings": {"durability": "host"}}})
        wait_for(lambda: not receivers(service, place), "the removal of the row", timeout=60)
        place.start()
        with service.stack.compute(place.endpoint_id) as platform:
            found = platform.execute("SELECT slot_name FROM pg_replication_slots").fetchall()
        assert found == [("perch_history",)]
        assert standby(place) == ""
        assert events(place, "durability.reduced") == reduced
        place.client.delete(place.path)

    @pytest.mark.usefixtures("second")
    def test_a_setting_that_restarts_the_compute_lets_no_commit_go_unreceived(
        self, service: Service
    ) -> None:
        place = durable(service, "local", service.stack)
        former, _ = attached(service, place)
        settings = {"pg_settings": {"max_connections": "123"}}
        place.client.patch(place.endpoint_path(), {"endpoint": {"settings": settings}})
        wait_for(lambda: place.query("SHOW max_connections") == ("123",), "the restart")
        wait_for(lambda: standby(place) not in ("", f'"{former}"'), "another receiver")
        place.client.delete(place.path)

    def test_what_was_received_is_removed_once_the_store_has_it(
        self, service: Service, second: SecondHost
    ) -> None:
        place = durable(service, "local", service.stack)
        receiver, _ = attached(service, place)
        with place.connect() as connection:
            connection.execute("CREATE TABLE filling AS SELECT repeat(md5('x'), 1000) AS text")
            for _ in range(3):
                connection.execute(
                    "INSERT INTO filling SELECT repeat(n::text, 900) FROM"
                    " generate_series(1, 20000) n"
                )
        log = second.stack.state_dir / "branches" / receiver / "log"
        wait_for(
            lambda: len(list(log.iterdir())) == 1, "the removal of finished segments", timeout=60
        )
        place.suspend()
        wait_for(lambda: not log.exists(), "the removal of what was received", timeout=60)
        assert receivers(service, place) == []
        place.client.delete(place.path)


def test_a_worker_first_takes_out_a_receiver_that_was_lost_before_it_started(
    service: Service,
) -> None:
    """The proxy, which otherwise does so, has ended too."""
    with beside(service, "second") as host, ThreadPoolExecutor() as pool:
        place = durable(service, "second", host.stack)
        receiver, _ = attached(service, place)
        reduced = events(place, "durability.reduced")
        with host.stack.compute(place.endpoint_id) as platform:
            platform.execute("CREATE TABLE kept (number int)")
            host.worker.kill()
            kill_with_children([psutil.Process(host.proxy.pid)])
            wait_for(lambda: receiver not in received_now(), "the end of the receiver")
            waiting = pool.submit(platform.execute, "INSERT INTO kept VALUES (1)")
            # As an operation does that holds the branch, and waits for a commit itself.
            lock = host.stack.state_dir / "locks" / place.branch_id
            with lock.open("r+b") as held:
                fcntl.flock(held, fcntl.LOCK_EX)
                assert not waiting.done()
                log = host.stack.state_dir / "next-worker.log"
                environment = variables(service.stack, host.stack.state_dir)
                with running("worker", environment, log):
                    wait_for(lambda: "message=serving" in log.read_text(), "the worker")
                    began = time.monotonic()
                    waiting.result(30)
                    seconds = time.monotonic() - began
                    print(f"commits went on {seconds:.2f} s after the start of the worker")
                    assert seconds < 5
                    wait_for(
                        lambda: len(events(place, "durability.reduced")) == len(reduced) + 1,
                        "the event",
                    )
                    fcntl.flock(held, fcntl.LOCK_UN)
                    place.client.delete(place.path)


def test_it_outlives_both_workers_and_ends_with_the_setting(service: Service) -> None:
    with beside(service, "second") as host:
        place = durable(service, "local", service.stack)
        receiver, on = attached(service, place)
        assert on == "second"
        reduced = events(place, "durability.reduced")
        service.kill("worker")
        host.worker.kill()
        with place.connect() as connection:
            connection.execute("CREATE TABLE kept AS SELECT 1 AS number")
        received = host.stack.state_dir / "branches" / receiver
        process = receiving(receiver)
        if os.geteuid() == 0:
            of_root = opened_of_root(process)
            assert {path.name for path, can_write in of_root.items() if can_write} == {
                *("null", "receive.pipe")
            }
        wait_for(lambda: service.answers(), "the next worker", timeout=60)
        assert standby(place) == f'"{receiver}"'
        place.client.patch(place.path, {"project": {"settings": {"durability": "host"}}})
        wait_for(lambda: standby(place) == "", "the receiver to be taken out")
        wait_for(lambda: not process.is_running(), "the end of the receiver")
        assert receivers(service, place) == []
        assert events(place, "durability.reduced") == reduced
        assert received.exists()
        place.client.delete(place.path)


@pytest.mark.thorough
def test_another_host_replaces_one_that_is_lost(service: Service) -> None:
    with beside(service, "second") as second, beside(service, "third"):
        place = durable(service, "second", second.stack)
        receiver, first = attached(service, place)
        restored = events(place, "durability.restored")
        writer = Numbers(place)
        with writer.writing():
            with service.stack.database() as database:
                # It takes part no longer.
                database.execute("UPDATE controlplane_host SET draining = (id = %s)", [first])
            receiving(receiver).kill()
            wait_for(lambda: events(place, "durability.restored") != restored, "another host")
        ((_, other, waits),) = receivers(service, place)
        assert ({first, other}, waits) == ({"local", "third"}, True)
        with service.stack.database() as database:
            database.execute("UPDATE controlplane_host SET draining = false")
        place.client.delete(place.path)


@pytest.mark.thorough
def test_a_restore_fetches_the_log_from_the_host_that_has_it(service: Service) -> None:
    with beside(service, "third") as third, beside(service, "second") as second:
        place = durable(service, "second", second.stack)
        with service.stack.database() as database:
            drain = "UPDATE controlplane_host SET draining = %s WHERE id = %s"
            database.execute(drain, [True, "local"])
            receiver, on = attached(service, place)
            assert on == "third"
            writer = Numbers(place, ends_with_service=True)
            with writer.writing():
                second.kill_everything()
                shutil.rmtree(second.stack.state_dir)
            database.execute(drain, [True, "third"])
            database.execute(drain, [False, "local"])
            declare_lost(service, "second")
            place.stack = service.stack
            found = place.query("SELECT array_agg(number ORDER BY number) FROM numbers")[0]
            assert found[: len(writer.done_at)] == list(range(1, len(writer.done_at) + 1))
            history = place.client.get(place.branch_path(None, "/history"))["history"]
            assert history["lost_seconds"] == 0
            database.execute(drain, [False, "third"])
        assert (third.stack.state_dir / "branches" / receiver).exists()
        place.client.delete(place.path)

"""Every process that works in a branch's directory is found with certainty, and ended before
anything else is done there. A pid file that names an unrelated process prevents no start.

The computes here are started in this process, without the service.
"""

import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import psycopg
import pytest
from django.conf import settings

from controlplane.compute import branch_data, compute, pooler, process
from controlplane.compute.accounts import account_of, give, running_as
from controlplane.compute.binaries import postgres_bin
from controlplane.compute.branch_data import branch_dir
from controlplane.compute.configuration import ComputeSpec
from controlplane.compute.door import SOCKET
from controlplane.compute.filesystem import lock_branches
from controlplane.compute.limits import CGROUPS
from controlplane.compute.occupants import (
    is_alive,
    is_leased,
    kill,
    lease,
    owner_of,
    processes_in,
)
from controlplane.compute.patience import OutOfPatience, patience
from controlplane.compute.session import session, socket_dir
from controlplane.compute.steps import Step, recording
from tests.support.own_compute import own_branch, postmaster_of
from tests.support.service import stranger
from tests.support.waiting import wait_for

SPEC = ComputeSpec(
    endpoint_id="ep-quiet-heron-123456",
    branch_id="br-quiet-heron-123456",
    min_cu=0.25,
    max_cu=1,
    pg_settings={
        "fsync": "off",
        "max_wal_size": "8GB",
        "shared_buffers": "256MB",
        "bgwriter_lru_maxpages": "0",
    },
)
BRANCH, ENDPOINT = SPEC.branch_id, SPEC.endpoint_id

pytestmark = pytest.mark.filterwarnings("error")


@pytest.fixture(scope="module")
def computes() -> Iterator[Path]:
    """The directory of a branch in a state directory of this process."""
    with own_branch(BRANCH) as directory:
        yield directory


@pytest.fixture
def branch(computes: Path) -> Iterator[Path]:
    """The same directory. No process works there before and after the test."""
    yield computes
    compute.stop(BRANCH)
    assert processes_in(computes) == []


def write(path: Path, text: str) -> None:
    path.write_text(text)
    give(path, account_of(branch_dir(BRANCH)))


def postmaster() -> psutil.Process:
    return postmaster_of(BRANCH)


def serves() -> bool:
    with session(socket_dir(ENDPOINT)) as connection:
        return connection.execute("SELECT 1").fetchone() == (1,)


@contextmanager
def busy_backend() -> Iterator[psutil.Process]:
    """A backend that is busy forever, and does not notice that its postmaster has died."""
    directory = str(socket_dir(ENDPOINT))
    connection = psycopg.connect(
        host=directory, user="perch_platform", dbname="postgres", autocommit=True
    )
    work = "DO $$ BEGIN LOOP PERFORM 1; END LOOP; END $$"

    def run() -> None:
        with suppress(psycopg.Error):
            connection.execute(work)

    thread = threading.Thread(target=run)
    backend = psutil.Process(connection.info.backend_pid)
    began = backend.cpu_times().user
    thread.start()
    try:
        # A backend that has not begun its query yet would notice the death of its postmaster.
        wait_for(lambda: backend.cpu_times().user > began + 0.05, "the backend to be busy")
        yield backend
    finally:
        thread.join(20)
        connection.close()


class TestFindingProcesses:
    def test_every_process_of_a_compute_is_found_and_no_other(self, branch: Path) -> None:
        compute.start(SPEC)
        family = {postmaster(), *postmaster().children()}
        with stranger(branch / "data"):
            assert family <= set(processes_in(branch)) <= {postmaster(), *postmaster().children()}
        assert processes_in(branch.with_name("br-quiet-heron-12345")) == []

    @pytest.mark.thorough
    def test_a_link_is_not_followed_to_a_compute(self, branch: Path, tmp_path: Path) -> None:
        compute.start(SPEC)
        link = tmp_path / "br-quiet-heron-123456"
        link.symlink_to(branch)
        assert owner_of(link) is None
        assert processes_in(link) == []

    @pytest.mark.thorough
    @pytest.mark.skipif(os.geteuid() != 0, reason="only root could end what is root's")
    def test_a_process_of_root_is_never_ended(self, tmp_path: Path) -> None:
        program = shutil.copy("/bin/sleep", tmp_path / "postgres")
        child = subprocess.Popen([program, "600"], cwd=tmp_path)
        try:
            assert processes_in(tmp_path) == []
        finally:
            child.kill()
            child.wait()

    @pytest.mark.thorough
    def test_the_lease_lasts_as_long_as_the_last_process(self, branch: Path) -> None:
        assert not is_leased(BRANCH)
        compute.start(SPEC)
        assert is_leased(BRANCH)
        assert compute.running_branches() == {BRANCH: ENDPOINT}
        with busy_backend() as backend:
            kill([postmaster()])
            assert is_leased(BRANCH)
            assert compute.running_branches() == {BRANCH: None}
            kill(processes_in(branch))
            assert not is_alive(backend)
        assert not is_leased(BRANCH)


class TestKilledPostmaster:
    @pytest.mark.thorough
    def test_its_children_are_ended_before_the_next_start(self, branch: Path) -> None:
        compute.start(SPEC)
        with busy_backend() as backend:
            kill([postmaster()])
            assert is_alive(backend)
            compute.start(SPEC)
            assert not is_alive(backend)
        assert serves()

    @pytest.mark.thorough
    def test_its_children_are_ended_by_a_stop(self, branch: Path) -> None:
        compute.start(SPEC)
        with busy_backend() as backend:
            kill([postmaster()])
            compute.stop(BRANCH)
            assert not is_alive(backend)

    @pytest.mark.thorough
    def test_its_children_are_found_without_its_pid_file(self, branch: Path) -> None:
        compute.start(SPEC)
        with busy_backend() as backend:
            kill([postmaster()])
            (branch / "data" / "postmaster.pid").unlink()
            compute.stop(BRANCH)
            assert not is_alive(backend)


class TestHangingStart:
    """A start that hangs before postmaster.pid exists: Postgres waits to read its settings from a
    pipe."""

    @pytest.fixture
    def hanging(self, branch: Path) -> Iterator[Path]:
        settings_file = branch / "data" / "postgresql.auto.conf"
        kept = settings_file.rename(settings_file.with_name("kept.conf"))
        os.mkfifo(settings_file)
        give(settings_file, account_of(branch))
        yield branch
        settings_file.unlink()
        kept.rename(settings_file)

    @pytest.mark.thorough
    def test_it_leaves_no_process(self, hanging: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(process, "STILL_START", 0.5)
        monkeypatch.setattr(process, "CHECK_BOUND", 0.5)
        with pytest.raises(process.StartFailed, match="did not"):
            compute.start(SPEC)
        assert processes_in(hanging) == []
        assert list(CGROUPS.glob(f"*/perch/{ENDPOINT}")) == []

    @pytest.mark.thorough
    def test_it_is_given_up_when_its_action_runs_out_of_time(self, hanging: Path) -> None:
        with pytest.raises(OutOfPatience), patience(1):
            compute.start(SPEC)
        assert processes_in(hanging) == []

    @pytest.mark.thorough
    def test_a_start_whose_worker_was_killed_is_ended_by_the_next(self, hanging: Path) -> None:
        with lease(BRANCH) as inherited:
            child = subprocess.Popen(
                [postgres_bin() / "postgres", "-D", hanging / "data"],
                pass_fds=[inherited],
                stderr=subprocess.DEVNULL,
                **running_as(account_of(hanging)),
            )
        wait_for(lambda: processes_in(hanging), "the hanging start")
        assert not (hanging / "data" / "postmaster.pid").exists()
        compute.stop(BRANCH)
        assert child.wait(5) == -signal.SIGKILL


class TestStops:
    @pytest.mark.thorough
    def test_a_stopped_compute_is_continued_and_shut_down(self, branch: Path) -> None:
        compute.start(SPEC)
        for one in [postmaster(), *postmaster().children()]:
            one.suspend()
        began = time.monotonic()
        compute.stop(BRANCH)
        assert time.monotonic() - began < 5
        assert _state_of(branch) == "shut down"

    @pytest.mark.thorough
    def test_a_compute_that_cannot_be_continued_is_killed_soon(self, branch: Path) -> None:
        """It is stopped by a debugger, so a signal does not continue it."""
        compute.start(SPEC)
        found = postmaster()
        with held(found):
            began = time.monotonic()
            compute.stop(BRANCH)
            assert time.monotonic() - began < 10
        assert not is_alive(found)

    @pytest.mark.thorough
    def test_a_long_shutdown_gets_enough_time(
        self, branch: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(process, "STILL_STOPS", ((signal.SIGINT, 0.3), (signal.SIGQUIT, 0.3)))
        compute.start(SPEC)
        with session(socket_dir(ENDPOINT)) as connection:
            connection.execute("CREATE TABLE public.dirty (text text)")
            connection.execute(
                "INSERT INTO public.dirty SELECT repeat('x', 900) FROM generate_series(1, 110000)"
            )
        with throttled(branch, "checkpointer"), patience(0.5):
            began = time.monotonic()
            compute.stop(BRANCH)
            took = time.monotonic() - began
        assert _state_of(branch) == "shut down", f"it was cut short after {took:.1f} s"
        assert took > 0.5, "too quick to show anything"


class TestRecovery:
    @pytest.mark.thorough
    def test_recovery_may_take_longer_than_the_bound(
        self, branch: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(process, "STILL_START", 0.5)
        compute.start(SPEC)
        with session(socket_dir(ENDPOINT)) as connection:
            connection.execute("CREATE TABLE public.kept (number int PRIMARY KEY)")
            connection.execute("INSERT INTO public.kept SELECT generate_series(1, 600000)")
        kill(processes_in(branch))
        parts: list[Step] = []
        with throttled(branch, "startup"), patience(1.0), recording(parts):
            began = time.monotonic()
            compute.start(SPEC)
            took = time.monotonic() - began
        assert took > 1.2, "too quick to show anything"
        with session(socket_dir(ENDPOINT)) as connection:
            assert connection.execute("SELECT count(*) FROM public.kept").fetchone() == (600000,)
        assert [part.name for part in parts] == ["starting", "recovering", "ready"]
        assert 1 << 20 < parts[1].detail["bytes_left"] <= parts[1].detail["bytes"]


class TestStalePidFiles:
    @pytest.fixture(autouse=True)
    def account_of_all(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Only if computes share an account can a process of that account be unrelated."""
        monkeypatch.setattr(compute, "end_account_of", lambda place: None)

    def test_a_postmaster_pid_that_names_an_unrelated_process(self, branch: Path) -> None:
        compute.start(SPEC)
        lines = (branch / "data" / "postmaster.pid").read_text().splitlines()
        sockets = socket_dir(ENDPOINT)
        kill(processes_in(branch))
        with stranger(branch / "data") as other:
            text = "\n".join([str(other.pid), *lines[1:]]) + "\n"
            write(branch / "data" / "postmaster.pid", text)
            write(sockets / ".s.PGSQL.5432.lock", text)
            assert compute.running_endpoint(BRANCH) is None
            compute.start(SPEC)
            assert serves()
            compute.stop(BRANCH)

    @pytest.mark.thorough
    @pytest.mark.skipif(os.geteuid() != 0, reason="only root has other accounts")
    def test_a_pid_file_that_names_another_computes_sockets(self, branch: Path) -> None:
        """The platform would shut and remove these instead of the compute's own."""
        compute.start(SPEC)
        others = socket_dir("ep-other-heron-123456")
        others.mkdir(mode=0o700)
        (others / SOCKET).touch()
        try:
            lines = (branch / "data" / "postmaster.pid").read_text().splitlines()
            lines[4] = str(others)
            write(branch / "data" / "postmaster.pid", "\n".join(lines) + "\n")
            assert compute.running_endpoint(BRANCH) is None
            compute.stop(BRANCH)
            assert [path.name for path in others.iterdir()] == [SOCKET]
        finally:
            shutil.rmtree(others)
            compute.forget_endpoint(ENDPOINT)

    @pytest.mark.thorough
    def test_a_pid_file_is_removed_only_after_all_processes_have_ended(self, branch: Path) -> None:
        """Without the file, Postgres would start beside them."""
        compute.start(SPEC)
        with busy_backend() as backend:
            kill([postmaster()])
            process.clear_stale_pid_file(branch / "data")
            assert not is_alive(backend)
        assert not (branch / "data" / "postmaster.pid").exists()

    @pytest.mark.thorough
    def test_a_pgbouncer_pid_that_names_an_unrelated_process(self, branch: Path) -> None:
        compute.start(SPEC)
        with stranger(branch / "data") as other:
            write(branch / "run" / "pgbouncer.pid", f"{other.pid}\n")
            pooler.ensure_pooler(BRANCH, socket_dir(ENDPOINT), roles=["perch_platform"])
            assert pooled()
            compute.stop(BRANCH)

    @pytest.mark.thorough
    @pytest.mark.parametrize(
        "name", ["data/postmaster.pid", "run/pgbouncer.pid", "postgresql.conf"]
    )
    @pytest.mark.parametrize("kind", ["pipe", "link"])
    def test_a_path_that_is_not_a_regular_file_is_neither_read_nor_written(
        self, branch: Path, tmp_path: Path, name: str, kind: str
    ) -> None:
        target = tmp_path / "of-somebody-else"
        target.write_text(f"{os.getpid()}\n")
        (branch / name).unlink(missing_ok=True)
        if kind == "pipe":
            os.mkfifo(branch / name)
        else:
            (branch / name).symlink_to(target)
        began = time.monotonic()
        assert compute.running_endpoint(BRANCH) is None
        compute.start(SPEC)
        pooler.ensure_pooler(BRANCH, socket_dir(ENDPOINT), roles=["perch_platform"])
        assert serves()
        assert time.monotonic() - began < 10
        assert target.read_text() == f"{os.getpid()}\n"


class TestPoolers:
    def test_a_pooler_stopped_by_a_signal_is_replaced(self, branch: Path) -> None:
        compute.start(SPEC)
        sockets = socket_dir(ENDPOINT)
        pooler.ensure_pooler(BRANCH, sockets, roles=["perch_platform"])
        first = psutil.Process(int((branch / "run" / "pgbouncer.pid").read_text()))
        first.suspend()
        wait_for(lambda: first.status() == psutil.STATUS_STOPPED, "the stop")
        pooler.ensure_pooler(BRANCH, sockets, roles=["perch_platform"])
        assert not is_alive(first)
        assert pooled()

    @pytest.mark.thorough
    def test_a_start_that_hangs_leaves_no_process(
        self, branch: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(pooler, "START_TIMEOUT", 0.5)
        compute.start(SPEC)
        sockets = socket_dir(ENDPOINT)
        with monkeypatch.context() as deaf:
            deaf.setattr(pooler, "_listens", lambda path: False)
            with pytest.raises(pooler.PoolerUnavailable, match="did not start"):
                pooler.ensure_pooler(BRANCH, sockets, roles=["perch_platform"])
        wait_for(lambda: processes_in(branch / "pgbouncer.ini") == [], "the end of the pooler")
        pooler.ensure_pooler(BRANCH, sockets, roles=["perch_platform"])
        assert pooled()


class TestNothingIsLeft:
    @pytest.mark.thorough
    def test_a_suspended_endpoint_has_no_socket_directory(self, branch: Path) -> None:
        compute.start(SPEC)
        assert compute.endpoints_with_sockets() == {ENDPOINT}
        compute.stop(BRANCH)
        assert compute.endpoints_with_sockets() == set()

    @pytest.mark.thorough
    def test_a_removed_branch_has_no_lock(self, branch: Path) -> None:
        other = "br-other-heron-123456"
        locks = Path(settings.STATE_DIR) / "locks"
        with lock_branches(other):
            branch_data.create_from_template(other)
            assert (locks / other).exists()
            compute.remove(other)
        assert not branch_dir(other).exists()
        assert not list(locks.glob(f"{other}*"))

    @pytest.mark.thorough
    def test_a_removed_lock_file_is_created_again(self, branch: Path) -> None:
        """A process that waited for the removed file must not believe that it holds the new one."""
        held_at_once = []
        inside: list[int] = []

        def take() -> None:
            with lock_branches(BRANCH):
                inside.append(1)
                held_at_once.append(len(inside))
                time.sleep(0.01)
                inside.pop()

        with lock_branches(BRANCH):
            threads = [threading.Thread(target=take) for _ in range(8)]
            for thread in threads:
                thread.start()
            (Path(settings.STATE_DIR) / "locks" / BRANCH).unlink()
        for thread in threads:
            thread.join()
        assert held_at_once == [1] * 8

    @pytest.mark.thorough
    def test_waiting_for_a_lock_ends_with_the_attempts_time(self, branch: Path) -> None:
        with lock_branches(BRANCH):
            began = time.monotonic()
            with pytest.raises(OutOfPatience), patience(0.2), lock_branches(BRANCH):
                pass
            assert time.monotonic() - began < 2


def pooled() -> bool:
    with psycopg.connect(
        host=str(socket_dir(ENDPOINT)),
        port=pooler.PORT,
        user="perch_platform",
        dbname="postgres",
        autocommit=True,
    ) as connection:
        return connection.execute("SELECT 1").fetchone() == (1,)


@contextmanager
def throttled(branch: Path, role: str) -> Iterator[None]:
    """Slow the Postgres process with that role, as soon as it exists: it runs for a small part of
    the time."""
    over, holding = threading.Event(), threading.Event()

    def in_that_role() -> list[psutil.Process]:
        found = []
        for one in processes_in(branch / "data"):
            with suppress(psutil.NoSuchProcess):
                if role in " ".join(one.cmdline()):
                    found.append(one)
        return found

    def slow() -> None:
        while not over.is_set():
            for one in in_that_role():
                with suppress(psutil.NoSuchProcess):
                    hold(one)
            over.wait(0.001)

    def hold(one: psutil.Process) -> None:
        while not over.is_set() and is_alive(one):
            one.suspend()
            holding.set()
            over.wait(0.1)
            one.resume()
            over.wait(0.001)

    thread = threading.Thread(target=slow)
    thread.start()
    try:
        if in_that_role():
            holding.wait(10)
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def held(found: psutil.Process) -> Iterator[None]:
    """Stop the process again each time it was continued."""
    over = threading.Event()

    def hold() -> None:
        while not over.is_set():
            with suppress(psutil.NoSuchProcess):
                found.suspend()
            over.wait(0.0005)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _state_of(branch: Path) -> str:
    """Return the cluster's state according to Postgres's control file."""
    told: str = subprocess.run(
        [postgres_bin() / "pg_controldata", "-D", branch / "data"],
        capture_output=True,
        text=True,
        check=True,
        **running_as(account_of(branch)),
    ).stdout
    (line,) = [line for line in told.splitlines() if line.startswith("Database cluster state")]
    return line.partition(":")[2].strip()

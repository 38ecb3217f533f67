"""Every process that works in a branch's directory is found with certainty, and ended before
anything else is done there. A pid file that names an unrelated process prevents no start.

The computes here are started in this process, without the service.
"""

import os
import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import psutil
import psycopg
import pytest

from controlplane.compute import compute, pooler
from controlplane.compute.data.branch_data import branch_dir, staging_id
from controlplane.compute.host.accounts import account_of, set_owner
from controlplane.compute.host.filesystem import lock_branches
from controlplane.compute.host.listener_socket import SOCKET
from controlplane.compute.processes import process
from controlplane.compute.processes.occupants import (
    is_alive,
    is_leased,
    kill,
    owner_of,
    processes_in,
)
from controlplane.compute.processes.session import session, socket_dir
from tests.controlplane.local_compute import (
    BRANCH,
    ENDPOINT,
    SPEC,
    branch,
    busy_backend,
    computes,
    postmaster,
    serves,
)
from tests.support.service import stranger
from tests.support.waiting import wait_for

pytestmark = pytest.mark.filterwarnings("error")
__all__ = ["branch", "computes"]  # fixtures

CLIENT = "client"


def write(path: Path, text: str) -> None:
    path.write_text(text)
    set_owner(path, account_of(branch_dir(BRANCH)))


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
    def test_its_children_are_found_without_its_pid_file(self, branch: Path) -> None:
        compute.start(SPEC)
        with busy_backend() as backend:
            kill([postmaster()])
            (branch / "data" / "postmaster.pid").unlink()
            compute.stop(BRANCH)
            assert not is_alive(backend)


class TestStalePidFiles:
    @pytest.fixture(autouse=True)
    def account_of_all(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Only if computes share an account can a process of that account be unrelated."""
        for name in ("end_account_of", "remove_objects_of"):
            monkeypatch.setattr(compute, name, lambda place: None)

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
            pooler.ensure_pooler(BRANCH, socket_dir(ENDPOINT), roles=[CLIENT])
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
        pooler.ensure_pooler(BRANCH, socket_dir(ENDPOINT), roles=[CLIENT])
        assert serves()
        assert time.monotonic() - began < 10
        assert target.read_text() == f"{os.getpid()}\n"


class TestPoolers:
    def test_a_pooler_stopped_by_a_signal_is_replaced(self, branch: Path) -> None:
        compute.start(SPEC)
        sockets = socket_dir(ENDPOINT)
        pooler.ensure_pooler(BRANCH, sockets, roles=[CLIENT])
        first = psutil.Process(int((branch / "run" / "pgbouncer.pid").read_text()))
        first.suspend()
        wait_for(lambda: first.status() == psutil.STATUS_STOPPED, "the stop")
        pooler.ensure_pooler(BRANCH, sockets, roles=[CLIENT])
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
                pooler.ensure_pooler(BRANCH, sockets, roles=[CLIENT])
        wait_for(lambda: processes_in(branch / "pgbouncer.ini") == [], "the end of the pooler")
        pooler.ensure_pooler(BRANCH, sockets, roles=[CLIENT])
        assert pooled()


def pooled() -> bool:
    with session(socket_dir(ENDPOINT)) as own, suppress(psycopg.errors.DuplicateObject):
        own.execute(f"CREATE ROLE {CLIENT} LOGIN".encode())
    with psycopg.connect(
        host=str(socket_dir(ENDPOINT)),
        port=pooler.PORT,
        user=CLIENT,
        dbname="postgres",
        autocommit=True,
    ) as connection:
        return connection.execute("SELECT 1").fetchone() == (1,)


def test_a_removed_branch_leaves_no_lock_of_work_that_was_killed(computes: Path) -> None:
    gone, locks = "br-gone-heron-123456", computes.parent.parent / "locks"
    # Work that is killed leaves the file behind.
    (locks / staging_id(gone)).touch()
    with lock_branches(gone):
        compute.remove(gone)
    assert [path.name for path in locks.iterdir() if gone in path.name] == []

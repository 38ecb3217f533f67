"""Processes that a compute starts end with the compute, however they try to hide, and its account
number is not assigned again while any process runs under it.

The computes here are started in this process, without the service.
"""

import fcntl
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
import psycopg
import pytest
from django.conf import settings

from controlplane.compute import compute
from controlplane.compute.host import account_numbers
from controlplane.compute.host.account_numbers import (
    new_account,
    processes_by_number,
    recorded_directory,
)
from controlplane.compute.host.accounts import (
    Account,
    AccountUnusable,
    account_of,
    running_as,
    upgrade_account,
)
from controlplane.compute.host.filesystem import lock_branches
from controlplane.compute.processes import account_processes, limits
from controlplane.compute.processes.account_processes import end_stray_accounts
from controlplane.compute.processes.limits import CGROUPS, max_processes
from controlplane.compute.processes.session import session, socket_dir
from controlplane.compute.settings.configuration import ComputeSpec
from controlplane.compute.upgrade import major_upgrade
from tests.controlplane.compute.test_limits import group_of
from tests.selection import first_of
from tests.support.own_compute import own_branch, postmaster_of
from tests.support.stack import ROOT
from tests.support.waiting import wait_for

BRANCH, ENDPOINT = "br-stray-heron-123456", "ep-stray-heron-123456"
SPEC = ComputeSpec(ENDPOINT, BRANCH, min_cu=0.25, max_cu=0.25, pg_settings={"fsync": "off"})
# A daemon that leaves its parent, its session and every inherited descriptor. It is in Perl, which
# any account can run on any host. Its children hold the lock of a file, by which they are found.
DAEMON = """
use POSIX;
exit if fork; POSIX::setsid(); exit if fork;
POSIX::close($_) for 0 .. 1023;
open(my $mark, ">", "loose"); flock($mark, 2);
{work}
"""
WAITS = "sleep 600;"
# It forks and exits continuously, so it has another process id in every list of processes.
FLEES = "while (1) { exit if fork; }"
# Whoever ends it must be quicker.
KILLS_ALL = "while (1) { kill 9, -1; }"

pytestmark = [
    pytest.mark.filterwarnings("error"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root has other accounts"),
]


@pytest.fixture(scope="module")
def computes() -> Iterator[Path]:
    with own_branch(BRANCH) as directory:
        yield directory


@pytest.fixture
def branch(computes: Path) -> Iterator[Path]:
    yield computes
    compute.stop(BRANCH)
    assert not alive(computes)


@pytest.fixture(params=["by its control group", "by its account"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The way a host ends a compute: with control groups, and without them."""
    if request.param == "by its account":
        monkeypatch.setattr(compute, "limit_compute", lambda *_, **__: False)
    elif not (CGROUPS / "pids" / "cgroup.procs").exists():
        pytest.skip("no right to make version 1 control groups here")


def alive(branch: Path) -> list[int]:
    """Return the processes of the branch's account."""
    return processes_by_number().get(account_of(branch).uid, [])


def let_loose(work: str) -> None:
    """Start a daemon from the compute, as an attacker could."""
    program = f"perl -e {shlex.quote(DAEMON.replace('{work}', work))}"
    with session(socket_dir(ENDPOINT)) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS public.said (text text)")
        connection.execute(f"COPY public.said FROM PROGRAM {psycopg.sql.quote(program)}".encode())


def is_loose(branch: Path) -> bool:
    """Return whether the daemon, or anything that it has forked, is alive."""
    try:
        with (branch / "data" / "loose").open() as mark:
            fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


@contextmanager
def process_of(account: Account) -> Iterator[psutil.Process]:
    child = subprocess.Popen(["sleep", "600"], **running_as(account))
    try:
        yield psutil.Process(child.pid)
    finally:
        child.kill()
        child.wait()


@pytest.mark.usefixtures("way")
class TestEndOfACompute:
    @pytest.mark.parametrize("work", [WAITS, FLEES], ids=["waits", "flees"])
    def test_a_suspend_ends_daemons(self, branch: Path, work: str) -> None:
        compute.start(SPEC)
        let_loose(work)
        wait_for(lambda: is_loose(branch), "the daemon")
        compute.stop(BRANCH)
        wait_for(lambda: not is_loose(branch), "its end", timeout=1)

    @pytest.mark.thorough
    def test_a_daemon_that_kills_processes_of_its_account(self, branch: Path) -> None:
        compute.start(SPEC)
        pid = postmaster_of(BRANCH).pid
        with suppress(psycopg.OperationalError):  # it kills the session that started it, too
            let_loose(KILLS_ALL)
        wait_for(lambda: not psutil.pid_exists(pid), "the end of its Postgres")
        assert is_loose(branch)
        compute.stop(BRANCH)
        wait_for(lambda: not is_loose(branch), "its end", timeout=1)

    @pytest.mark.thorough
    def test_processes_of_others_are_not_ended(self, branch: Path) -> None:
        compute.start(SPEC)
        other = account_of(branch).uid + 1
        with process_of(Account(other, account_of(branch).gid)) as neighbour:
            compute.stop(BRANCH)
            assert neighbour.status() != psutil.STATUS_ZOMBIE


@pytest.mark.thorough
def test_a_removed_branch_leaves_no_process() -> None:
    doomed = "br-doomed-heron-123456"
    with own_branch(doomed) as directory, lock_branches(doomed):
        account = account_of(directory)
        with process_of(account):
            compute.remove(doomed)
            wait_for(lambda: account.uid not in processes_by_number(), "its end")


@pytest.mark.thorough
def test_an_account_that_all_computes_share_is_left_alone(
    branch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = account_of(branch)
    monkeypatch.setattr(account_processes, "shared_account", lambda: account)
    with process_of(account) as neighbour:
        account_processes.end_account_of(branch)
        end_stray_accounts()
        assert neighbour.status() != psutil.STATUS_ZOMBIE


@pytest.mark.thorough
def test_its_processes_cannot_change_their_account(branch: Path) -> None:
    """By a file with the setuid bit, its own or root's."""
    compute.start(SPEC)
    pid = postmaster_of(BRANCH).pid
    assert "NoNewPrivs:\t1\n" in Path(f"/proc/{pid}/status").read_text()


class TestRounds:
    def test_stray_processes_of_an_idle_branch_are_ended(self, branch: Path) -> None:
        with process_of(account_of(branch)):
            assert alive(branch)
            end_stray_accounts()
            assert not alive(branch)

    @pytest.mark.thorough
    def test_processes_of_an_active_branch_are_left_alone(self, branch: Path) -> None:
        compute.start(SPEC)
        with process_of(account_of(branch)) as helper:
            end_stray_accounts()
            assert helper.pid in alive(branch)

    @pytest.mark.thorough
    def test_processes_of_a_branch_with_an_operation_are_left_alone(self, branch: Path) -> None:
        with process_of(account_of(branch)) as helper, lock_branches(BRANCH):
            end_stray_accounts()
            assert helper.pid in alive(branch)

    @pytest.mark.thorough
    def test_processes_of_a_removed_branch_are_ended(self, branch: Path) -> None:
        gone = new_account(branch.parent)
        assert recorded_directory(gone.uid) == branch.parent
        with process_of(gone):
            end_stray_accounts()
            assert gone.uid not in processes_by_number()


def test_an_upgrade_by_another_perch_of_this_host_is_not_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """pg_upgrade has the same account in both."""
    monkeypatch.setattr(account_numbers, "CLAIMS", tmp_path)

    def turn_to(name: str) -> None:
        (tmp_path / name).mkdir(exist_ok=True)
        monkeypatch.setattr(settings, "STATE_DIR", tmp_path / name)

    turn_to("one")
    with major_upgrade._upgrade_lock(BRANCH), process_of(upgrade_account()) as process:
        turn_to("another")
        major_upgrade._end_earlier(BRANCH)
        assert process.is_running()
        assert process.status() != psutil.STATUS_ZOMBIE
    with process_of(upgrade_account()) as left:
        major_upgrade._end_earlier(BRANCH)
        assert left.wait(30) == -signal.SIGKILL


def test_a_worker_under_its_own_account_holds_the_same_lock_on_upgrades(tmp_path: Path) -> None:
    (tmp_path / "claims").mkdir(mode=0o700)
    program = f"""
import os, pathlib
os.environ.update(DJANGO_SETTINGS_MODULE="controlplane.settings", PERCH_STATE_DIR={str(tmp_path)!r})
import django
django.setup()
from controlplane.compute.host import account_numbers
from controlplane.compute.upgrade import major_upgrade
account_numbers.CLAIMS = pathlib.Path({str(tmp_path / "claims")!r})
assert os.geteuid() and major_upgrade.shared_account() is None
with major_upgrade._locked_account(0):
    print(os.listdir(account_numbers.CLAIMS))
"""
    rights = "+setuid,+dac_override,+dac_read_search"
    named = ["--reuid", "65534", "--clear-groups", "--inh-caps", rights, "--ambient-caps", rights]
    ended = subprocess.run(
        ["setpriv", *named, sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT
    )
    assert ended.stdout == "['upgrade']\n", ended.stderr


class TestAccountNumbers:
    @pytest.fixture(autouse=True)
    def few(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr(account_numbers, "CLAIMS", tmp_path / "claims")
        monkeypatch.setattr(settings, "COMPUTE_UIDS", "45710-45711")

    @pytest.fixture
    def new_branches(self, tmp_path: Path) -> Callable[[str], Path]:
        def make(name: str) -> Path:
            place = tmp_path / name
            place.mkdir()
            return place

        return make

    @pytest.mark.parametrize("ids", first_of(["ruid", "euid", "suid"]))
    def test_a_number_with_processes_is_not_assigned(
        self, new_branches: Callable[[str], Path], ids: str
    ) -> None:
        branches = new_branches("branches")
        numbers = [45710 if name == ids else -1 for name in ("ruid", "euid", "suid")]
        program = f"import os, time; os.setresuid(*{numbers}); print(1, flush=True); time.sleep(99)"
        with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as child:
            try:
                assert child.stdout is not None
                child.stdout.readline()
                assert {new_account(branches).uid for _ in range(20)} == {45711}
            finally:
                child.kill()

    def test_numbers_that_were_never_used_come_first(
        self, new_branches: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What a branch that is gone has left elsewhere, such as in /tmp, is then nobody's."""
        monkeypatch.setattr(settings, "COMPUTE_UIDS", "45710-45729")
        branches = new_branches("branches")
        assert len({new_account(branches).uid for _ in range(20)}) == 20
        assert new_account(branches).uid in range(45710, 45730)

    @pytest.mark.thorough
    def test_two_branches_of_a_host_never_have_the_same_number(
        self, new_branches: Callable[[str], Path]
    ) -> None:
        ours, theirs = new_branches("ours"), new_branches("theirs")
        place = ours / "br-1"
        place.mkdir()
        os.chown(place, 0, new_account(ours).gid)
        for _ in range(20):
            assert new_account(theirs).gid != place.stat().st_gid

    @pytest.mark.thorough
    def test_a_removed_branch_releases_its_number(
        self, new_branches: Callable[[str], Path]
    ) -> None:
        ours, theirs = new_branches("ours"), new_branches("theirs")
        for number in ("1", "2"):
            (ours / number).mkdir()
            os.chown(ours / number, 0, new_account(ours).gid)
        with pytest.raises(AccountUnusable, match="PERCH_COMPUTE_UIDS"):
            new_account(theirs)
        freed = (ours / "1").stat().st_gid
        (ours / "1").rmdir()
        assert new_account(theirs).gid == freed


def test_the_number_of_a_computes_processes_is_limited(branch: Path) -> None:
    compute.start(SPEC)
    pid = postmaster_of(BRANCH).pid
    most = max_processes(SPEC.max_cu)
    assert f"Max processes             {most} " in Path(f"/proc/{pid}/limits").read_text()
    if (CGROUPS / "pids" / "perch").exists():
        group = group_of(pid, "pids")
        assert (group / "pids.max").read_text() == f"{most}\n"
        assert str(pid) in (group / "cgroup.procs").read_text().split()


@pytest.mark.thorough
@pytest.mark.usefixtures("way")
def test_at_the_limit_new_clients_are_refused_and_others_continue(
    branch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (compute, limits):
        monkeypatch.setattr(module, "max_processes", lambda max_cu: 16)
    compute.start(SPEC)
    with ExitStack() as sessions:
        first = sessions.enter_context(session(socket_dir(ENDPOINT)))

        def fill() -> None:
            for _ in range(16):
                sessions.enter_context(session(socket_dir(ENDPOINT)))

        with pytest.raises(psycopg.OperationalError, match="could not fork new process"):
            fill()
        assert first.execute("SELECT 1").fetchone() == (1,)
    wait_for(answers, "room for the next")


def answers() -> bool:
    with suppress(psycopg.OperationalError), session(socket_dir(ENDPOINT)) as connection:
        return connection.execute("SELECT 1").fetchone() == (1,)
    return False


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has other accounts")
def test_a_flood_of_files_in_shared_memory_is_removed_quickly() -> None:
    number = 50_777
    script = "mkdir -p d/e; : > d/e/f; chmod 0 d/e d; ln -s /etc link; touch f{1..999}"
    place = Path(tempfile.mkdtemp(dir="/dev/shm"))
    place.chmod(0o777)
    try:
        subprocess.run(["bash", "-c", script], cwd=place, user=number, group=number, check=True)
        for entry in place.iterdir():
            entry.rename(place.with_name(f"{place.name}-{entry.name}"))
        began = time.monotonic()
        account_processes._end_account(number)
        assert time.monotonic() - began < 3
        assert number not in account_processes.owners_of_objects()
        assert Path("/etc/passwd").exists()
    finally:
        place.rmdir()

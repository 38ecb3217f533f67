"""`up` as root runs each process under an account of its own, with the rights of one table."""

import inspect
import os
import pwd
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests
from django.conf import settings

from controlplane.compute.host.accounts import ENVIRONMENT, named_account
from controlplane.deployment import process_setup
from controlplane.deployment.process_setup import choose_accounts
from controlplane.process_accounts import CAPABILITIES, KINDS, VARIABLE
from controlplane.proxy.directory import host_calls
from controlplane.proxy.directory.host_calls import HostCalls, fork_host_process
from controlplane.proxy.wire.errors import ControlPlaneUnavailable
from tests.support.majors import debians_postgres
from tests.support.ordinary_user import as_ordinary_user, own_checkout, own_python
from tests.support.place import Place
from tests.support.processes import is_alive, postmaster_in
from tests.support.stack import StartedStack, new_state_dir, running_stack
from tests.support.waiting import wait_for

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root has accounts for processes")

NUMBER = 50_001  # an account number of no branch
# What the processes of a kind have in their command lines.
SIGNS = {
    "web": "console.wsgi",
    "api": "controlplane.wsgi",
    "metrics": "manage.py metrics",
    "worker": "manage.py worker",
    "proxy": "manage.py proxy",
    "host": "manage.py proxy",
}
# For each of the worker's capabilities, what it could not do without it. `other` is a process under
# another account, and `theirs` a file of that account.
NEEDS = {
    "CHOWN": "os.chown(ours, 50002, 50002)",
    "DAC_OVERRIDE": "open(theirs).read()",
    "FOWNER": "os.chmod(theirs, 0o640)",
    "KILL": "os.kill(other, 0)",
    "NET_ADMIN": (
        "with p.passing_capabilities():\n"
        "    subprocess.run(['/usr/sbin/nft', 'list', 'tables'], check=True)"
    ),
    "SETGID": "subprocess.run(['true'], group=50002, check=True)",
    "SETUID": "subprocess.run(['true'], user=50002, check=True)",
    "SYS_PTRACE": "os.readlink(f'/proc/{other}/exe')",
}


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A directory with a Python and a checkout that all accounts can read."""
    with new_state_dir() as directory:
        own_python(directory / "venv")
        own_checkout(directory / "checkout")
        yield directory


@pytest.fixture(scope="module")
def own_stack(place: Path) -> Iterator[StartedStack]:
    state_dir = place / "state"
    state_dir.mkdir()
    with started(place, state_dir, PERCH_HISTORY_STORE=f"file://{place}/store") as stack:
        yield stack


def started(
    place: Path, state_dir: Path, *, switch: str = "on", **environment: Any
) -> AbstractContextManager[StartedStack]:
    program = (place / "venv" / "bin" / "python", "manage.py")
    checkout = place / "checkout"
    return running_stack(
        state_dir,
        program,
        cwd=checkout,
        PERCH_PROCESS_ACCOUNTS=switch,
        PERCH_POSTGRES_BINS=f"15={debians_postgres()}",
        **environment,
    )


def processes(stack: StartedStack, kind: str) -> list[psutil.Process]:
    """The processes of the kind, found by their command line and, for the two kinds of the proxy's
    processes, by their account."""
    found = []
    for process in psutil.Process(stack.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if SIGNS[kind] in " ".join(process.cmdline()):
                account = pwd.getpwuid(process.uids().real).pw_name
                if kind not in ("proxy", "host") or account == KINDS[kind].account:
                    found.append(process)
    return found


def status_of(process: psutil.Process) -> dict[str, str]:
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def names_of(mask: str) -> set[str]:
    known = {1 << number: name for name, number in CAPABILITIES.items()}
    bits = int(mask, 16)
    return {known.get(1 << n, str(n)) for n in range(64) if bits >> n & 1}


@pytest.mark.thorough
@pytest.mark.parametrize("kind", SIGNS)
def test_each_process_has_the_rights_of_the_table(own_stack: StartedStack, kind: str) -> None:
    wanted, account = KINDS[kind], pwd.getpwnam(KINDS[kind].account)
    found = processes(own_stack, kind)
    assert found
    for process in found:
        status = status_of(process)
        assert set(status["Uid"].split()[:3]) == {str(account.pw_uid)}
        assert set(status["Gid"].split()[:3]) == {str(account.pw_gid)}
        groups = {account.pw_gid, *(named_account(name).gid for name in wanted.groups)}
        assert set(map(int, status["Groups"].split())) == groups
        for name in ("CapPrm", "CapEff", "CapBnd"):
            assert names_of(status[name]) == set(wanted.capabilities), (kind, name)
        assert status["NoNewPrivs"] == "1"
        if kind in ("worker", "host"):
            # Programs that these execute get none.
            assert names_of(status["CapAmb"]) == set()


@pytest.mark.thorough
def test_computes_and_poolers_have_no_capabilities(own_stack: StartedStack) -> None:
    project = Place.create(own_stack, own_stack.client())
    with project.connect(pooled=True) as connection:
        connection.execute("SELECT 1")
        postmaster = postmaster_in(own_stack.data_dir(project.branch_id))
        pooler = int(
            (own_stack.data_dir(project.branch_id).parent / "run/pgbouncer.pid").read_text()
        )
        for process in (postmaster, *postmaster.children(), psutil.Process(pooler)):
            status = status_of(process)
            for name in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
                assert names_of(status[name]) == set()
            assert set(status["Uid"].split()) == {str(postmaster.uids().real)}
            assert status["Groups"] == ""
    path = own_stack.state_dir / "sockets" / project.endpoint_id
    assert (path.stat().st_uid, path.stat().st_mode & 0o777) == (postmaster.uids().real, 0o710)


@pytest.mark.slow
def test_the_workers_account_upgrades_a_project(own_stack: StartedStack, place: Path) -> None:
    project = Place.create(own_stack, own_stack.client(), pg_version=15)
    project.sql("CREATE TABLE birds AS SELECT 'robin' AS name")
    command = [str(place / "venv/bin/python"), "manage.py", "upgrade_project", project.id]
    options = ["--to", "18", "--state-dir", str(own_stack.state_dir)]
    subprocess.run([*command, *options], cwd=place / "checkout", check=True, timeout=300)
    with project.connect() as connection:
        assert connection.execute("SELECT name FROM birds").fetchall() == [("robin",)]
        assert connection.info.server_version // 10000 == 18


@pytest.mark.thorough
def test_the_proxy_can_read_neither_keys_nor_data(own_stack: StartedStack) -> None:
    project = Place.create(own_stack, own_stack.client())
    state_dir = own_stack.state_dir
    (api, *_), (worker, *_) = processes(own_stack, "api"), processes(own_stack, "worker")
    secrets = [
        *(state_dir / name for name in ("secret-key", "api-key", "metadata/PG_VERSION")),
        *(state_dir / "keys" / name / "secret-key" for name in ("web", "api", "worker")),
        *(state_dir / name for name in ("tls/authority.key", "log/proxy.log")),
        own_stack.data_dir(project.branch_id) / "PG_VERSION",
        *(Path(f"/proc/{process.pid}/environ") for process in (api, worker)),
    ]
    assert all(path.exists() for path in secrets)
    refused = as_kind(
        "proxy",
        "for path in sys.argv[1:]:\n"
        "    try: open(path).read()\n"
        "    except PermissionError: print(path)",
        *map(str, secrets),
    )
    assert refused.splitlines() == [str(path) for path in secrets]


@pytest.mark.thorough
def test_the_proxy_never_had_the_secret_key_in_its_memory(own_stack: StartedStack) -> None:
    key = (own_stack.state_dir / "secret-key").read_bytes()
    found = {
        kind: [one for one in processes(own_stack, kind) if has_in_memory(one, key)]
        for kind in ("api", "proxy", "web")
    }
    # The search finds it where it is.
    assert found["api"]
    assert found["proxy"] == found["web"] == []


def has_in_memory(process: psutil.Process, text: bytes) -> bool:
    with open(f"/proc/{process.pid}/mem", "rb", buffering=0) as memory:
        for line in Path(f"/proc/{process.pid}/maps").read_text().splitlines():
            area, rights, *_ = line.split()
            begin, end = (int(part, 16) for part in area.split("-"))
            if "w" in rights:
                with suppress(OSError, OverflowError, ValueError):
                    memory.seek(begin)
                    if text in memory.read(end - begin):
                        return True
    return False


def as_kind(kind: str, program: str, *arguments: str, without: str = "") -> str:
    """Run the program with the rights of the kind, except one capability. Returns what it
    prints."""
    prepared = (
        "import os, subprocess, sys\n"
        "from controlplane import process_accounts as p\n"
        f"p.KINDS[{kind!r}].capabilities.pop({without!r}, None)\n"
        f"p.become({kind!r})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", prepared + program, *arguments],
        cwd=settings.ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_the_worker_needs_each_of_its_capabilities(state_dir: Path) -> None:
    """And each is listed here with what would fail without it."""
    assert NEEDS.keys() == KINDS["worker"].capabilities.keys()
    assert NEEDS.keys() - {"NET_ADMIN"} == KINDS["host"].capabilities.keys()
    ours, theirs = state_dir / "ours", state_dir / "theirs"
    for path in (ours, theirs):
        path.touch(mode=0o600)
    worker = named_account("perch-worker")
    with subprocess.Popen(["sleep", "600"], user=NUMBER, group=NUMBER, env=ENVIRONMENT) as other:
        try:
            for name, action in NEEDS.items():
                os.chown(ours, worker.uid, worker.gid)
                os.chown(theirs, NUMBER, NUMBER)
                assignments = f"ours, theirs, other = {str(ours)!r}, {str(theirs)!r}, {other.pid}\n"
                as_kind("worker", assignments + action)
                os.chown(ours, worker.uid, worker.gid)
                with pytest.raises(subprocess.CalledProcessError):
                    as_kind("worker", assignments + action, without=name)
        finally:
            other.kill()


@pytest.mark.thorough
def test_figures_and_sign_in_links_cross_the_accounts(own_stack: StartedStack, place: Path) -> None:
    address = (own_stack.state_dir / "metrics-address").read_text().strip()
    text = requests.get(address, timeout=30).text
    for process in ("api", "proxy", "worker", "metrics"):
        assert f'perch_processes{{process="{process}"}}' in text
    link = subprocess.run(
        [*(place / "venv" / "bin" / "python", "manage.py", "sign_in_link")],
        cwd=place / "checkout",
        env={**os.environ, "PERCH_STATE_DIR": str(own_stack.state_dir)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    assert requests.get(link, timeout=30).status_code == 200
    for path in (own_stack.state_dir / "web").rglob("*"):
        assert path.owner() == "perch-web"


@pytest.mark.thorough
def test_a_dead_host_process_is_replaced_and_no_client_notices(own_stack: StartedStack) -> None:
    project = Place.create(own_stack, own_stack.client())
    parent, child = processes(own_stack, "host")
    with project.connect() as connection:
        child.kill()
        # The pooler is started by the next one.
        with project.connect(pooled=True) as pooled:
            pooled.execute("SELECT 1")
        before = set(processes(own_stack, "proxy"))
        parent.kill()
        # The proxy cannot replace this one, so another proxy takes its place.
        wait_for(lambda: before.isdisjoint(processes(own_stack, "proxy")), "the main one's end")
        count = len(before)
        wait_for(lambda: len(processes(own_stack, "proxy")) == count, "another proxy", timeout=60)
        connection.execute("SELECT 1")
        with project.connect(pooled=True) as pooled:
            pooled.execute("SELECT 1")


@pytest.mark.thorough
def test_a_state_directory_is_taken_over_and_given_back(place: Path) -> None:
    """The second start finds what processes of root have made, as those of earlier releases, and
    the third, without accounts, what the second has made."""
    with new_state_dir() as state_dir:
        with started(place, state_dir, switch="off") as stack:
            project = Place.create(stack, stack.client())
            for kind in ("web", "api", "worker", "metrics"):
                assert {process.uids().real for process in processes(stack, kind)} == {0}
        for switch, owner in (("on", "perch-worker"), ("off", "root")):
            with started(place, state_dir, switch=switch) as stack:
                project.stack, project.client.api_url = stack, stack.api_url
                assert "cannot run under accounts" not in (state_dir / "up.log").read_text()
                (worker,) = processes(stack, "worker")
                assert pwd.getpwuid(worker.uids().real).pw_name == owner
                for pooled in (False, True):
                    with project.connect(pooled=pooled) as connection:
                        connection.execute("SELECT 1")
                assert requests.get(f"{stack.console_url}/sign-in", timeout=30).ok
                assert (state_dir / "keys").exists() == (switch == "on")


def test_code_that_the_accounts_cannot_read_runs_as_root(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`up` says why, and what to do."""
    hidden = state_dir / "hidden"
    hidden.mkdir(mode=0o700)
    python = hidden / "python"
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setenv(VARIABLE, "on")
    notice = choose_accounts() or ""
    assert "run as root" in notice
    assert "other accounts cannot run" in notice
    assert "/opt" in notice
    assert os.environ[VARIABLE] == "off"
    assert process_setup.launcher() == ""


@pytest.mark.slow
@pytest.mark.parametrize("account", [{}, as_ordinary_user()], ids=["root", "ordinary user"])
def test_nothing_changes_if_switched_off_or_for_an_ordinary_user(
    account: dict[str, Any], place: Path
) -> None:
    program = (
        "import django; django.setup()\n"
        "from controlplane.deployment import process_setup as s\n"
        "print([s.choose_accounts(), s.launcher()])"
    )
    switch = {} if account else {VARIABLE: "off"}
    done = subprocess.run(
        [place / "venv" / "bin" / "python", "-c", program],
        cwd=place / "checkout",
        env={**ENVIRONMENT, **switch, "DJANGO_SETTINGS_MODULE": "controlplane.settings"},
        capture_output=True,
        text=True,
        check=True,
        **account,
    )
    assert done.stdout == "[None, '']\n"


def has_some(directory: Path, pattern: str) -> bool:
    return any(directory.glob(pattern))


@pytest.mark.thorough
def test_the_worker_copies_rows_and_branches_to_the_store(
    own_stack: StartedStack, place: Path
) -> None:
    made = Place.create(own_stack, own_stack.client())
    store = place / "store"
    for name in (f"branches/{made.branch_id}/lists", "metadata"):
        found = partial(has_some, store, f"regions/*/*/{name}/*")
        wait_for(found, f"the copy of {name}")


def test_each_call_has_as_many_kinds_of_arguments_as_its_function_takes() -> None:
    calls = host_calls.calls()
    assert len(calls) == 12  # as SECURITY.md says
    assert host_calls.ARGUMENTS.keys() <= calls.keys()
    for name, do in calls.items():
        if name != "take_out_ended":  # a wrapper, which takes any
            takes = inspect.signature(do).parameters
            assert len(host_calls.ARGUMENTS.get(name, ())) == len(takes), name


def test_the_host_process_answers_only_calls_of_the_table(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    called = tmp_path / "called"
    monkeypatch.setattr(
        host_calls,
        "calls",
        lambda: {
            "running_endpoint": lambda branch: called.write_text(branch) and "ep-found",
            "start_pooler": lambda endpoint, branch: called.write_text(endpoint + branch),
            "open_log": lambda: os.open("/dev/null", os.O_RDONLY),
        },
    )
    requests, parent = fork_host_process(lambda: None)
    with requests:
        host = HostCalls(requests)
        assert host.call("running_endpoint", "br-quiet-heron-123456") == "ep-found"
        called.unlink()
        for name, *arguments in (
            ("running_endpoint", "../br-quiet-heron-123456"),
            ("running_endpoint", ".br-quiet-heron-123456"),
            ("import_catalog", "ep-quiet-heron-123456"),
            ("running_endpoint", "br-one", "br-two"),
            ("running_endpoint",),
            ("running_endpoint", "ep-quiet-heron-123456"),
            ("start_pooler", "br-quiet-heron-123456", "ep-quiet-heron-123456"),
            ("start_pooler", "ep-quiet-heron-123456", "ep-quiet-heron-123456"),
            ("start_pooler", "ep-quiet-heron-123456", "lr-quiet-heron-123456"),
            ("start_pooler", "ep-quiet-heron-123456", "br-one\n"),
            ("open_log", "br-quiet-heron-123456"),
        ):
            with pytest.raises(ControlPlaneUnavailable):
                host.call(name, *arguments)
        assert not called.exists()
        descriptor = host.call("open_log")
        assert os.readlink(f"/proc/self/fd/{descriptor}") == "/dev/null"
        os.close(descriptor)
        # It ignores signals to the proxy, and ends with the last process that can call it.
        os.kill(parent, signal.SIGTERM)
        assert is_alive(psutil.Process(parent))
    wait_for(partial(has_exited, parent), "its end")


def has_exited(pid: int) -> bool:
    return os.waitpid(pid, os.WNOHANG) == (pid, 0)

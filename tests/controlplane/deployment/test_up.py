"""`manage.py up`: the whole service with one command, and `create_api_key`."""

import os
import re
import resource
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
import pytest
import requests
from django.core.management.base import CommandError

from controlplane.deployment import host_resources
from controlplane.deployment.host_resources import raise_file_limit, refuse_few_processes
from controlplane.deployment.supervision import MARK, Program, Supervisor, end_leftovers
from controlplane.management.commands.up import stop_on_signals
from tests.support.client import Client
from tests.support.processes import is_alive
from tests.support.released_state import check, fill
from tests.support.stack import ROOT, Stack, free_port, running_stack
from tests.support.waiting import wait_for


def up(state_dir: Path, *arguments: str, **environment: str) -> "subprocess.Popen[str]":
    """Run `up` as from a terminal, also if these tests run under nohup, which it would inherit."""
    return subprocess.Popen(
        [sys.executable, str(ROOT / "manage.py"), "up", "--state-dir", str(state_dir), *arguments],
        cwd=ROOT,
        env={**{k: v for k, v in os.environ.items() if "DJANGO" not in k}, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
    )


def refused(state_dir: Path, *arguments: str, **environment: str) -> str:
    """Return what an `up` prints that exits at once: one line without a traceback."""
    process = up(state_dir, *arguments, **environment)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1, output
    assert "Traceback" not in output
    return output


@contextmanager
def occupied(port: int) -> Iterator[None]:
    """Occupy the port, unless another process occupies it already."""
    with socket.socket() as listener:
        with suppress(OSError):
            listener.bind(("127.0.0.1", port))
            listener.listen()
        yield


def ports() -> list[str]:
    names = ("console", "api", "proxy")
    return [part for name in names for part in (f"--{name}-port", str(free_port()))]


def test_it_works(stack: Stack) -> None:
    """It prints the addresses of all parts, and these exist."""
    greeting = (stack.state_dir / "up.log").read_text()
    assert stack.console_url in greeting
    assert stack.api_url in greeting
    assert str(stack.state_dir / "api-key") in greeting
    key = (stack.state_dir / "api-key").read_text().strip()
    assert key not in greeting
    (line,) = re.findall(r"In a shell: (.*)", greeting)
    shell = ["bash", "-c", f"{line}; echo $PERCH_API $PERCH_API_KEY"]
    assert subprocess.check_output(shell, text=True).split() == [stack.api_url, key]
    assert Client(stack.api_url, key).get("/users/me")["login"] == "local"
    assert requests.get(stack.console_url, timeout=10).ok
    health = requests.get(stack.api_url.replace("/api/v2", "/healthz"), timeout=10)
    # Starts that other tests let fail are a problem, and nothing is missing.
    assert health.status_code == 200
    assert "missing" not in health.json()


def test_each_step_is_printed_before_it_is_done(stack: Stack) -> None:
    printed = (stack.state_dir / "up.log").read_text()
    steps = (
        f"Starting Perch on {stack.state_dir} …",
        "Making Perch's own Postgres, which happens once …",
        "Starting Perch's own Postgres …",
        "Bringing the database's schema up to date …",
        "Starting console, API, worker and proxy …",
        "Perch is up.",
    )
    assert [line for line in printed.splitlines() if line in steps] == list(steps)


def test_secret_files_are_readable_only_by_their_owner(stack: Stack) -> None:
    for name in ("api-key", "secret-key"):
        mode = (stack.state_dir / name).stat().st_mode
        assert stat.filemode(mode) == "-rw-------", name
    for name in ("locks", "log", "metadata"):
        mode = (stack.state_dir / name).stat().st_mode
        assert stat.filemode(mode) == "drwx------", name
    # As root, computes have accounts of their own, which pass through to their directories.
    passable = "drwx--x--x" if os.geteuid() == 0 else "drwx------"
    for name in ("branches", "sockets"):
        mode = (stack.state_dir / name).stat().st_mode
        assert stat.filemode(mode) == passable, name


def test_a_second_up_on_the_same_directory_is_refused(stack: Stack) -> None:
    output = refused(stack.state_dir, *ports())
    assert f"Perch is already running on {stack.state_dir}" in output
    assert requests.get(stack.console_url, timeout=10).ok


@pytest.mark.thorough
def test_a_requested_port_that_is_occupied_is_an_error(state_dir: Path) -> None:
    port = free_port()
    with occupied(port):
        output = refused(state_dir, "--api-port", str(port))
        assert f"port {port}, which --api-port names, is in use" in output


@pytest.mark.thorough
def test_it_stops_all_processes_and_continues_later(state_dir: Path) -> None:
    """A later start finds the same state, as `test_versions` checks for releases. Also: occupied
    default ports are replaced by others; closing the terminal has the effect of Ctrl-C, although
    nothing can be printed there."""
    with ExitStack() as taken:
        for port in (8000, 8001, 5432):
            taken.enter_context(occupied(port))
        process = up(state_dir)
        lines: list[str] = []
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if "Ctrl-C" in line:
                break
        output = "".join(lines)
        moved = dict(re.findall(r"Port (\d+) is taken; the \w+ takes (\d+)", output))
        assert moved.keys() == {"8000", "8001", "5432"}, output
        assert int(moved["8001"]) > 8001
        client = Client(
            f"http://127.0.0.1:{moved['8001']}/api/v2", (state_dir / "api-key").read_text().strip()
        )
        contents = fill(client, int(moved["5432"]), version="this one")
        ours = psutil.Process(process.pid).children(recursive=True)

        process.stdout.close()
        process.send_signal(signal.SIGHUP)
        assert process.wait(60) == 0
        process.stdout.close()
        assert not [process for process in ours if is_alive(process)]
        assert not list(state_dir.glob("branches/*/data/postmaster.pid"))
        assert list(state_dir.glob("sockets/**/.s.PGSQL*")) == []

        with running_stack(state_dir) as again:
            check(Client(again.api_url, contents.key), again.proxy_port, contents)


@pytest.mark.thorough
def test_a_missing_postgres_is_an_error(state_dir: Path) -> None:
    output = refused(state_dir, *ports(), PERCH_POSTGRES_BIN="/no/such/bin")
    assert "PERCH_POSTGRES_BIN=/no/such/bin" in output


@pytest.mark.thorough
@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs computes under another account")
def test_a_directory_that_the_computes_cannot_reach_is_an_error(state_dir: Path) -> None:
    closed = state_dir / "closed"
    closed.mkdir(mode=0o700)
    output = refused(closed / "below" / "state", *ports())
    assert str(closed) in output
    assert "cannot enter; choose another directory" in output


@pytest.mark.thorough
def test_a_directory_with_a_long_path_works(state_dir: Path) -> None:
    """Paths of sockets may have at most 107 bytes."""
    deep = state_dir / ("deep and " * 10) / ("ü%s'" * 10)
    deep.mkdir(parents=True)
    for directory in (deep, deep.parent):
        directory.chmod(0o711)
    with running_stack(deep) as stack:
        client = Client(stack.api_url, (deep / "api-key").read_text().strip())
        created = client.new_project()
        assert [o["status"] for o in client.finish(created)] == ["finished", "finished"]


@pytest.mark.thorough
def test_metadata_of_another_postgres_version_is_left_alone(state_dir: Path) -> None:
    (state_dir / "metadata").mkdir()
    (state_dir / "metadata" / "PG_VERSION").write_text("15\n")
    output = refused(state_dir, *ports())
    assert f"{state_dir}/metadata is of Postgres 15, and the programs here are" in output
    assert "PERCH_POSTGRES_BIN" in output


@pytest.mark.thorough
def test_under_nohup_closing_the_terminal_ends_nothing() -> None:
    numbers = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    try:
        for first, ends in ((signal.SIG_IGN, False), (signal.SIG_DFL, True)):
            signal.signal(signal.SIGHUP, first)
            stopped = threading.Event()
            stop_on_signals(stopped)
            signal.raise_signal(signal.SIGHUP)
            assert stopped.is_set() == ends
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def test_the_hosts_limit_of_open_files_is_used() -> None:
    code = (
        "import resource; from controlplane.deployment.host_resources import raise_file_limit;"
        "print(raise_file_limit(), *resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    done = subprocess.run(
        ["prlimit", "--nofile=500:5000", sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
    )
    assert done.stdout == "None 5000 5000\n", done.stderr


class TestLowLimits:
    """They are reported at once, with instructions, instead of by a supervisor that dies."""

    def test_too_few_files(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(resource, "getrlimit", lambda which: (500, 500))
        with pytest.raises(CommandError, match=r"only 500 files.*1024.*LimitNOFILE="):
            raise_file_limit()

    def test_too_few_processes_of_an_ordinary_user(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "geteuid", lambda: 4711)
        monkeypatch.setattr(resource, "getrlimit", lambda which: (100, 100))
        monkeypatch.setattr(resource, "setrlimit", lambda which, limits: None)
        with pytest.raises(CommandError, match=r"100 processes.*0 run.*300 more.*LimitNPROC="):
            refuse_few_processes()

    def test_too_few_processes_of_a_container(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        (tmp_path / "pids.max").write_text("400\n")
        (tmp_path / "pids.current").write_text("150\n")
        monkeypatch.setattr(host_resources, "CONTROL_GROUPS", (tmp_path,))
        with pytest.raises(CommandError, match=r"400 processes.*150 run.*--pids-limit"):
            refuse_few_processes()
        (tmp_path / "pids.max").write_text("max\n")
        refuse_few_processes()

    def test_a_supervisor_that_does_not_start_gives_the_reason(self, state_dir: Path) -> None:
        program = Program("api", "true", user="nobody-of-that-name")
        supervisor = Supervisor(
            [program],
            state_dir=state_dir,
            socket=state_dir / "supervisor.sock",
            environment=dict(os.environ),
            directory=state_dir,
        )
        supervisor.start()
        wait_for(lambda: not supervisor.is_running(), "its end")
        assert "nobody-of-that-name" in supervisor.last_error()


def test_a_proxy_that_has_not_forked_yet_is_ended_with_what_an_earlier_up_has_left(
    tmp_path: Path,
) -> None:
    # It would hold the port, and every later proxy would end because the port is in use.
    starting, serving = (
        subprocess.Popen(
            [sys.executable, "-c", f"{code}; print(flush=True); input()", "proxy"],
            cwd=ROOT,
            env={**os.environ, MARK: str(tmp_path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for code in (
            "pass",
            "from controlplane.process_accounts import serve_until_replaced as s; s()",
        )
    )
    with starting, serving:
        for process in (starting, serving):
            assert process.stdout is not None
            process.stdout.readline()
        assert end_leftovers(tmp_path) == [starting.pid]
        # Ended and waited for there.
        assert not psutil.pid_exists(starting.pid)
        assert serving.poll() is None
        serving.communicate(b"\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has other accounts")
def test_a_process_of_another_account_is_not_ended_whatever_it_says_of_itself(
    tmp_path: Path,
) -> None:
    with subprocess.Popen(
        ["/bin/sh", "-c", "read line"],
        env={MARK: str(tmp_path)},
        stdin=subprocess.PIPE,
        user=50_001,
        group=50_001,
        extra_groups=[],
    ) as process:
        assert end_leftovers(tmp_path) == []
        assert process.poll() is None
        process.communicate(b"\n")

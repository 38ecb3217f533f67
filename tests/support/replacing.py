"""Restarts of the proxy, and an `up --replace` that takes the place of a running `up`."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from tests.support.processes import is_alive, processes_of, proxy_processes
from tests.support.stack import ROOT, Stack, StartedStack
from tests.support.waiting import load, wait_for


def restart_proxy(stack: Stack) -> float:
    """Restart the proxy as systemd does: SIGTERM to its main process, whose end is followed by the
    start of another. Returns after how many seconds only the new processes accept clients."""
    began = time.monotonic()
    main, previous = processes_of(stack, "proxy")[0], proxy_processes(stack)
    main.terminate()

    def is_replaced() -> bool:
        return not any(listens(process, stack.proxy_port) for process in previous)

    wait_for(is_replaced, "another generation of the proxy", timeout=120)
    assert not is_alive(main)
    return time.monotonic() - began


def listens(process: psutil.Process, port: int) -> bool:
    try:
        return any(
            connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
            for connection in process.net_connections("tcp")
        )
    except psutil.NoSuchProcess:
        return False


@contextmanager
def replaced(stack: StartedStack, tree: Path = ROOT) -> Iterator[StartedStack]:
    """Run the `up` of the code in `tree` in place of the stack's, on the same ports. It is stopped
    at the end as Ctrl-C does."""
    log_file = stack.state_dir / "up-replacing.log"
    environment = {
        name: value
        for name, value in _environment(stack.pid).items()
        if not name.startswith(("DJANGO_", "PYTHONPATH"))
    }
    with log_file.open("wb") as log:
        process = subprocess.Popen(
            [
                *(sys.executable, tree / "manage.py", "up", "--replace"),
                *("--state-dir", stack.state_dir),
                *("--console-port", str(urlsplit(stack.console_url).port)),
                *("--api-port", str(urlsplit(stack.api_url).port)),
                *("--proxy-port", str(stack.proxy_port)),
            ],
            cwd=tree,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        wait_for(
            lambda: process.poll() is not None or "Perch is up" in log_file.read_text(),
            "the other `up`",
            timeout=600,
        )
        assert process.poll() is None, log_file.read_text()
        yield replace(stack, pid=process.pid, process=process)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait(90 * load())


def _environment(pid: int) -> dict[str, str]:
    """The environment that the process was started with."""
    pairs = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return dict(pair.decode().split("=", 1) for pair in pairs if pair)

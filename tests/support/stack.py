"""The whole service, run as users run it, for the tests of every part."""

import contextlib
import fcntl
import hashlib
import json
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil
import psycopg
import pytest
import requests

from tests.selection import FAST
from tests.support.client import Client
from tests.support.waiting import load, wait_for

ROOT = Path(__file__).resolve().parents[2]
# Webhooks may be sent to the tests' receivers, at one of loopback's addresses. Short timeouts keep
# receivers that hang from delaying a test.
RECEIVERS = {"PERCH_WEBHOOK_ALLOWED_NETWORKS": "127.0.0.1/32", "PERCH_WEBHOOK_TIMEOUT": "3"}
# The address of the reverse proxy that the tests' services trust.
PROXY_ADDRESS = "127.0.0.9"
# The environment variable with the directory for services' state directories.
DIRECTORY = "PERCH_TESTS_DIRECTORY"
# How the names of these directories begin.
PREFIX = "perch-"
# The environment variable with the directory of `shared_stacks`.
SHARED = "PERCH_TESTS_SHARED"
# Deleted projects are removed soon, to make room for the next tests.
NOTHING_KEPT = {"PERCH_RECOVERY_HOURS": "0"}
# A client may reach either of two proxy processes, whatever the number of cores.
TWO_PROXIES = {"PERCH_PROXY_PROCESSES": "2"}


# The clients of accounts that this process has made, oldest first.
CLIENTS: list[Client] = []


@dataclass(frozen=True)
class Stack:
    """A running `manage.py up`."""

    state_dir: Path
    console_url: str
    api_url: str  # with /api/v2
    proxy_port: int
    pid: int
    # Of its own database; "" for the one in its state directory.
    database_url: str = field(default="", kw_only=True)

    def new_key(self, *, plan: str = "unlimited") -> str:
        """Return a key of a new account, as `create_api_key` makes it but without starting a
        process."""
        key = f"perch_{secrets.token_hex(32)}"
        with self.database() as connection:
            row = connection.execute(
                "INSERT INTO controlplane_account (name, plan, created_at)"
                " VALUES (%s, %s, now()) RETURNING id",
                [f"account-{secrets.token_hex(8)}", plan],
            ).fetchone()
            assert row is not None
            connection.execute(
                "INSERT INTO controlplane_apikey"
                " (account_id, name, digest, created_at, last_used_from_addr)"
                " VALUES (%s, 'tests', %s, now(), '')",
                [row[0], hashlib.sha256(key.encode()).hexdigest()],
            )
        return key

    def client(self, **account: Any) -> Client:
        """Return a client of the API with a new account."""
        made = Client(self.api_url, self.new_key(**account))
        CLIENTS.append(made)
        return made

    def database(self) -> "psycopg.Connection[tuple[Any, ...]]":
        """A connection to the service's own database."""
        if self.database_url:
            return psycopg.connect(self.database_url, autocommit=True)
        return psycopg.connect(
            host=str(self.state_dir / "sockets" / "metadata"),
            user="perch",
            dbname="perch",
            autocommit=True,
        )

    def compute(self, endpoint_id: str, dbname: str = "neondb") -> "psycopg.Connection[Any]":
        """Connect to an endpoint's running Postgres, without the proxy."""
        return psycopg.connect(
            host=str(self.state_dir / "sockets" / endpoint_id),
            user="perch_platform",
            dbname=dbname,
            autocommit=True,
        )

    def is_running(self, endpoint_id: str) -> bool:
        """Return whether the endpoint's Postgres answers."""
        try:
            self.compute(endpoint_id, "postgres").close()
        except psycopg.OperationalError:
            return False
        return True

    def answers(self, url: str | None = None) -> bool:
        """Return whether the address answers; by default, whether the whole service is healthy."""
        try:
            health = self.api_url.replace("/api/v2", "/healthz")
            return requests.get(url or health, timeout=5).ok
        except requests.RequestException:
            return False

    def data_dir(self, branch_id: str) -> Path:
        return self.state_dir / "branches" / branch_id / "data"


@dataclass(frozen=True)
class StartedStack(Stack):
    """A running `manage.py up` that this process started."""

    process: "subprocess.Popen[bytes]"


# Below the ports that the kernel assigns to clients' connections. Otherwise a connection could use
# the port before the server for which it was chosen.
PORTS = range(10_000, 32_000)


def free_port() -> int:
    """Return a port that no process uses now. Another search at the same time is unlikely to choose
    it."""
    while True:
        port = random.choice(PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@contextlib.contextmanager
def running_stack(
    state_dir: Path,
    program: Sequence[str | Path] = (sys.executable, ROOT / "manage.py"),
    *,
    cwd: Path = ROOT,
    account: Mapping[str, Any] = MappingProxyType({}),
    **environment: str,
) -> Iterator[StartedStack]:
    """Run `manage.py up` on `state_dir` until it is ready. It is stopped at the end as Ctrl-C does.
    `account` has arguments of subprocess for another user."""
    ports = [free_port() for _ in range(3)]
    log_file = state_dir / "up.log"
    with log_file.open("wb") as log:
        process = subprocess.Popen(
            [
                *(*program, "up", "--state-dir", state_dir),
                *("--console-port", str(ports[0])),
                *("--api-port", str(ports[1])),
                *("--proxy-port", str(ports[2])),
            ],
            cwd=cwd,
            env={
                **{k: v for k, v in os.environ.items() if not k.startswith("DJANGO_")},
                **RECEIVERS,
                **NOTHING_KEPT,
                **TWO_PROXIES,
                "PERCH_TRUSTED_PROXIES": f"{PROXY_ADDRESS}/32",
                **environment,
            },
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            **account,
        )
    stack = StartedStack(
        state_dir=state_dir,
        console_url=f"http://127.0.0.1:{ports[0]}",
        api_url=f"http://127.0.0.1:{ports[1]}/api/v2",
        proxy_port=ports[2],
        pid=process.pid,
        process=process,
        database_url=environment.get("DATABASE_URL", ""),
    )
    try:
        wait_for(
            lambda: process.poll() is not None or "Perch is up" in log_file.read_text(),
            "manage.py up",
            # On a busy host, a start takes minutes; a start without progress ends by itself.
            timeout=600,
        )
        assert process.poll() is None, log_file.read_text()
        yield stack
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait(90 * load())


@contextlib.contextmanager
def new_state_dir() -> Iterator[Path]:
    """A state directory that an unprivileged account may pass through, also for root."""
    assert FAST not in os.environ, "a test that starts a service must ask for a fixture of one"
    with new_directory() as directory:
        yield directory


@contextlib.contextmanager
def new_directory() -> Iterator[Path]:
    """Make a directory that an unprivileged account may pass through, for tests without a
    service."""
    base = os.environ.get(DIRECTORY, "/tmp")
    with tempfile.TemporaryDirectory(prefix=PREFIX, dir=base) as directory, held(directory):
        os.chmod(directory, 0o711)
        yield Path(directory)


@contextlib.contextmanager
def held(directory: str | Path) -> Iterator[None]:
    """Hold the directory's lock, by which `remove_abandoned` knows that it is in use. Raises
    BlockingIOError if another process holds it."""
    opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(opened)


def remove_abandoned(base: Path) -> None:
    """Remove the state directories that killed test runs have left in `base`: no run holds them,
    and no process was started on them that still runs."""
    commands = "\n".join(
        " ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])
    )
    for directory in base.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            # A run holds its directory a moment after it has made it.
            is_old = time.time() - directory.stat().st_ctime > 10
            if is_old and str(directory) not in commands:
                with held(directory):
                    shutil.rmtree(directory)


@contextlib.contextmanager
def shared_stacks(lanes: Sequence[str], workers: Sequence[str]) -> Iterator[list[Path]]:
    """Run services that suites share: starting one takes eleven seconds of the processor. Each lane
    has one for each of these workers of pytest-xdist. Returns the lanes' directories, of which
    SHARED names one to a suite."""
    with (
        new_directory() as directory,
        contextlib.ExitStack() as running,
        ThreadPoolExecutor() as side_by_side,
    ):

        def start(place: Path) -> None:
            state_dir = running.enter_context(new_state_dir())
            stack = running.enter_context(running_stack(state_dir))
            described = {field.name: getattr(stack, field.name) for field in fields(Stack)}
            place.write_text(json.dumps(described, default=str))

        made = [directory / lane for lane in lanes]
        for lane in made:
            lane.mkdir()
        list(side_by_side.map(start, [lane / worker for lane in made for worker in workers]))
        yield made


@contextlib.contextmanager
def session_stack() -> Iterator[Stack]:
    """The running service of a session of tests: this worker's shared one, otherwise a new one."""
    if shared := _shared_stack():
        yield shared
        return
    with new_state_dir() as state_dir, running_stack(state_dir) as running:
        yield running


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    """The one running service that all tests of a worker share."""
    with session_stack() as running:
        yield running


@contextlib.contextmanager
def deleting_projects(kept: Callable[[], Collection[Client]] = tuple) -> Iterator[None]:
    """Delete at the end what the accounts made meanwhile have left, except those of `kept()`: the
    service's branches are in memory."""
    earlier = len(CLIENTS)
    yield
    for client in CLIENTS[earlier:]:
        # The service of a test may have ended.
        with contextlib.suppress(requests.ConnectionError):
            if client not in kept():
                client.delete_projects()


def _shared_stack() -> Stack | None:
    """This worker's service of `shared_stacks`; None if there is none or it does not answer."""
    directory, worker = os.environ.get(SHARED), os.environ.get("PYTEST_XDIST_WORKER")
    if directory is None or worker is None:
        return None
    described = json.loads(Path(directory, worker).read_text())
    found = Stack(**{**described, "state_dir": Path(described["state_dir"])})
    return found if found.answers() else None


@pytest.fixture
def state_dir() -> Iterator[Path]:
    """A directory for a service of the test's own. `tests.selection` recognizes by it that a test
    starts one."""
    with new_state_dir() as directory:
        yield directory

"""A region of hosts whose processes run one by one, as units do, from the code of this version or
of the previous one, on one database and behind one load balancer."""

import importlib.metadata
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
import requests

from controlplane.database.version import RUNS_BESIDE
from tests.support.load_balancer import LoadBalancer
from tests.support.ordinary_user import own_checkout
from tests.support.replacing import listens
from tests.support.stack import NOTHING_KEPT, ROOT, Stack, free_port
from tests.support.waiting import wait_for

# The commit that stands for the previous release: the newest one whose last migration is
# RUNS_BESIDE. Since then, regions have hosts that pass clients on to each other.
PREVIOUS = "0be7c31a0ecc9ad0b9a28b835f168bf61dd38462"
# The version that the previous release calls itself, whatever its pyproject.toml says.
PREVIOUS_VERSION = "0.1.99"
NEXT_VERSION = "99.0"
PRESENT_VERSION = importlib.metadata.version("perch-postgres")

# The migration of the next release.
NEXT = """
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("controlplane", "{newest}")]
    operations = [
        migrations.AddField("host", "of_the_next", models.CharField(db_default="", max_length=9)),
    ]
"""


def exported(commit: str, directory: Path) -> Path:
    """Write the code of the commit to the directory, and return that."""
    archive = subprocess.run(
        ["git", "archive", commit], cwd=ROOT, check=True, capture_output=True
    ).stdout
    subprocess.run(["tar", "-x", "-C", directory], input=archive, check=True)
    return directory


def previous_release(directory: Path) -> Path:
    """Write the code of the previous release to the directory, and return that. Skips the test if
    neither this clone nor its origin has the commit."""
    if not _has(PREVIOUS):
        _git("fetch", "--quiet", "--depth", "1", "origin", PREVIOUS)
    if not _has(PREVIOUS):
        pytest.skip(f"this clone lacks the commit {PREVIOUS}, and cannot fetch it")
    directory.mkdir()
    tree = exported(PREVIOUS, directory)
    _name_version(tree, PREVIOUS_VERSION)
    return tree


def next_release(directory: Path) -> Path:
    """Write a version to the directory that has one migration more than this one and runs beside
    it, and return that."""
    tree = own_checkout(directory)
    _name_version(tree, NEXT_VERSION)
    newest = max((tree / "controlplane" / "migrations").glob("0*.py")).stem
    (tree / "controlplane" / "migrations" / "0999_next.py").write_text(NEXT.format(newest=newest))
    module = tree / "controlplane" / "database" / "version.py"
    text = module.read_text()
    assert f'RUNS_BESIDE = "{RUNS_BESIDE}"' in text
    module.write_text(text.replace(f'"{RUNS_BESIDE}"', f'"{newest}"'))
    return tree


def _name_version(tree: Path, version: str) -> None:
    """Let the code in `tree` call itself by this version."""
    # The previous release was called `perch`.
    for name in ("perch", "perch-postgres"):
        described = tree / f"{name.replace('-', '_')}-{version}.dist-info" / "METADATA"
        described.parent.mkdir()
        described.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def _has(commit: str) -> bool:
    return _git("cat-file", "-e", f"{commit}^{{commit}}") == 0


def _git(*arguments: str) -> int:
    # A fetch must not ask for a password.
    environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0"}
    command = ["git", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=120)
    return done.returncode


@dataclass
class VersionedHost:
    """One host. Each of its processes runs from the code with which it was last started."""

    name: str
    state_dir: Path
    database_url: str
    region_port: int
    proxy_port: int = field(default_factory=free_port)
    api_port: int = field(default_factory=free_port)
    processes: "dict[str, subprocess.Popen[bytes]]" = field(default_factory=dict)

    def environment(self) -> dict[str, str]:
        known = {name: value for name, value in os.environ.items() if "DJANGO" not in name}
        return {
            **known,
            **NOTHING_KEPT,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "DATABASE_URL": self.database_url,
            "PERCH_SECRET_KEY": "the same of all hosts of the tests' region",
            "PERCH_STATE_DIR": str(self.state_dir),
            "PERCH_HOST_NAME": self.name,
            "PERCH_HOST_ADDRESS": f"{self.name}.localhost",
            "PERCH_PEER_ADDRESS": f"127.0.0.1:{self.proxy_port}",
            "PERCH_REGION_PORT": str(self.region_port),
            "PERCH_PROXY_PORT": str(self.proxy_port),
            "PERCH_PROXY_PROCESSES": "1",
            "API_PORT": str(self.api_port),
        }

    def stack(self, api_url: str) -> Stack:
        """The service as clients of this host's proxy see it."""
        return Stack(
            state_dir=self.state_dir,
            console_url="",
            api_url=api_url,
            proxy_port=self.proxy_port,
            pid=os.getpid(),
            database_url=self.database_url,
        )

    def run(self, tree: Path, command: str) -> None:
        """Run `manage.py COMMAND` to its end. It must succeed."""
        done = subprocess.run(
            [sys.executable, "manage.py", *command.split()],
            cwd=tree,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr

    def start(self, tree: Path, name: str) -> None:
        """Start a process by its line of the tree's Procfile."""
        lines = (tree / "Procfile").read_text().splitlines()
        (line,) = (line.partition(": ")[2] for line in lines if line.startswith(f"{name}: "))
        with (self.state_dir / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                ["/bin/sh", "-c", f"exec {line}"],
                cwd=tree,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def end(self, name: str) -> None:
        """Send SIGTERM and wait for the end of the process, as systemd does with the units."""
        self.processes[name].send_signal(signal.SIGTERM)
        self.processes[name].wait(120)

    def restart_worker(self, tree: Path, version: str) -> None:
        self.end("worker")
        self.start(tree, "worker")
        self.await_version(version)

    def restart_proxy(self, tree: Path) -> None:
        """The previous proxy's processes keep the clients that they have."""
        self.end("proxy")
        previous = [one for one in self.left() if listens(one, self.proxy_port)]
        assert previous, "the previous processes have not handed their port over yet"
        self.start(tree, "proxy")
        wait_for(
            lambda: not any(listens(one, self.proxy_port) for one in previous),
            "another generation of the proxy",
            timeout=120,
        )

    def restart_api(self, tree: Path, balancer: LoadBalancer) -> None:
        balancer.take_out(self.api_port)
        self.end("api")
        self.start(tree, "api")
        self.await_api()
        balancer.put_back(self.api_port)

    def await_version(self, version: str) -> None:
        """Wait until the worker and the proxy live, and the worker has this version."""
        lives = (
            "SELECT FROM controlplane_host WHERE id = %s AND version = %s"
            " AND worker_seen_at > now() - interval '5 s'"
            " AND proxy_seen_at > now() - interval '5 s'"
        )
        with self.stack("").database() as database:
            wait_for(
                lambda: database.execute(lives, [self.name, version]).rowcount,
                f"the host {self.name} with version {version}",
                timeout=120,
            )

    def await_api(self) -> None:
        url = f"http://127.0.0.1:{self.api_port}/readyz"

        def is_ready() -> bool:
            with suppress(requests.RequestException):
                return requests.get(url, timeout=5).ok
            return False

        wait_for(is_ready, f"the API of {self.name}", timeout=120)

    def left(self) -> list[psutil.Process]:
        """All processes of Perch that run on the state directory, also those of an earlier
        proxy."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                line = " ".join(process.cmdline())
                is_ours = "manage.py" in line or "controlplane.wsgi" in line
                if is_ours and process.environ().get("PERCH_STATE_DIR") == str(self.state_dir):
                    found.append(process)
        return found

    def stop(self) -> None:
        """End all processes and computes."""
        for process in self.left():
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        for popen in self.processes.values():
            popen.wait(30)
        self.run(ROOT, "computes stop --all")


@contextmanager
def region(
    state_dir: Path, database_url: str, tree: Path, version: str, names: Sequence[str]
) -> Iterator[list[VersionedHost]]:
    """Run hosts of one region, each with an API, from the code in `tree`."""
    region_port = free_port()
    hosts = []
    for name in names:
        directory = state_dir / name
        directory.mkdir(mode=0o711)
        hosts.append(VersionedHost(name, directory, database_url, region_port))
    hosts[0].run(tree, "migrate --settings controlplane.settings")
    try:
        for host in hosts:
            for process in ("worker", "proxy", "api"):
                host.start(tree, process)
        for host in hosts:
            host.await_version(version)
            host.await_api()
        yield hosts
    finally:
        for host in hosts:
            host.stop()

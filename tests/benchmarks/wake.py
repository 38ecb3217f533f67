"""`python -m tests.benchmarks.wake`: the time from connecting to an idle endpoint until the first
row.

Measured alternately: a bare `postgres` on the endpoint's data, from its spawn to the answer to its
first query over its socket; a bare `postgres` on a copy of the data, from its spawn until a client
has its first row over TCP with its password, and a handshake of TLS before that; and the same for
the client through the proxy. The second is the limit for the third. Then as many of each at once as
`TOGETHER` says.

The parts of a wake's time come from the steps of its operation, so they are what users see.
"""

import os
import shutil
import ssl
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg

from tests.benchmarks.start import report, time_bare, time_process
from tests.support.certificates import certificate
from tests.support.processes import held_still
from tests.support.project import Project
from tests.support.stack import Stack, new_state_dir, running_stack

ROUNDS = 50
TOGETHER = 20
ROUNDS_TOGETHER = 5
# The parts of one wake in order, in milliseconds.
Parts = dict[str, float]


def main() -> None:
    with new_state_dir() as state_dir, running_stack(state_dir) as stack:
        client = stack.client()
        project = Project.create(stack, client, name="benchmark")
        project.suspend()
        measure_one(stack, project)
        others = [Project.create(stack, client) for _ in range(TOGETHER - 1)]
        for other in others:
            other.suspend()
        measure_together(stack, [project, *others])


def measure_one(stack: Stack, project: Project) -> None:
    limit = Limit.of(stack, project)
    bare, least, woken, parts = [], [], [], []
    for _ in range(ROUNDS):
        with held_still(stack, "worker"):
            bare.append(time_bare(stack, project.endpoint()))
            least.append(limit.time())
        began = time.time()
        woken.append(time_wake(uri_of(project)))
        parts.append(parts_of(project, began, woken[-1]))
        project.suspend()
    report("bare postgres", bare)
    report("with TLS, SCRAM", least)
    report("wake on connect", woken)
    for name in parts[0]:
        print(f"  {name:<40} {statistics.median(one[name] for one in parts):6.1f} ms")
    show_ratios("p50", (bare, least), woken, 0.5, target=1.5)
    show_ratios("p95", (bare, least), woken, 0.95, target=2)


def measure_together(stack: Stack, projects: list[Project]) -> None:
    endpoints = [project.endpoint() for project in projects]
    limits = [Limit.of(stack, project) for project in projects]
    bare: list[float] = []
    least: list[float] = []
    woken: list[float] = []
    for _ in range(ROUNDS_TOGETHER):
        with held_still(stack, "worker"):
            bare += at_once(lambda endpoint: time_bare(stack, endpoint), endpoints)
            least += at_once(Limit.time, limits)
        woken += at_once(time_wake, [uri_of(project) for project in projects])
        for project in projects:
            project.suspend()
    report(f"{len(projects)} bare", bare)
    report("with TLS, SCRAM", least)
    report(f"{len(projects)} wakes", woken)
    show_ratios("at once, p50", (bare, least), woken, 0.5, target=2)


@dataclass(frozen=True)
class Limit:
    """A bare Postgres that a client reaches with a password, without Perch; a handshake of TLS is
    added. It runs on a copy of an idle endpoint's data: in Perch's computes, a role's password is a
    placeholder. The client uses a Unix socket, as the accounts of computes cannot answer by TCP."""

    stack: Stack
    endpoint: dict[str, str]
    data: Path
    options: Mapping[str, object]
    pem: Path

    @classmethod
    def of(cls, stack: Stack, project: Project) -> "Limit":
        original = stack.data_dir(project.branch_id)
        place = Path(tempfile.mkdtemp(dir=stack.state_dir))
        place.chmod(0o711)
        data = shutil.copytree(original, place / "data", symlinks=True)
        hba = place / "hba.conf"
        hba.write_text("local all visitor scram-sha-256\n")
        owner = original.stat()
        for path in (data, *data.rglob("*"), hba):
            os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)
        certified = certificate(place, "localhost")
        made = cls(stack, project.endpoint(), data, {"hba_file": hba}, certified)
        with held_still(stack, "worker"):
            time_process(stack, made.endpoint, data, made.has_role)
        return made

    def has_role(self) -> bool:
        """Make the client's role. Returns False while Postgres does not answer."""
        try:
            with self.stack.compute(self.endpoint["id"]) as connection:
                connection.execute("CREATE ROLE visitor LOGIN PASSWORD 'visitor'")
        except psycopg.OperationalError:
            return False
        return True

    def time(self) -> float:
        """Return the milliseconds of a handshake, and from the spawn until the client has its first
        row. It connects once, when Postgres says that it is ready."""
        shaken = time_handshake(self.pem)
        ready = time_process(self.stack, self.endpoint, self.data, self.has_row, self.options)
        return shaken + ready

    def has_row(self) -> bool:
        pid_file = self.data / "postmaster.pid"
        if not pid_file.exists() or "ready" not in pid_file.read_text():
            return False
        sockets = f"{self.stack.state_dir}/sockets/{self.endpoint['id']}"
        with psycopg.connect(
            host=sockets, user="visitor", password="visitor", dbname="neondb"
        ) as connection:
            connection.execute("SELECT 1").fetchone()
        return True


def time_handshake(pem: Path) -> float:
    """Return the milliseconds of both sides of a handshake of TLS. (Postgres from the wheel has no
    TLS.)"""
    at_server, at_client = (
        ssl.SSLContext(side) for side in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT)
    )
    at_server.load_cert_chain(pem)
    # As `sslmode=require`.
    at_client.check_hostname, at_client.verify_mode = False, ssl.CERT_NONE
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [at_client.wrap_bio(down, up), at_server.wrap_bio(up, down, server_side=True)]
    began = time.perf_counter()
    while sides:
        for side in sides.copy():
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
                sides.remove(side)
    return (time.perf_counter() - began) * 1000


def uri_of(project: Project) -> str:
    return str(project.created["connection_uris"][0]["connection_uri"])


def time_wake(uri: str) -> float:
    """Return the milliseconds from connecting until the first row."""
    began = time.perf_counter()
    with psycopg.connect(uri, hostaddr="127.0.0.1") as connection:
        connection.execute("SELECT 1").fetchone()
        return (time.perf_counter() - began) * 1000


def parts_of(project: Project, began: float, took: float) -> Parts:
    """Return the parts of the time of a wake that began at `began` (wall clock) and has just
    ended."""
    operation = project.operation(project.operations()[0]["id"])
    assert operation["action"] == "start_compute", operation
    steps = {step["name"]: step for step in operation["steps"]}
    spawned, ready = steps["starting"]["started_at"], steps["starting"]["finished_at"]
    moments = {
        "TLS, password, and the start's row": moment(steps["queued"]["started_at"]),
        "committed, and queued": moment(steps["picked_up"]["started_at"]),
        "read, locked, configured": moment(spawned),
        "Postgres starts": moment(ready),
        "published": moment(steps["publishing"]["finished_at"]),
        "told, joined, first row": began + took / 1000,
    }
    parts, before = {}, began
    for name, at in moments.items():
        parts[name], before = (at - before) * 1000, at
    return parts


def moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def at_once(measure: Callable[[Any], float], these: list[Any]) -> list[float]:
    with ThreadPoolExecutor(len(these)) as threads:
        return list(threads.map(measure, these))


def show_ratios(
    name: str,
    compared: tuple[list[float], list[float]],
    woken: list[float],
    share: float,
    *,
    target: float,
) -> None:
    def quantile(samples: list[float]) -> float:
        return sorted(samples)[round(share * (len(samples) - 1))]

    bare, least = (quantile(woken) / quantile(samples) for samples in compared)
    print(
        f"{name}: {bare:.2f} times bare, {least:.2f} times bare with TLS and SCRAM "
        f"(target: at most {target:g} times)"
    )


if __name__ == "__main__":
    main()

"""`python -m tests.benchmarks.sleep [SLEEPS]`: what applications with connection pools notice when
an endpoint is suspended.

First the proxy's memory for 50 parked clients is measured. Then, for psycopg, node-postgres and
JDBC in turn, there are 50 pooled clients, each of which runs a transaction every two to six
seconds, while the endpoint is suspended SLEEPS times (100), as soon as it is active, whatever the
clients are doing.
"""

import contextlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import psycopg

from tests.clients import nodejs
from tests.support import jdbc
from tests.support.place import Place
from tests.support.pooler import host_version, keeps_prepared_statements
from tests.support.processes import proxy_processes
from tests.support.project import Project
from tests.support.stack import new_state_dir, running_stack
from tests.support.waiting import wait_for

CLIENTS = 50
SLEEPS = 100
TARGET_MEMORY = 5.0  # MB in addition to the proxy's own
HERE = Path(__file__).parent / "pooled"


@dataclass(frozen=True)
class Driver:
    name: str
    command: Sequence[str | Path]


def main() -> None:
    sleeps = int(sys.argv[1]) if len(sys.argv) > 1 else SLEEPS
    version, prepares = host_version(), keeps_prepared_statements()
    print(
        f"PgBouncer {version[0]}.{version[1]}, drivers that "
        f"{'prepare' if prepares else 'do not prepare'} statements, {CLIENTS} clients of each"
    )
    with new_state_dir() as state_dir, running_stack(state_dir) as stack:
        place = Place.create(stack, stack.client(), name="benchmark")
        # First, because memory that many clients have used before would be reused.
        measure_memory(place)
        for driver in drivers():
            measure(driver, place, sleeps=sleeps, prepares=prepares)


def drivers() -> Iterator[Driver]:
    """Yield those that can run on this machine."""
    yield Driver("psycopg", [sys.executable, HERE / "psycopg_clients.py"])
    try:
        nodejs.install()
        yield Driver("node-postgres", ["node", nodejs.HERE / "pooled_clients.mjs"])
    except nodejs.NoNode as error:
        print(f"node-postgres left out: {error}")
    jar = jdbc.driver()
    if shutil.which("java") and jar is not None:
        yield Driver("JDBC", ["java", "-cp", jar, HERE / "JdbcClients.java"])
    else:
        print(
            "JDBC left out: needs java and its jar, by default that of libpostgresql-jdbc-java; "
            "another by JDBC_JAR"
        )


def measure(driver: Driver, place: Place, *, sleeps: int, prepares: bool) -> None:
    """Suspend the endpoint repeatedly under the driver's clients, and report their errors."""
    with running(driver, place, prepares=prepares) as clients:
        began = time.monotonic()
        for _ in range(sleeps):
            Project.suspend(place)
            # The next client with a query wakes it.
            wait_for(lambda: place.state() == "active", "a client to wake it", timeout=60)
        took = time.monotonic() - began
    told = json.loads(clients.told)
    print(
        f"{driver.name:<14} {sleeps} sleeps in {took:4.0f} s, {told['transactions']} transactions, "
        f"{len(told['errors'])} errors (target: 0), slowest {told['slowest_ms']:.0f} ms"
    )
    for error in told["errors"][:5]:
        print(f"    {error}")


class Clients:
    """What the clients report at the end."""

    told = ""


@contextlib.contextmanager
def running(driver: Driver, place: Place, *, prepares: bool) -> Iterator[Clients]:
    """Run the driver's clients, connected. They stop at the end of the block."""
    given = {
        "host": "127.0.0.1",
        "port": place.stack.proxy_port,
        "user": place.role,
        "password": place.password,
        "database": place.database,
        "options": f"endpoint={place.endpoint_id}-pooler",
        "clients": CLIENTS,
        "prepares": prepares,
    }
    process = subprocess.Popen(
        [*driver.command, *(f"{name}={json.dumps(value)}" for name, value in given.items())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    clients = Clients()
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "connected\n", f"{driver.name} did not connect"
        yield clients
        clients.told, _ = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def measure_memory(place: Place) -> None:
    """Measure the memory of the proxy's processes for parked clients with TLS."""
    parameters: dict[str, Any] = place.parameters(pooled=True, prepare_threshold=None)

    def connect() -> "psycopg.Connection[Any]":
        connection = psycopg.connect(**parameters, autocommit=True)
        connection.execute("SELECT 1")
        return connection

    # Memory for the very first client stays with the proxy.
    connect().close()
    processes = proxy_processes(place.stack)
    before = memory(processes)
    clients = [connect() for _ in range(CLIENTS)]
    joined = memory(processes) - before
    Project.suspend(place)
    parked = memory(processes) - before
    assert place.pooler() is None
    print(
        f"{CLIENTS} clients with TLS cost the proxy {joined:.1f} MB while the endpoint runs, and "
        f"{parked:.1f} MB while it sleeps (target: at most {TARGET_MEMORY:.0f} MB)"
    )
    for client in clients:
        client.close()


def memory(processes: Sequence[psutil.Process]) -> float:
    """Return the MB that only these processes use."""
    return float(sum(process.memory_full_info().uss for process in processes)) / 1e6


if __name__ == "__main__":
    main()

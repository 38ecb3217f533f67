"""`python -m tests.benchmarks.drain`: a host is drained while clients connect to its projects at
random, by the proxies of both hosts of the region.

All processes are real and run on this machine, each host with its own state directory. Prints how
long the drain took, how long clients waited to connect, and what failed: no connect may fail, and
no pooled client may see an error.
"""

import argparse
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from tests.support.place import Place
from tests.support.second_host import NAME, SecondHost, hosts, placing_on, second_host
from tests.support.service import Service
from tests.support.stack import Stack, new_state_dir
from tests.support.waiting import wait_for

# Seconds that a client waits to be connected.
PATIENCE = 30
# Clients that connect at random, and how long each rests between two connects, in seconds.
CLIENTS = 4
REST = 0.1
# Seconds between two statements of a client that stays connected.
BEAT = 0.2
LONGEST = 600.0


@dataclass
class Drained:
    """`waits` are the seconds of each connect."""

    projects: int = 0
    seconds: float = 0.0
    waits: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    # Statements of pooled clients that were connected all the time.
    statements: int = 0

    def __str__(self) -> str:
        waits = sorted(self.waits)
        return (
            f"{self.projects} projects drained in {self.seconds:.0f} s; {len(waits)} connects, "
            f"median {waits[len(waits) // 2]:.2f} s, longest {waits[-1]:.2f} s; "
            f"{self.statements} statements of pooled clients; {len(self.failures)} failures"
        )


def drain(stack: Stack, second: SecondHost, *, idle: int, active: int) -> Drained:
    """Fill the second host with so many projects, and drain it."""
    places = list(_filled(stack, second, idle=idle, active=active))
    result, stopped = Drained(len(places)), threading.Event()
    ports = (stack.proxy_port, second.stack.proxy_port)
    clients = [place.connect(pooled=True, port=random.choice(ports)) for place in places[:active]]
    with ThreadPoolExecutor(CLIENTS + active) as pool:
        try:
            for _ in range(CLIENTS):
                pool.submit(_connect_at_random, places, ports, result, stopped)
            for client in clients:
                pool.submit(_stay, client, result, stopped)
            time.sleep(2)
            began = time.monotonic()
            with _draining(stack):
                wait_for(lambda: not _left(stack, places), "the host to be empty", timeout=LONGEST)
            result.seconds = time.monotonic() - began
            time.sleep(2)
        finally:
            stopped.set()
    for client in clients:
        client.close()
    return result


def _filled(stack: Stack, second: SecondHost, *, idle: int, active: int) -> Iterator[Place]:
    """The active ones first. Clients reach them by the first host's proxy if they name no port."""
    api = stack.client()

    def create(number: int) -> Place:
        place = Place(stack, api, Place.create(second.stack, api).created)
        with place.connect() as connection:
            connection.execute("CREATE TABLE notes AS SELECT 1 AS n")
        if number >= active:
            place.suspend()
        return place

    with placing_on(stack, NAME), ThreadPoolExecutor(3) as pool:
        yield from pool.map(create, range(active + idle))


@contextmanager
def _draining(stack: Stack) -> Iterator[None]:
    done = hosts(stack, "drain", NAME)
    assert done.returncode == 0, done.stderr
    try:
        yield
    finally:
        hosts(stack, "resume", NAME)


def _left(stack: Stack, places: list[Place]) -> int:
    time.sleep(0.5)  # the metadata is asked by the clients' wakes too
    with stack.database() as database:
        asked = "SELECT FROM controlplane_project WHERE host_id = %s AND id = ANY(%s)"
        return database.execute(asked, [NAME, [place.id for place in places]]).rowcount


def _connect_at_random(
    places: list[Place], ports: tuple[int, int], result: Drained, stopped: threading.Event
) -> None:
    while not stopped.is_set():
        place, port, pooled = random.choice(places), random.choice(ports), random.random() < 0.5
        began = time.monotonic()
        try:
            with place.connect(port=port, pooled=pooled, connect_timeout=PATIENCE) as client:
                result.waits.append(time.monotonic() - began)
                client.execute("SELECT n FROM notes")
        except psycopg.errors.AdminShutdown:
            pass  # a direct client whose compute stopped right after it had connected
        except psycopg.Error as error:
            waited = time.monotonic() - began
            result.failures.append(f"{place.endpoint_id} pooled={pooled} {waited:.1f} s: {error}")
        stopped.wait(REST)


def _stay(
    client: "psycopg.Connection[tuple[int]]", result: Drained, stopped: threading.Event
) -> None:
    try:
        while not stopped.wait(BEAT):
            client.execute("SELECT n FROM notes")
            result.statements += 1
    except psycopg.Error as error:
        result.failures.append(f"a pooled client: {error}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--idle", type=int, default=200, help="projects that sleep")
    parser.add_argument("--active", type=int, default=20, help="projects with a connected client")
    arguments = parser.parse_args()
    with new_state_dir() as directory:
        service = Service(_made(directory / "first"))
        try:
            with second_host(service.stack, directory / "second") as second:
                result = drain(service.stack, second, idle=arguments.idle, active=arguments.active)
                print(result, *result.failures, sep="\n")
        finally:
            service.down()


def _made(directory: Path) -> Path:
    directory.mkdir(mode=0o711)
    return directory


if __name__ == "__main__":
    main()

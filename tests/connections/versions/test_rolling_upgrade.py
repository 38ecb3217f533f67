"""Two hosts are upgraded one after the other, while the previous version serves beside this one
(docs/how-to/upgrade.md)."""

import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import psycopg
import pytest
import requests

from tests.support.bare_postgres import Programs, bare_postgres, private_directory
from tests.support.client import Client
from tests.support.load_balancer import LoadBalancer, load_balancer
from tests.support.place import Place
from tests.support.second_host import placing_on
from tests.support.stack import ROOT, state_dir
from tests.support.traffic import Traffic
from tests.support.versions import (
    NEXT_VERSION,
    PRESENT_VERSION,
    PREVIOUS_VERSION,
    VersionedHost,
    next_release,
    previous_release,
    region,
)
from tests.support.waiting import wait_for

__all__ = ["state_dir"]

PAUSE = 0.2


class Requests:
    """Threads that call the API until the end of the block, and note what fails."""

    def __init__(self, *loops: Callable[[], None]) -> None:
        self.done = {one.__name__: 0 for one in loops}
        self.errors: list[str] = []
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._repeat, args=[one]) for one in loops]

    def _repeat(self, loop: Callable[[], None]) -> None:
        while not self._over.is_set():
            try:
                loop()
                self.done[loop.__name__] += 1
            except (AssertionError, psycopg.Error, requests.RequestException) as error:
                at = time.strftime("%H:%M:%S")
                self.errors.append(f"{at} {loop.__name__}: {type(error).__name__}: {error}")
            self._over.wait(PAUSE)

    def counts(self) -> Collection[int]:
        return self.done.values()

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()


def loops(client: Client, shop: Place, sleeper: Place) -> list[Callable[[], None]]:
    """What the callers of the API do, each over and over again with a client of its own."""
    reader, creator, waker = client.another(), client.another(), client.another()

    def reads_and_renames() -> None:
        assert reader.get(shop.path)["project"]["id"] == shop.id
        reader.get("/projects")
        reader.get(f"{shop.path}/operations")
        reader.patch(shop.path, {"project": {"name": f"shop {time.monotonic()}"}})

    def creates_and_deletes() -> None:
        made = creator.new_project(wait=False)
        assert {one["status"] for one in creator.finish(made)} == {"finished"}
        creator.delete(f"/projects/{made['project']['id']}")

    def suspends_and_wakes() -> None:
        suspended = waker.post(sleeper.endpoint_path(rest="/suspend"))
        assert {one["status"] for one in waker.finish(suspended)} == {"finished"}
        assert sleeper.query("SELECT 1") == (1,)

    return [reads_and_renames, creates_and_deletes, suspends_and_wakes]


@contextmanager
def metadata() -> Iterator[str]:
    """A Postgres for the region's metadata; its connection string."""
    with private_directory() as scratch, bare_postgres(Programs(scratch)) as postgres:
        postgres.start()
        yield f"host={postgres.directory} user=postgres dbname=postgres"


def placed(client: Client, host: VersionedHost, url: str) -> Place:
    """A project on this host, with connections through its own proxy."""
    stack = host.stack(url)
    with placing_on(stack, host.name):
        return Place.create(stack, client, name=f"on {host.name}")


def by_way_of(place: Place, host: VersionedHost) -> Place:
    """The same project with connections through another host's proxy."""
    return Place(
        replace(place.stack, proxy_port=host.proxy_port), place.client.another(), place.created
    )


@dataclass
class ServedRegion:
    """Two hosts with an API each, behind a load balancer, and clients that must not notice."""

    hosts: list[VersionedHost]
    balancer: LoadBalancer
    traffic: Traffic
    calls: Requests

    def migrate(self, tree: Path) -> None:
        self.hosts[0].run(tree, "migrate --settings controlplane.settings")
        self._goes_on("the migration")

    def change(self, tree: Path, version: str, *, first: int = 0) -> None:
        """Bring all to another version, in the order of docs/how-to/upgrade.md: one host, then all
        APIs, then the other hosts."""
        one, other = self.hosts[first], self.hosts[1 - first]
        self._change_host(one, tree, version)
        for host in self.hosts:
            host.restart_api(tree, self.balancer)
            self._goes_on(f"the API of {host.name} has {version}")
        self._change_host(other, tree, version)

    def _change_host(self, host: VersionedHost, tree: Path, version: str) -> None:
        host.restart_proxy(tree)
        host.restart_worker(tree, version)
        self._goes_on(f"{host.name} has {version}")

    def _goes_on(self, after: str) -> None:
        """Wait until each kind of client and of caller has been served once more."""

        def counts() -> list[int]:
            return [one.count for one in self.traffic.seen.values()] + list(self.calls.counts())

        before = counts()
        wait_for(
            lambda: all(map(int.__gt__, counts(), before)), f"traffic after {after}", timeout=60
        )

    def check(self) -> None:
        seen = self.traffic.seen
        served = {kind: (one.count, round(one.longest, 2)) for kind, one in seen.items()}
        print(f"\nclients served, longest s: {served}; API: {self.calls.done}")
        assert self.calls.errors == []
        assert self.traffic.errors == []


@contextmanager
def served_region(state_dir: Path, tree: Path, version: str) -> Iterator[ServedRegion]:
    """Run it in the block from this code. At its end, nothing may have failed."""
    with (
        metadata() as database_url,
        region(state_dir, database_url, tree, version, ["a", "b"]) as hosts,
        load_balancer(state_dir, [host.api_port for host in hosts]) as balancer,
    ):
        a, b = hosts
        client = a.stack(balancer.url).client()
        on_a, on_b = placed(client, a, balancer.url), placed(client, b, balancer.url)
        sleeper = by_way_of(placed(client, b, balancer.url), a)
        # Each project's clients come by its own host's proxy, and by the other's.
        places = [on_a, on_b, by_way_of(on_a, b), by_way_of(on_b, a)]
        with (
            Traffic(places, pause=PAUSE) as traffic,
            Requests(*loops(client, on_a, sleeper)) as calls,
        ):
            service = ServedRegion(hosts, balancer, traffic, calls)
            yield service
        service.check()


@pytest.mark.thorough
def test_a_rolling_upgrade_of_two_hosts_loses_nothing(state_dir: Path) -> None:
    previous = previous_release(state_dir / "previous")
    with served_region(state_dir, previous, PREVIOUS_VERSION) as service:
        service.migrate(ROOT)
        service.change(ROOT, PRESENT_VERSION)


@pytest.mark.thorough
def test_going_back_loses_nothing(state_dir: Path) -> None:
    """From the next release to this one, whose processes start on the next one's database."""
    following = next_release(state_dir / "next")
    with served_region(state_dir, ROOT, PRESENT_VERSION) as service:
        service.migrate(following)
        service.change(following, NEXT_VERSION)
        service.change(ROOT, PRESENT_VERSION, first=1)

"""A client that connects while a compute is stopped is served by it or by the next one, whatever
the proxies do meanwhile and however long they are stopped."""

import contextlib
import os
import random
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from tests.support.client import Client
from tests.support.place import Place, last_words, serves
from tests.support.processes import (
    descriptors,
    is_alive,
    processes_of,
    proxy_processes,
    standing_still,
)
from tests.support.project import locked
from tests.support.stack import Stack
from tests.support.waiting import wait_for

DROWSY = {"suspend_timeout_seconds": 1}


@pytest.fixture
def drowsy(stack: Stack, alice: Client) -> Iterator[Place]:
    """An endpoint that is suspended after one second."""
    made = Place.create(stack, alice, default_endpoint_settings=DROWSY)
    yield made
    alice.call("DELETE", made.path)


def door(place: Place) -> str:
    return str(place.stack.state_dir / "sockets" / place.endpoint_id / ".s.PGSQL.5432")


def in_the_queue(place: Place) -> int:
    """Return the number of connections that the compute has not accepted yet."""
    with open("/proc/net/unix") as file:
        return sum(
            line.split()[5:8:2] == ["02", door(place)] for line in file if door(place) in line
        )


@contextlib.contextmanager
def full_queue(place: Place) -> Iterator[None]:
    """Fill the compute's backlog, so that connecting fails with EAGAIN."""
    with contextlib.ExitStack() as connections:
        while True:
            one = connections.enter_context(socket.socket(socket.AF_UNIX))
            one.setblocking(False)
            try:
                one.connect(door(place))
            except BlockingIOError:
                break
        yield


@pytest.mark.thorough
def test_a_new_client_is_served_although_its_proxy_stops_while_the_compute_greets_it(
    drowsy: Place,
) -> None:
    with ThreadPoolExecutor() as pool:
        have_each_proxy_know(drowsy)
        with contextlib.ExitStack() as standing:
            with standing_still([drowsy.postmaster()]):
                client = pool.submit(drowsy.query, "SELECT 1")
                wait_for(lambda: in_the_queue(drowsy) >= 1, "the new client's connection")
                standing.enter_context(standing_still(proxy_processes(drowsy.stack)))
            wait_for(lambda: drowsy.state() == "idle", "the endpoint to sleep")
        assert client.result(30) == (1,)


@pytest.mark.thorough
def test_a_new_client_whose_proxy_knows_the_address_reaches_no_stopping_compute(
    drowsy: Place,
) -> None:
    """The proxy stops after its lookup, and continues between the last check and the stop."""
    catalog = locked(drowsy.stack, f"catalog-{drowsy.branch_id}")
    postmaster, proxies = drowsy.postmaster(), proxy_processes(drowsy.stack)
    with ThreadPoolExecutor() as pool, contextlib.ExitStack() as standing:
        have_each_proxy_know(drowsy)
        with catalog:
            # Otherwise the worker would take such a compute for hung.
            with drowsy.locked(), standing_still([postmaster]), full_queue(drowsy):
                before = descriptors(drowsy.stack)
                client = pool.submit(drowsy.query, "SELECT 1 FROM pg_sleep(4)", tls=False)
                # The client's connection, and the one that cannot be made yet.
                wait_for(
                    lambda: descriptors(drowsy.stack) >= before + 2, "the new client to connect"
                )
                standing.enter_context(standing_still(proxies))
            wait_for(lambda: is_being_stopped(drowsy), "the worker to stop the compute")
            standing.close()
            wait_for(lambda: not is_alive(postmaster), "the end of the compute")
        assert client.result(30) == (1,)


def is_being_stopped(place: Place) -> bool:
    """Return whether a worker waits for the branch's catalog, to read it for the last time."""
    if [row["status"] for row in place.endpoint_operations("suspend_compute")[:1]] != ["running"]:
        return False
    lock = str(place.stack.state_dir / "locks" / f"catalog-{place.branch_id}")
    for process in processes_of(place.stack, "worker"):
        with contextlib.suppress(psutil.NoSuchProcess, FileNotFoundError):
            descriptors = f"/proc/{process.pid}/fd"
            for descriptor in os.listdir(descriptors):
                with contextlib.suppress(FileNotFoundError):
                    if os.readlink(f"{descriptors}/{descriptor}") == lock:
                        return True
    return False


def have_each_proxy_know(place: Place) -> None:
    """Make each proxy process open its own session in the compute for questions about roles. The
    next connection that is made is then the new client's."""
    for _ in range(10):
        assert serves_once(place)


def serves_once(place: Place) -> bool:
    return bool(place.query("SELECT 1") == (1,))


@pytest.mark.thorough
def test_a_query_sent_before_the_proxy_stopped_is_answered(drowsy: Place) -> None:
    """The proxy has received the query; the compute sees an idle session."""
    with drowsy.connect() as client, ThreadPoolExecutor() as pool:
        proxies = proxy_processes(drowsy.stack)
        with standing_still(proxies):
            asking = pool.submit(serves, client)
            wait_for(lambda: drowsy.state() == "idle", "the endpoint to sleep")
            assert not asking.done()
        assert asking.result(30)


@pytest.mark.thorough
def test_a_session_without_a_query_outlives_its_compute(shop: Place) -> None:
    with shop.connect() as fresh, shop.connect(tls=False) as plain, shop.connect() as used:
        assert serves(used)
        shop.suspend()
        assert last_words(used) == "57P01"
        assert shop.state() == "idle"
        assert serves(fresh)
        shop.suspend()
        assert last_words(fresh) == "57P01"
        shop.start()
        shop.postmaster().kill()
        assert serves(plain)


@pytest.mark.thorough
def test_a_session_without_a_query_learns_of_changed_settings(
    place: Place,
) -> None:
    with place.connect() as fresh:
        place.change(settings={"pg_settings": {"timezone": "Asia/Kathmandu"}})
        place.suspend()
        assert serves(fresh)
        assert fresh.info.parameter_status("TimeZone") == "Asia/Kathmandu"


@pytest.mark.thorough
def test_a_stopped_proxy_does_not_keep_a_compute_active(drowsy: Place) -> None:
    """A connection without a login does not count as activity."""
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(door(drowsy))
        wait_for(lambda: drowsy.state() == "idle", "the endpoint to sleep", timeout=10)


@pytest.mark.thorough
def test_a_suspend_that_is_abandoned_restores_the_listener_socket(drowsy: Place) -> None:
    """The worker dies while the listener socket is hidden. Its job is repeated, and
    meanwhile a client has come."""
    with locked(drowsy.stack, f"catalog-{drowsy.branch_id}"):
        wait_for(lambda: is_being_stopped(drowsy), "the worker to stop the compute")
        with pytest.raises(FileNotFoundError), socket.socket(socket.AF_UNIX) as late:
            late.connect(door(drowsy))
        for process in processes_of(drowsy.stack, "worker"):
            process.kill()
    assert serves_once(drowsy)


@pytest.mark.thorough
def test_new_clients_are_not_lost_to_suspends_while_proxies_are_stopped(
    stack: Stack, alice: Client
) -> None:
    """Clients come at every moment of a suspend, while the proxy's processes are stopped and
    continued, one or all, mostly for less than the endpoints' timeout, some for longer."""
    places = [Place.create(stack, alice, default_endpoint_settings=DROWSY) for _ in range(4)]
    ends = time.monotonic() + 12
    with ThreadPoolExecutor(8) as threads:
        clients = [threads.submit(come_and_go, place, ends) for place in places * 2]
        dice, stalls = random.Random(1), 0
        while time.monotonic() < ends:
            processes = proxy_processes(stack)
            with standing_still(dice.sample(processes, dice.randint(1, len(processes)))):
                time.sleep(min(dice.expovariate(1 / 0.3), 6))
            time.sleep(dice.uniform(0.1, 2))
            stalls += 1
    assert sum(client.result() for client in clients) >= 20
    assert sum(len(place.endpoint_operations("suspend_compute")) for place in places) >= 4
    assert stalls >= 3


def come_and_go(place: Place, ends: float) -> int:
    """Connect, ask for one row and stay away for about the timeout, until the time `ends`. Returns
    how often; raises the first error of a connection."""
    count = 0
    while time.monotonic() < ends:
        time.sleep(random.uniform(0.9, 2.0))
        with place.connect() as connection:
            assert serves(connection)
        count += 1
    return count

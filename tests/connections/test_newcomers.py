"""Who comes at the moment when a compute is stopped is served by it, or by the next: whatever the
proxies do meanwhile, and however long they stand still."""

import contextlib
import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from tests.benchmarks.suspend import Stalls, come_and_go
from tests.support.client import Client
from tests.support.place import Place, last_words, serves
from tests.support.processes import descriptors, is_alive, processes_of, proxy_processes
from tests.support.project import locked
from tests.support.stack import Stack
from tests.support.waiting import wait_for

DROWSY = {"suspend_timeout_seconds": 1}


@pytest.fixture
def drowsy(stack: Stack, alice: Client) -> Iterator[Place]:
    """An endpoint that sleeps after a second."""
    made = Place.create(stack, alice, default_endpoint_settings=DROWSY)
    yield made
    alice.call("DELETE", made.path)


@contextlib.contextmanager
def standing_still(processes: list[psutil.Process]) -> Iterator[None]:
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in processes:
            process.resume()


def door(place: Place) -> str:
    return str(place.stack.state_dir / "sockets" / place.endpoint_id / ".s.PGSQL.5432")


def in_the_queue(place: Place) -> int:
    """How many connections to the compute it has not accepted yet."""
    with open("/proc/net/unix") as file:
        return sum(
            line.split()[5:8:2] == ["02", door(place)] for line in file if door(place) in line
        )


@contextlib.contextmanager
def full_queue(place: Place) -> Iterator[None]:
    """Whoever connects to the compute is told to try again."""
    with contextlib.ExitStack() as connections:
        while True:
            one = connections.enter_context(socket.socket(socket.AF_UNIX))
            one.setblocking(False)
            try:
                one.connect(door(place))
            except BlockingIOError:
                break
        yield


def test_a_newcomer_is_served_whose_proxy_stands_still_as_the_compute_greets(
    drowsy: Place,
) -> None:
    with ThreadPoolExecutor() as pool:
        have_each_proxy_know(drowsy)
        with standing_still([drowsy.postmaster()]):
            client = pool.submit(drowsy.query, "SELECT 1")
            wait_for(lambda: in_the_queue(drowsy) >= 1, "the newcomer's connection")
            proxies = proxy_processes(drowsy.stack)
            for process in proxies:
                process.suspend()
        try:
            wait_for(lambda: drowsy.state() == "idle", "the endpoint to sleep")
        finally:
            for process in proxies:
                process.resume()
        assert client.result(30) == (1,)


@pytest.mark.thorough
def test_a_newcomer_whose_proxy_knows_the_address_finds_no_compute_that_is_to_stop(
    drowsy: Place,
) -> None:
    """It stands still with the address in hand, and goes on between the last look and the stop."""
    catalog = locked(drowsy.stack, f"catalog-{drowsy.branch_id}")
    postmaster, proxies = drowsy.postmaster(), proxy_processes(drowsy.stack)
    with ThreadPoolExecutor() as pool, contextlib.ExitStack() as standing:
        have_each_proxy_know(drowsy)
        with catalog:
            # Else the worker would take such a compute for hung.
            with drowsy.locked(), standing_still([postmaster]), full_queue(drowsy):
                before = descriptors(drowsy.stack)
                client = pool.submit(drowsy.query, "SELECT 1 FROM pg_sleep(4)", tls=False)
                # The client's, and the one that cannot be connected yet.
                wait_for(
                    lambda: descriptors(drowsy.stack) >= before + 2, "the newcomer to be on its way"
                )
                standing.enter_context(standing_still(proxies))
            wait_for(lambda: is_being_stopped(drowsy), "the worker to stop the compute")
            standing.close()
            wait_for(lambda: not is_alive(postmaster), "the end of the compute")
        assert client.result(30) == (1,)


def is_being_stopped(place: Place) -> bool:
    """Whether a worker waits for the branch's catalog, to read it for the last time."""
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
    """What they ask the compute of a role before it may come in, they ask in a session of their
    own: with that there, a newcomer's connection is the next that is made."""
    for _ in range(10):
        assert serves_once(place)


def serves_once(place: Place) -> bool:
    return bool(place.query("SELECT 1") == (1,))


@pytest.mark.thorough
def test_a_client_that_asked_before_its_proxy_stood_still_is_answered(drowsy: Place) -> None:
    """Its question is in the proxy's hands, and the compute sees a session that says nothing."""
    with drowsy.connect() as client, ThreadPoolExecutor() as pool:
        proxies = proxy_processes(drowsy.stack)
        with standing_still(proxies):
            asking = pool.submit(serves, client)
            wait_for(lambda: drowsy.state() == "idle", "the endpoint to sleep")
            assert not asking.done()
        assert asking.result(30)


@pytest.mark.thorough
def test_a_session_that_has_asked_nothing_outlives_its_compute(shop: Place) -> None:
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
def test_a_session_that_has_asked_nothing_knows_what_has_become_of_its_settings(
    place: Place,
) -> None:
    with place.connect() as fresh:
        place.change(settings={"pg_settings": {"timezone": "Asia/Kathmandu"}})
        place.suspend()
        assert serves(fresh)
        assert fresh.info.parameter_status("TimeZone") == "Asia/Kathmandu"


@pytest.mark.thorough
def test_a_proxy_that_stands_still_on_its_way_in_keeps_no_compute_awake(drowsy: Place) -> None:
    """As any connection that says nothing does not; the look waits for it to show itself."""
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(door(drowsy))
        wait_for(lambda: drowsy.state() == "idle", "the endpoint to sleep", timeout=10)


@pytest.mark.thorough
def test_a_suspend_that_is_called_off_leaves_the_door_open(drowsy: Place) -> None:
    """The worker dies with the door shut; its job is taken up again, and somebody has come."""
    with locked(drowsy.stack, f"catalog-{drowsy.branch_id}"):
        wait_for(lambda: is_being_stopped(drowsy), "the worker to stop the compute")
        with pytest.raises(FileNotFoundError), socket.socket(socket.AF_UNIX) as late:
            late.connect(door(drowsy))
        for process in processes_of(drowsy.stack, "worker"):
            process.kill()
    assert serves_once(drowsy)


@pytest.mark.thorough
def test_newcomers_are_not_lost_to_suspends_while_proxies_stand_still(
    stack: Stack, alice: Client
) -> None:
    """`python -m tests.benchmarks.suspend`, in short."""
    places = [Place.create(stack, alice, default_endpoint_settings=DROWSY) for _ in range(4)]
    with Stalls(stack, seed=1) as stalls:
        found = come_and_go(places, clients=2, seconds=12)
    assert found.errors == []
    assert found.suspends >= 4
    assert found.connects >= 20
    assert stalls.count >= 3

"""Parts of the service die; what depends on them continues as soon as they are back."""

import contextlib
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import psutil
import psycopg
import pytest

from tests.support.client import Client
from tests.support.place import Connection, Place, last_words, serves
from tests.support.processes import (
    clients_of,
    hung_metadata,
    postmaster_in,
    processes_of,
    proxy_processes,
)
from tests.support.stack import Stack
from tests.support.waiting import wait_for


@contextlib.contextmanager
def connected_through_each(
    place: Place, **parameters: Any
) -> Iterator[dict[psutil.Process, list[Connection]]]:
    """Return connections by the proxy process that has them, at least one each."""
    processes = proxy_processes(place.stack)
    with contextlib.ExitStack() as opened:
        found: dict[psutil.Process, list[Connection]] = {}

        def connect() -> bool:
            connection = opened.enter_context(place.connect(**parameters))
            with socket.socket(fileno=socket.dup(connection.fileno())) as line:
                port = line.getsockname()[1]
            (owner,) = [one for one in processes if port in clients_of(one, place.stack)]
            found.setdefault(owner, []).append(connection)
            return len(found) == len(processes)

        wait_for(connect, "a connection through each process")
        yield found


def test_a_killed_proxy_process_affects_only_its_own_clients(shop: Place) -> None:
    with connected_through_each(shop) as connections:
        doomed, surviving = connections
        doomed.kill()
        for connection in connections[doomed]:
            with pytest.raises(psycopg.OperationalError):
                connection.execute("SELECT 1")
        for _ in range(10):
            assert shop.query("SELECT 1") == (1,)
        assert all(map(serves, connections[surviving]))
    wait_for(lambda: len(proxy_processes(shop.stack)) == 2, "another process")


@pytest.mark.thorough
def test_clients_wait_while_no_proxy_process_is_left(shop: Place) -> None:
    before = proxy_processes(shop.stack)
    with ThreadPoolExecutor() as pool:
        for process in before:
            process.kill()
        waiting = [pool.submit(shop.query, "SELECT 1") for _ in range(20)]
        assert [client.result(20) for client in waiting] == [(1,)] * 20
    wait_for(lambda: len(proxy_processes(shop.stack)) == 2, "two processes")
    assert not set(before) & set(proxy_processes(shop.stack))


@pytest.mark.thorough
def test_clients_of_every_process_get_an_error_when_their_endpoint_is_disabled(
    place: Place,
) -> None:
    with connected_through_each(place) as connections:
        place.client.patch(place.endpoint_path(), {"endpoint": {"disabled": True}})
        for several in connections.values():
            assert {last_words(connection) for connection in several} == {"57P01"}


@pytest.mark.thorough
def test_sessions_continue_without_the_metadata_database(shop: Place) -> None:
    with shop.connect() as direct, shop.connect(pooled=True) as pooled:
        postmaster_in(shop.stack.state_dir / "metadata").kill()
        for _ in range(20):
            assert serves(direct)
            assert serves(pooled)
        wait_for(lambda: shop.is_served(), "new connections")
        assert serves(direct)
        assert serves(pooled)
    wait_for(shop.stack.answers, "the service to be healthy")
    shop.suspend()
    assert shop.query("SELECT 1", pooled=True) == (1,)


@pytest.mark.thorough
def test_a_client_waits_for_a_worker_that_was_killed(shop: Place) -> None:
    shop.suspend()
    for process in processes_of(shop.stack, "worker"):
        process.kill()
    began = time.monotonic()
    assert shop.query("SELECT 1") == (1,)
    assert time.monotonic() - began < 30
    wait_for(shop.stack.answers, "the service to be healthy")


@pytest.mark.thorough
def test_a_hanging_metadata_database_delays_nobody_for_long(
    stack: Stack, alice: Client, shop: Place
) -> None:
    asleep = Place.create(stack, alice)
    asleep.suspend()
    with (
        connected_through_each(shop) as direct,
        connected_through_each(shop, pooled=True) as pooled,
    ):
        with hung_metadata(stack):
            # Once before the proxy notices the silence, and once after.
            for _ in range(2):
                began = time.monotonic()
                assert "the control plane does not answer" in str(asleep.refusal())
                assert time.monotonic() - began < 5
                for connections in (*direct.values(), *pooled.values()):
                    assert all(map(serves, connections))
                for asked in (False, True):
                    began = time.monotonic()
                    assert shop.query("SELECT 1", pooled=asked) == (1,)
                    assert time.monotonic() - began < 1
        wait_for(asleep.is_served, "the sleeping endpoint")
    # Changes are received again.
    shop.suspend()
    assert shop.query("SELECT 1") == (1,)
    shop.change(disabled=True)
    assert "endpoint is disabled" in str(shop.refusal())
    shop.change(disabled=False)


@pytest.mark.thorough
def test_a_start_that_cannot_be_requested_is_given_up(shop: Place) -> None:
    shop.suspend()
    with shop.stack.database() as database, database.transaction():
        database.execute("SELECT FROM controlplane_project WHERE id = %s FOR UPDATE", [shop.id])
        began = time.monotonic()
        assert "the control plane does not answer" in str(shop.refusal())
        assert time.monotonic() - began < 5
    assert shop.query("SELECT 1") == (1,)


@pytest.mark.thorough
def test_a_proxy_that_starts_without_its_database_waits_and_so_do_its_clients(
    shop: Place,
) -> None:
    with ThreadPoolExecutor() as pool:
        with hung_metadata(shop.stack):
            for process in proxy_processes(shop.stack):
                process.kill()
            wait_for(lambda: len(proxy_processes(shop.stack)) == 2, "two processes")
            begun = proxy_processes(shop.stack)
            waiting = pool.submit(shop.query, "SELECT 1")
            log = shop.stack.state_dir / "log" / "proxy.log"
            said = "cannot receive changes from the database"
            before = log.read_text().count(said)
            wait_for(lambda: log.read_text().count(said) > before, "the proxy to say so")
            assert not waiting.done()
        assert waiting.result(20) == (1,)
    assert proxy_processes(shop.stack) == begun


CLIENTS = 10


def test_clients_are_spread_over_all_processes(shop: Place) -> None:
    """A process that hangs for a while delays nobody, and gets its share of later clients."""
    hanging, other = proxy_processes(shop.stack)
    with ExitStack() as opened:
        hanging.send_signal(signal.SIGSTOP)
        opened.callback(hanging.send_signal, signal.SIGCONT)
        for _ in range(CLIENTS):
            opened.enter_context(shop.connect())
        assert len(clients_of(other, shop.stack)) >= CLIENTS
        hanging.send_signal(signal.SIGCONT)
        # The other process leaves clients to it for some milliseconds only, within which a busy
        # machine may not run it.
        for _ in range(3 * CLIENTS):
            opened.enter_context(shop.connect())
            counts = [len(clients_of(process, shop.stack)) for process in (hanging, other)]
            if abs(counts[0] - counts[1]) <= 4:
                break
        assert abs(counts[0] - counts[1]) <= 4, counts

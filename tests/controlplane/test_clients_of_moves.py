"""What clients notice when their project moves to another host: all of them are connected through
the proxies of two hosts, as real processes."""

import random
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

import psycopg
import pytest

from tests.support.moves import await_end, living_on, move
from tests.support.place import Connection, Place, last_words
from tests.support.second_host import NAME, SecondHost
from tests.support.waiting import wait_for


def ports(place: Place, second: SecondHost) -> tuple[int, int]:
    return place.stack.proxy_port, second.stack.proxy_port


def await_both(place: Place, second: SecondHost) -> None:
    """Wait until the second host's proxy reaches the first host."""
    wait_for(lambda: place.is_served(port=second.stack.proxy_port), "the hosts to reach each other")


def move_and_wait(place: Place, to: str) -> None:
    await_end(place, move(place, to))
    assert living_on(place) == to


def test_pooled_clients_see_no_error(place: Place, second: SecondHost) -> None:
    """Neither those that have been parked for long, nor those that write all the time."""
    with place.connect() as client:
        client.execute("CREATE TABLE written (client int, n int)")
    clients: list[Connection] = []
    stopped = threading.Event()

    def write(number: int, client: Connection) -> int:
        written = 0
        while not stopped.is_set():
            client.execute("INSERT INTO written VALUES (%s, %s)", [number, written])
            written += 1
            time.sleep(0.01)
        return written

    with ThreadPoolExecutor(8) as pool:
        try:
            await_both(place, second)
            for port in ports(place, second):
                parked, busy = (place.connect(pooled=True, port=port) for _ in range(2))
                parked.execute("SET timezone TO 'Asia/Kathmandu'")
                clients += [parked, busy]
            writers: list[Future[int]] = [
                pool.submit(write, number, client) for number, client in enumerate(clients[1::2])
            ]
            for home in (NAME, "local"):
                move_and_wait(place, home)
                time.sleep(1)
                for client in clients[::2]:
                    assert client.execute("SELECT 1").fetchone() == (1,)
                    assert client.execute("SHOW timezone").fetchone() == ("Asia/Kathmandu",)
            stopped.set()
            written = [writer.result(60) for writer in writers]
        finally:
            stopped.set()
            for client in clients:
                client.close()
    kept = place.query("SELECT count(*), count(DISTINCT (client, n)) FROM written")
    assert kept == (sum(written), sum(written))


def test_direct_clients_are_told_and_reconnect_at_once(place: Place, second: SecondHost) -> None:
    """Connecting again never fails, by whichever host's proxy."""
    await_both(place, second)
    stopped = threading.Event()
    waits: list[float] = []

    def reconnect(port: int, pooled: bool) -> None:
        while not stopped.is_set():
            began = time.monotonic()
            with place.connect(port=port, pooled=pooled, connect_timeout=30) as client:
                waits.append(time.monotonic() - began)
                try:
                    for _ in range(random.randrange(1, 20)):
                        client.execute("SELECT 1")
                        time.sleep(0.02)
                except psycopg.errors.AdminShutdown:
                    assert not pooled

    with ThreadPoolExecutor(8) as pool:
        try:
            idle = [place.connect(port=port) for port in ports(place, second)]
            for client in idle:
                client.execute("SELECT 1")
            ways = [
                pool.submit(reconnect, port, pooled)
                for port in ports(place, second)
                for pooled in (False, True)
            ]
            wait_for(lambda: len(waits) > 20, "the clients to connect")
            move_and_wait(place, NAME)
            assert [last_words(client) for client in idle] == ["57P01", "57P01"]
            move_and_wait(place, "local")
            before = len(waits)
            wait_for(lambda: len(waits) > before + 20, "the clients to connect")
        finally:
            stopped.set()
        for way in ways:
            way.result(60)
    print(f"{len(waits)} connects, the longest {max(waits):.2f} s")


def test_a_parked_client_needs_a_password_that_is_still_valid(
    place: Place, second: SecondHost
) -> None:
    await_both(place, second)
    with place.connect(pooled=True) as client, place.connect(pooled=True) as other:
        client.execute("SELECT 1")
        other.execute("SELECT 1")
        place.suspend()
        move_and_wait(place, NAME)
        with place.connect(port=second.stack.proxy_port) as direct:
            direct.execute(f"ALTER ROLE CURRENT_USER PASSWORD '{place.password}2aB'")
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            client.execute("SELECT 1")
        reset = place.client.post(place.branch_path(rest=f"/roles/{place.role}/reset_password"))
        place.done(reset)
        assert last_words(other) == "57P01"
        place.password = reset["role"]["password"]
    move_and_wait(place, "local")

"""Notifications of the database wake the API's waiting requests."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from django.db import connections

from controlplane.api.http.listening import EVENTS, OPERATIONS, Listener
from controlplane.database import notifications
from tests.support.bare_postgres import SUPERUSER, BarePostgres
from tests.support.waiting import wait_for

LISTENING = "SELECT pid FROM pg_stat_activity WHERE query LIKE 'LISTEN%' OR query = 'SELECT 1'"


@pytest.fixture
def listener(
    bare_cluster: BarePostgres, django_db_modify_db_settings: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Listener]:
    monkeypatch.setitem(connections["default"].settings_dict, "NAME", "postgres")
    monkeypatch.setattr(notifications, "CONNECT_RETRY_DELAY", 0.1)
    made = Listener()
    yield made
    made.stop()
    if made._thread:
        made._thread.join(5)
        assert not made._thread.is_alive()


def database(cluster: BarePostgres) -> "psycopg.Connection[tuple[object, ...]]":
    return psycopg.connect(
        host=str(cluster.directory),
        port=cluster.port,
        user=SUPERUSER,
        dbname="postgres",
        autocommit=True,
    )


def listening_pids(connection: "psycopg.Connection[tuple[object, ...]]") -> list[object]:
    mine = connection.info.backend_pid
    return [pid for (pid,) in connection.execute(LISTENING.encode()).fetchall() if pid != mine]


def test_it_works(listener: Listener, bare_cluster: BarePostgres) -> None:
    with database(bare_cluster) as connection, listener.waiting_for(OPERATIONS, "a") as waiter:
        wait_for(lambda: listener.is_heard, "the listener to connect")
        assert waiter.wait(5)  # because of changes before the connection
        assert not waiter.wait(0.05)
        connection.execute("SELECT pg_notify('perch_operations', 'b'), pg_notify('other', 'a')")
        assert not waiter.wait(0.3)
        connection.execute("SELECT pg_notify('perch_operations', 'a')")
        assert waiter.wait(5)


def test_many_waiters_share_one_connection(listener: Listener, bare_cluster: BarePostgres) -> None:
    ready = threading.Barrier(51)

    def wait() -> bool:
        with listener.waiting_for(EVENTS) as waiter:
            wait_for(lambda: listener.is_heard, "the listener to connect")
            while waiter.wait(0.05):
                pass
            ready.wait()
            return waiter.wait(5)

    with ThreadPoolExecutor(50) as threads, database(bare_cluster) as connection:
        waits = [threads.submit(wait) for _ in range(50)]
        ready.wait()
        assert len(listening_pids(connection)) == 1
        connection.execute("NOTIFY perch_events")
        assert all(one.result() for one in waits)
    assert listener._waiters == {}


def test_a_lost_connection_is_made_again_and_every_waiter_is_notified(
    listener: Listener, bare_cluster: BarePostgres
) -> None:
    with database(bare_cluster) as connection, listener.waiting_for(OPERATIONS, "a") as waiter:
        wait_for(lambda: listener.is_heard, "the listener to connect")
        waiter.wait(5)
        (first,) = listening_pids(connection)
        connection.execute("SELECT pg_terminate_backend(%s)", [first])
        assert waiter.wait(5)
        wait_for(lambda: listening_pids(connection) not in ([], [first]), "another connection")
        wait_for(lambda: listener.is_heard, "the listener to connect")
        while waiter.wait(0.05):
            pass
        connection.execute("SELECT pg_notify('perch_operations', 'a')")
        assert waiter.wait(5)


@pytest.mark.slow
def test_without_a_connection_a_waiter_polls(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connections["default"].settings_dict, "PORT", 1)
    with listener.waiting_for(OPERATIONS, "a") as waiter:
        began = time.monotonic()
        assert waiter.wait(10)
        assert waiter.wait(10)
        assert time.monotonic() - began < 5


def test_the_end_of_the_process_ends_every_wait(listener: Listener) -> None:
    with listener.waiting_for(OPERATIONS, "a") as waiter:
        wait_for(lambda: listener.is_heard, "the listener to connect")
        waiter.wait(5)
        threading.Timer(0.1, listener.stop).start()
        began = time.monotonic()
        assert not waiter.wait(30)
        assert not waiter.wait(30)
        assert time.monotonic() - began < 5

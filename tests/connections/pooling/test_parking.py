"""Pooled clients stay connected while their compute is suspended, restarts or dies, and continue
with their next statement."""

import asyncio
import select
from typing import Any

import psutil
import psycopg
import pytest

from tests.selection import first_of
from tests.support.place import Connection, Place, last_words, serves
from tests.support.pooler import keeps_prepared_statements
from tests.support.processes import proxy_processes, standing_still
from tests.support.project import Project


def connect(place: Place, **parameters: Any) -> Connection:
    return place.connect(pooled=True, **parameters)


def hears_nothing(connection: Connection) -> bool:
    return not select.select([connection.fileno()], [], [], 0)[0]


@pytest.mark.parametrize("tls", first_of([True, False]))
def test_an_idle_client_stays_during_a_suspend_and_wakes_the_compute(
    shop: Place, tls: bool
) -> None:
    with connect(shop, tls=tls) as client:
        assert serves(client)
        for _ in range(2):
            shop.suspend()
            assert hears_nothing(client)
            assert shop.pooler() is None
            assert shop.state() == "idle"
            assert serves(client)
            assert shop.state() == "active"


def test_session_settings_apply_on_the_next_compute(shop: Place) -> None:
    with connect(shop, application_name="shop window") as client:
        client.execute("SET timezone TO 'Asia/Kathmandu'")
        client.execute("SET datestyle TO 'German, DMY'")
        shop.suspend()
        assert client.execute("SHOW timezone").fetchone() == ("Asia/Kathmandu",)
        assert client.execute("SHOW datestyle").fetchone() == ("German, DMY",)
        assert client.execute("SHOW application_name").fetchone() == ("shop window",)
        client.execute("RESET timezone")
        shop.suspend()
        assert client.execute("SHOW datestyle").fetchone() == ("German, DMY",)
        assert client.execute("SHOW timezone").fetchone() != ("Asia/Kathmandu",)


@pytest.mark.thorough
def test_an_open_transaction_ends_with_its_error(shop: Place) -> None:
    with connect(shop) as client:
        client.execute("BEGIN")
        assert serves(client)
        shop.suspend()
        assert last_words(client) == "57P01"


def test_a_client_stays_during_a_restart_for_new_settings(place: Place) -> None:
    with connect(place) as client:
        assert serves(client)
        before = place.postmaster()
        place.change(settings={"pg_settings": {"max_connections": "77"}})
        assert not before.is_running()
        assert client.execute("SHOW max_connections").fetchone() == ("77",)


@pytest.mark.thorough
@pytest.mark.parametrize("which", ["postgres", "pgbouncer"])
def test_an_idle_client_stays_when_its_processes_are_killed(shop: Place, which: str) -> None:
    with connect(shop) as client:
        for _ in range(3):
            assert serves(client)
            doomed = shop.postmaster() if which == "postgres" else shop.pooler()
            assert doomed is not None
            doomed.kill()
            psutil.wait_procs([doomed], timeout=10)
            assert serves(client)


@pytest.mark.thorough
def test_busy_clients_lose_no_statement_to_suspends(shop: Place) -> None:
    """Each has its own rhythm, so that every suspend interrupts some of them."""
    asked = 0

    async def ask_on(number: int, done: asyncio.Event) -> None:
        nonlocal asked
        parameters = shop.parameters(pooled=True, tls=bool(number % 2), prepare_threshold=None)
        async with await psycopg.AsyncConnection.connect(**parameters) as connection:
            while not done.is_set():
                cursor: Any = await connection.execute("SELECT %s::int", [number])
                assert await cursor.fetchone() == (number,)
                await connection.commit()
                asked += 1
                await asyncio.sleep(number / 400)

    async def suspend_often(done: asyncio.Event) -> None:
        for number in range(8):
            while asked < 100 * (number + 1):
                await asyncio.sleep(0.01)
            await asyncio.to_thread(Project.suspend, shop)
        done.set()

    async def work_all() -> None:
        done = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            for number in range(20):
                tasks.create_task(ask_on(number, done))
            tasks.create_task(suspend_often(done))

    asyncio.run(work_all())


@pytest.mark.thorough
def test_a_stopped_proxy_keeps_nothing_active_and_loses_no_client(shop: Place) -> None:
    with connect(shop) as client:
        for _ in range(2):
            assert serves(client)
            with standing_still(proxy_processes(shop.stack)):
                shop.suspend()
            assert serves(client)


@pytest.mark.skipif(not keeps_prepared_statements(), reason="this PgBouncer keeps none")
def test_prepared_statements_exist_on_the_next_compute(shop: Place) -> None:
    with connect(shop) as client:
        client.prepare_threshold = 0
        client.execute("CREATE TABLE IF NOT EXISTS gone (a int)")
        for value in range(3):
            assert client.execute("SELECT %s::int", [value]).fetchone() == (value,)
        assert client.execute("SELECT a FROM gone").fetchone() is None
        shop.suspend()
        assert client.execute("SELECT %s::int", [4]).fetchone() == (4,)
        assert client.execute("SELECT a FROM gone").fetchone() is None
        client.execute("DROP TABLE gone")
        client.execute("DEALLOCATE ALL")
        shop.suspend()
        assert client.execute("SELECT %s::int", [5]).fetchone() == (5,)

"""Queries to a database that may hang, die and come back."""

import asyncio
import threading
import time
from typing import Any

import psutil
import psycopg
import pytest
import uvloop

from controlplane.proxy.directory import control_database
from controlplane.proxy.directory.control_database import ControlDatabase, ServiceCalls
from controlplane.proxy.wire.errors import ControlPlaneUnavailable
from tests.support.bare_postgres import BarePostgres


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_database, "ANSWER_TIMEOUT", 0.4)


async def pid_of(connection: psycopg.AsyncConnection[Any]) -> int:
    row = await (await connection.execute("SELECT pg_backend_pid()")).fetchone()
    assert row is not None
    return int(row[0])


def database_on(postgres: BarePostgres) -> ControlDatabase:
    return ControlDatabase(f"host={postgres.directory} user=postgres dbname=postgres")


def test_a_connection_is_reused(postgres: BarePostgres) -> None:
    async def go() -> None:
        database = database_on(postgres)
        assert await database.ask(pid_of) == await database.ask(pid_of)
        await database.close()

    uvloop.run(go())


@pytest.mark.slow
def test_waiting_for_a_server_that_hangs_is_bounded(
    mortal_postgres: BarePostgres,
) -> None:
    """For each of many clients, with or without an open connection."""
    mortal_postgres.start()

    async def go() -> None:
        database = database_on(mortal_postgres)
        before = await database.ask(pid_of)
        processes = [psutil.Process(mortal_postgres.pid), psutil.Process(before)]
        for process in processes:
            process.suspend()
        try:
            began = time.monotonic()
            answers = await asyncio.gather(
                *[database.ask(pid_of) for _ in range(30)], return_exceptions=True
            )
            assert time.monotonic() - began < 2
        finally:
            for process in processes:
                process.resume()
        assert {type(answer) for answer in answers} == {ControlPlaneUnavailable}
        assert database.is_unavailable
        assert await database.ask(pid_of) != before
        assert not database.is_unavailable
        await database.close()

    uvloop.run(go())


def test_after_a_restart_of_the_server_the_first_query_is_answered(
    mortal_postgres: BarePostgres,
) -> None:
    mortal_postgres.start()

    async def go() -> None:
        database = database_on(mortal_postgres)
        await asyncio.gather(*[database.ask(pid_of) for _ in range(5)])
        mortal_postgres.stop()
        with pytest.raises(ControlPlaneUnavailable):
            await database.ask(pid_of)
        mortal_postgres.start()
        assert await database.ask(pid_of)
        await database.close()

    uvloop.run(go())


def test_a_cancelled_query_leaves_its_connection_usable(
    postgres: BarePostgres,
) -> None:
    async def go() -> None:
        database = database_on(postgres)
        before = await database.ask(pid_of)
        asked, answered = asyncio.Event(), asyncio.Event()

        async def ask(connection: psycopg.AsyncConnection[Any]) -> None:
            asked.set()
            await pid_of(connection)
            answered.set()

        leaving = asyncio.create_task(database.ask(ask))
        await asked.wait()
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        await asyncio.wait_for(answered.wait(), 5)
        assert await database.ask(pid_of) == before
        await database.close()

    uvloop.run(go())


@pytest.mark.slow
def test_after_a_pause_of_the_proxy_the_server_is_not_taken_for_silent(
    postgres: BarePostgres,
) -> None:
    async def go() -> None:
        database = database_on(postgres)
        asked = 0

        async def ask(connection: psycopg.AsyncConnection[Any]) -> int:
            nonlocal asked
            asked += 1
            await connection.execute("SELECT 1")
            if asked == 1:
                time.sleep(1)  # blocks the loop, as a stop of the process does
            return await pid_of(connection)

        assert await database.ask(ask)
        assert asked == 2
        assert not database.is_unavailable
        await database.close()

    uvloop.run(go())


def test_the_calls_of_an_account_leave_threads_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even once nobody waits for them any more, and if several accounts have such calls."""
    monkeypatch.setattr(control_database, "close_old_connections", lambda: None)
    freed = threading.Event()

    async def go() -> str:
        calls = ServiceCalls()
        stuck = [
            asyncio.create_task(calls.call(freed.wait, timeout=0.05, account_id=str(number % 10)))
            for number in range(60)
        ]
        await asyncio.sleep(0.2)
        try:
            answer = await calls.call(str, "served", timeout=1, account_id="other")
        finally:
            freed.set()
        ended = await asyncio.gather(*stuck, return_exceptions=True)
        assert {type(one) for one in ended} == {ControlPlaneUnavailable, bool}
        calls.close()
        return answer

    assert uvloop.run(go()) == "served"

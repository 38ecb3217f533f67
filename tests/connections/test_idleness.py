"""Endpoints that nobody uses go to sleep by themselves, and cost no client a connection."""

import asyncio
import time
from typing import Any

import psycopg
import pytest

from tests.connections.place import Place, last_words, new_place, serves
from tests.stack import Client, Stack, wait_for


@pytest.fixture
def drowsy(stack: Stack, alice: Client) -> Place:
    """An endpoint that sleeps after a second."""
    return new_place(
        stack, alice, default_endpoint_settings={"suspend_timeout_seconds": 1}, name="drowsy"
    )


def wait_asleep(place: Place) -> None:
    wait_for(lambda: place.state() == "idle", "the endpoint to sleep", timeout=15)


def test_an_endpoint_left_alone_sleeps_and_says_so(drowsy: Place) -> None:
    wait_asleep(drowsy)
    operations = drowsy.operations()
    assert [row["action"] for row in operations] == ["suspend_compute", "start_compute"]
    assert {row["status"] for row in operations} == {"finished"}
    endpoint = drowsy.endpoint()
    assert endpoint["last_active"] <= endpoint["suspended_at"]
    assert not drowsy.stack.is_running(drowsy.endpoint_id)


def test_an_idle_connection_keeps_nothing_awake(drowsy: Place) -> None:
    with drowsy.connect() as direct, drowsy.connect(pooled=True) as pooled:
        assert serves(direct)
        assert serves(pooled)
        wait_asleep(drowsy)
        assert (last_words(direct), last_words(pooled)) == ("57P01", "57P01")
    assert drowsy.pooler() is None
    assert drowsy.query("SELECT 1", pooled=True) == (1,)


@pytest.mark.parametrize("pooled", [False, True], ids=["direct", "pooled"])
def test_a_running_query_and_an_open_transaction_keep_it_awake(drowsy: Place, pooled: bool) -> None:
    with drowsy.connect(pooled=pooled) as connection:
        assert connection.execute("SELECT pg_sleep(2.5), 1").fetchone() == ("", 1)
        with connection.transaction():
            connection.execute("CREATE TABLE seen ()")
            began = time.monotonic()
            wait_for(lambda: time.monotonic() - began > 2.5, "the timeout, twice over")
            connection.execute("SELECT 1")
        assert drowsy.operations("suspend_compute") == []
        wait_asleep(drowsy)
    last_active = drowsy.endpoint()["last_active"]
    assert last_active > drowsy.operations("start_compute")[0]["updated_at"]


def test_a_timeout_of_minus_one_keeps_it_awake(drowsy: Place, place: Place) -> None:
    place.update(suspend_timeout_seconds=-1)
    with place.stack.database() as database:
        database.execute(
            "UPDATE controlplane_endpoint SET last_active = now() - interval '1 year',"
            " started_at = now() - interval '1 year' WHERE id = %s",
            [place.endpoint_id],
        )
    wait_asleep(drowsy)
    assert (place.state(), place.operations("suspend_compute")) == ("active", [])


def test_the_time_of_the_last_activity_is_kept(place: Place) -> None:
    place.make_older(hours=1)
    before = place.endpoint()["last_active"]
    assert place.query("SELECT 1") == (1,)
    wait_for(lambda: place.endpoint()["last_active"] > before, "last_active to be noted")
    assert place.state() == "active"


@pytest.mark.parametrize("pooled", [False, True], ids=["direct", "pooled"])
def test_a_connection_at_the_moment_of_suspension_is_served(
    stack: Stack, alice: Client, pooled: bool
) -> None:
    """Clients come one after the other, each a little nearer to the end of the timeout."""
    places = [
        new_place(stack, alice, default_endpoint_settings={"suspend_timeout_seconds": 1})
        for _ in range(6)
    ]
    failures: list[str] = []
    suspended = sum(len(place.operations("suspend_compute")) for place in places)

    async def come(place: Place, deadline: float) -> None:
        while time.monotonic() < deadline:
            for connecting in range(10):
                await asyncio.sleep(0.9 + connecting * 0.07)
                await ask(place)

    async def ask(place: Place) -> None:
        try:
            async with await psycopg.AsyncConnection.connect(
                **place.parameters(pooled=pooled), autocommit=True
            ) as connection:
                cursor: Any = await connection.execute("SELECT 1")
                assert await cursor.fetchone() == (1,)
        except psycopg.Error as error:
            failures.append(f"{time.time():.3f} {place.endpoint_id} {error}")

    async def come_to_all() -> None:
        deadline = time.monotonic() + 20
        await asyncio.gather(*[come(place, deadline) for place in places for _ in range(4)])

    asyncio.run(come_to_all())
    assert failures == []
    assert sum(len(place.operations("suspend_compute")) for place in places) > suspended

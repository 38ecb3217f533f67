"""Many clients with few server connections: PgBouncer in transaction mode beside a compute."""

import asyncio
import fcntl
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support.place import Place, serves
from tests.support.project import Project
from tests.support.stack import running_stack, state_dir
from tests.support.waiting import wait_for

__all__ = ["state_dir"]

CLIENTS = 1000
MOST_SERVERS = 20


def backends(place: Place) -> int:
    with place.stack.compute(place.endpoint_id, "postgres") as platform:
        row = platform.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE usename = %s", [place.role]
        ).fetchone()
        return int(row[0]) if row else 0


@pytest.mark.thorough
def test_a_thousand_clients_share_a_few_server_connections(shop: Place) -> None:
    parameters = shop.parameters(pooled=True, tls=False, connect_timeout=120)
    most = 0

    async def work(door: asyncio.Semaphore, everybody: asyncio.Barrier) -> int:
        async with door:
            connection = await psycopg.AsyncConnection.connect(**parameters, autocommit=True)
        async with connection:
            await everybody.wait()
            total = 0
            for _ in range(2):
                cursor: Any = await connection.execute("SELECT 1 FROM pg_sleep(0.001)")
                total += (await cursor.fetchone())[0]
            await everybody.wait()
        return total

    async def count(done: asyncio.Event) -> None:
        nonlocal most
        while not done.is_set():
            most = max(most, await asyncio.to_thread(backends, shop))

    async def work_all() -> list[int]:
        done, door = asyncio.Event(), asyncio.Semaphore(50)
        counting = asyncio.create_task(count(done))
        everybody = asyncio.Barrier(CLIENTS)
        totals = await asyncio.gather(*[work(door, everybody) for _ in range(CLIENTS)])
        done.set()
        await counting
        return totals

    assert asyncio.run(work_all()) == [2] * CLIENTS
    assert 1 <= most <= MOST_SERVERS


def test_a_server_connection_is_held_for_a_transaction_only(shop: Place) -> None:
    with shop.connect(pooled=True) as one, shop.connect(pooled=True) as other:
        asked = "SELECT pg_backend_pid()"
        first = one.execute(asked).fetchone()
        assert other.execute(asked).fetchone() == first
        with one.transaction():
            assert one.execute(asked).fetchone() == first
            assert other.execute(asked).fetchone() != first


def test_pooler_enabled_sends_the_plain_host_through_the_pooler(shop: Place) -> None:
    shop.suspend()
    assert shop.query("SELECT 1") == (1,)
    assert shop.pooler() is None
    assert len(shop.change(pooler_enabled=True)["operations"]) == 1
    with shop.connect() as one, shop.connect() as other:
        asked = "SELECT pg_backend_pid()"
        assert one.execute(asked).fetchone() == other.execute(asked).fetchone()
    assert shop.pooler() is not None
    # No pooler keeps the first setting; every pooler keeps the second.
    assert shop.query("SHOW statement_timeout", options="-c statement_timeout=7s") == ("7s",)
    assert shop.query("SHOW timezone", options="-c timezone=Asia/Tokyo") == ("Asia/Tokyo",)
    shop.change(pooler_enabled=False)
    with shop.connect() as one, shop.connect() as other:
        assert one.execute(asked).fetchone() != other.execute(asked).fetchone()


@pytest.mark.thorough
def test_the_pooler_ends_with_its_compute(shop: Place) -> None:
    shop.suspend()
    shop.start()
    assert shop.pooler() is None
    with shop.connect(pooled=True) as connection:
        assert serves(connection)
        first = shop.pooler()
        assert first is not None
        assert shop.query("SELECT 1", pooled=True) == (1,)
        shop.suspend()
        assert not first.is_running()
    assert shop.query("SELECT 1", pooled=True) == (1,)
    second = shop.pooler()
    assert second is not None
    shop.postmaster().kill()
    wait_for(lambda: not second.is_running(), "the pooler of a dead compute to end")
    assert shop.query("SELECT 1", pooled=True) == (1,)


@pytest.mark.thorough
def test_a_pooler_without_clients_ends_and_starts_again_with_one(place: Place) -> None:
    with place.connect(pooled=True) as staying:
        assert serves(staying)
        first = place.pooler()
        assert first is not None
        with place.connect(pooled=True):
            pass
    wait_for(lambda: not first.is_running(), "the pooler to end", timeout=40)
    assert place.state() == "active"
    with place.connect(pooled=True) as staying:
        assert serves(staying)
        second = place.pooler()
        assert second is not None
        wait_past(12)
        assert second.is_running()
        assert serves(staying)


def wait_past(seconds: float) -> None:
    """Wait longer than the time after which a pooler without clients ends."""
    end = time.monotonic() + seconds
    wait_for(lambda: time.monotonic() > end, "time to pass", timeout=seconds + 5)


def test_a_pooler_that_was_killed_is_started_again(shop: Place) -> None:
    for _ in range(3):
        assert shop.query("SELECT 1", pooled=True) == (1,)
        pooler = shop.pooler()
        assert pooler is not None
        pooler.kill()
        wait_for(lambda: shop.pooler() is None, "the pooler to die")


def test_a_pooler_starts_while_other_work_holds_the_branch(place: Place) -> None:
    """As a copy of the branch, a snapshot or a reading of its schema does."""
    assert place.query("SELECT 1") == (1,)
    place.settle()
    assert place.pooler() is None
    with open(place.stack.state_dir / "locks" / place.branch_id, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        began = time.monotonic()
        with place.connect(pooled=True) as client:
            assert serves(client)
        assert time.monotonic() - began < 5
    # A suspend ends this pooler as any other, and clients start another one.
    place.suspend()
    assert place.pooler() is None
    assert place.query("SELECT 1", pooled=True) == (1,)


@pytest.mark.thorough
def test_suspends_and_first_pooled_clients_at_once_leave_no_pooler(place: Place) -> None:
    """Each client needs a pooler, which is started while the compute may be about to stop."""
    for _ in range(8):
        with ThreadPoolExecutor(4) as threads:
            asked = [
                threads.submit(place.query, "SELECT 1", pooled=number > 0) for number in range(3)
            ]
            threads.submit(Project.suspend, place).result()
            assert [one.result() for one in asked] == [(1,)] * 3
        place.suspend()
        assert place.pooler() is None


def test_roles_share_no_server_connection(shop: Place) -> None:
    password = shop.new_role("bob")
    with (
        shop.connect(pooled=True) as owner,
        shop.connect(pooled=True, user="bob", password=password) as bob,
    ):
        for _ in range(5):
            assert owner.execute("SELECT current_user").fetchone() == (shop.role,)
            assert bob.execute("SELECT current_user").fetchone() == ("bob",)


def test_a_pooled_client_gets_the_reason_for_what_is_not_possible(shop: Place) -> None:
    error = shop.refusal(pooled=True, options="-c work_mem=5MB")
    assert "unsupported startup parameter in options: work_mem" in str(error)
    assert "without -pooler" in str(error)
    assert shop.query("SHOW timezone", pooled=True, options="-c timezone=Asia/Tokyo") == (
        "Asia/Tokyo",
    )
    error = shop.refusal(pooled=True, dbname="there is none")
    assert 'database "there is none" does not exist' in str(error)


@pytest.mark.thorough
def test_without_pgbouncer_pooled_clients_get_the_reason_and_others_are_served(
    state_dir: Path,
) -> None:
    with running_stack(state_dir, PERCH_PGBOUNCER="") as stack:
        bare = Place.create(stack, stack.client())
        assert "PgBouncer is not installed" in str(bare.refusal(pooled=True))
        assert bare.query("SELECT 1") == (1,)

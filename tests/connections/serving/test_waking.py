"""Connecting to an endpoint that is idle or changing."""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from tests.controlplane.cancel_retry import cancel, starting, wedged_starts
from tests.selection import first_of
from tests.support.client import Client
from tests.support.place import Place, serves
from tests.support.project import locked
from tests.support.stack import Stack
from tests.support.waiting import wait_for


def ask_at_once(place: Place, clients: int, statement: str, **parameters: Any) -> list[Any]:
    """Return the first row of the statement's result, for each of many simultaneous clients."""
    chosen = place.parameters(**parameters)

    async def ask() -> Any:
        async with await psycopg.AsyncConnection.connect(**chosen) as connection:
            return await (await connection.execute(statement.encode())).fetchone()

    async def ask_all() -> list[Any]:
        return await asyncio.gather(*[ask() for _ in range(clients)])

    return asyncio.run(ask_all())


@pytest.mark.parametrize("pooled", [False, True], ids=["direct", "pooled"])
def test_many_simultaneous_clients_are_served_by_one_start(shop: Place, pooled: bool) -> None:
    shop.suspend()
    before = len(shop.endpoint_operations("start_compute"))
    assert ask_at_once(shop, 50, "SELECT 1", pooled=pooled) == [(1,)] * 50
    started = shop.endpoint_operations("start_compute")
    assert len(started) == before + 1
    assert (started[0]["status"], started[0]["failures_count"]) == ("finished", 0)


def test_a_compute_has_no_process_that_looks_for_subscriptions(shop: Place) -> None:
    kinds = {kind for (kind,) in shop.sql("SELECT backend_type FROM pg_stat_activity")}
    assert "autovacuum launcher" in kinds
    assert "logical replication launcher" not in kinds


def post(action: str) -> Callable[[Place], Any]:
    return lambda place: place.client.post(f"{place.endpoint_path()}/{action}")


def patch(**changes: Any) -> Callable[[Place], Any]:
    return lambda place: place.client.patch(place.endpoint_path(), {"endpoint": changes})


def make_role(place: Place) -> Any:
    name = f"role-{len(place.endpoint_operations())}"
    return place.client.post(f"{place.branch_path()}/roles", {"role": {"name": name}})


COMMOTIONS: dict[str, Callable[[Place], Any]] = {
    "started": post("start"),
    "suspended": post("suspend"),
    "restarted": post("restart"),
    "given a setting": patch(settings={"pg_settings": {"work_mem": "5MB"}}),
    "given a setting that takes a restart": patch(
        settings={"pg_settings": {"max_connections": "77"}}
    ),
    "resized": patch(autoscaling_limit_max_cu=2),
    "given a role": make_role,
}


@pytest.mark.thorough
@pytest.mark.parametrize("asleep", [True, False], ids=["asleep", "awake"])
@pytest.mark.parametrize("commotion", COMMOTIONS.values(), ids=COMMOTIONS.keys())
def test_a_client_is_served_while_its_endpoint_is(
    shop: Place, commotion: Callable[[Place], Any], asleep: bool
) -> None:
    if asleep:
        shop.suspend()
    answer = commotion(shop)
    assert ask_at_once(shop, 3, "SELECT 1") == [(1,)] * 3
    for row in shop.client.finish(answer):
        assert row["status"] == "finished", row
    shop.settle()
    # Restore the previous values, so that the next client causes a change again.
    shop.change(settings={"pg_settings": {}}, autoscaling_limit_max_cu=1)
    assert ask_at_once(shop, 1, "SELECT 1", pooled=True) == [(1,)]


@pytest.mark.thorough
def test_a_client_is_served_before_its_project_is_ready(stack: Stack, alice: Client) -> None:
    place = Place.create(stack, alice, wait=False)
    assert ask_at_once(place, 5, "SELECT 1") == [(1,)] * 5
    assert len(place.endpoint_operations("start_compute")) == 1


@pytest.mark.thorough
def test_a_client_is_served_on_the_branch_its_endpoint_was_just_moved_to(
    place: Place,
) -> None:
    branches = [place.branch_id, place.new_branch_id(name="dev")]
    for branch in reversed(branches):
        place.change(branch_id=branch)
        with place.connect() as connection:
            connection.execute(f"CREATE TABLE marker AS SELECT '{branch}' AS branch".encode())
    for asleep, branch in enumerate(branches):
        if asleep:
            place.suspend()
        patch(branch_id=branch)(place)
        answers = ask_at_once(place, 5, "SELECT branch FROM marker")
        assert answers == [(branch,)] * 5
        place.settle()


@pytest.mark.thorough
@pytest.mark.parametrize("reassigned", [False, True], ids=["suspended", "reassigned"])
def test_a_client_is_served_although_its_endpoint_is_reassigned_after_its_start(
    place: Place, reassigned: bool
) -> None:
    """The start that the client waited for has succeeded but is of no use; another must be
    requested."""
    send_away = patch(branch_id=place.new_branch_id()) if reassigned else post("suspend")
    place.suspend()
    with ThreadPoolExecutor() as pool:
        with locked(place.stack, place.branch_id):
            first = pool.submit(place.query, "SELECT 1")
            wait_for(lambda: is_starting(place), "the start to be asked for")
            send_away(place)
        assert first.result(10) == (1,)
    assert place.query("SELECT 1") == (1,)
    place.settle()
    assert place.state() == "active"


def is_starting(place: Place) -> bool:
    return [row["status"] for row in place.endpoint_operations("start_compute")[:1]] == ["running"]


@pytest.mark.thorough
def test_a_client_that_gives_up_does_not_affect_the_others(shop: Place) -> None:
    shop.suspend()

    async def hurry(patience: float) -> Any:
        connecting = psycopg.AsyncConnection.connect(**shop.parameters())
        try:
            async with await asyncio.wait_for(connecting, patience) as connection:
                return await (await connection.execute("SELECT 1")).fetchone()
        except TimeoutError:
            return "gave up"

    async def ask_all() -> list[Any]:
        return await asyncio.gather(*[hurry(0.01 * n) for n in range(1, 10)], hurry(30))

    assert asyncio.run(ask_all())[-1] == (1,)


@pytest.mark.thorough
def test_clients_get_the_error_of_a_broken_data_directory_until_it_is_repaired(shop: Place) -> None:
    shop.suspend()
    control = shop.stack.data_dir(shop.branch_id) / "global" / "pg_control"
    aside = control.rename(control.with_suffix(".aside"))
    assert "could not find the database system" in str(shop.refusal())
    assert [row["status"] for row in shop.endpoint_operations("start_compute")[:1]] == ["failed"]
    before = shop.endpoint_operations()
    began = time.monotonic()
    for _ in range(3):
        error = str(shop.refusal())
        assert "could not find the database system" in error
        assert "the next start is possible in" in error
    assert time.monotonic() - began < 1.5
    assert shop.endpoint_operations() == before
    aside.rename(control)

    def mended() -> bool:
        try:
            return bool(shop.query("SELECT 1") == (1,))
        except psycopg.OperationalError:
            return False

    wait_for(mended, "the endpoint to start again", timeout=10)
    assert shop.state() == "active"


def test_a_killed_compute_ends_its_clients_and_starts_for_the_next(
    shop: Place,
) -> None:
    """Clients of its pooler stay: see `test_parking`."""
    with shop.connect() as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS kept ()")
        shop.postmaster().kill()
        with pytest.raises(psycopg.OperationalError):
            # A backend may outlive its postmaster for a moment.
            wait_for(lambda: not serves(connection), "the connection to end", timeout=3)
    assert shop.query("SELECT count(*) FROM kept") == (0,)


@pytest.mark.parametrize("pooled", first_of([False, True]))
def test_a_client_that_connects_during_a_reset_waits_for_it(place: Place, pooled: bool) -> None:
    """Afterwards the branch has other roles of the same names."""
    made = place.done(
        place.client.post(f"{place.path}/branches", {"endpoints": [{"type": "read_write"}]})
    )
    branch_id, endpoint_id = made["branch"]["id"], made["endpoints"][0]["id"]
    host = f"{endpoint_id}{'-pooler' if pooled else ''}.localhost"
    with place.connect(host=host) as connection:
        connection.execute("CREATE TABLE only_here (id int)")
    restore = f"{place.path}/branches/{branch_id}/restore"
    reset = place.client.post(restore, {"source_branch_id": place.branch_id})
    suspend = reset["operations"][0]
    assert suspend["action"] == "suspend_compute"
    place.client.get(f"{place.path}/operations/{suspend['id']}", wait=30)
    with ThreadPoolExecutor(4) as threads:
        found = [
            threads.submit(place.query, "SELECT to_regclass('only_here')", host=host)
            for _ in range(12)
        ]
        assert {one.result() for one in found} == {(None,)}


def test_waiting_clients_get_an_error_at_once(shop: Place) -> None:
    shop.suspend()
    refusals: list[psycopg.OperationalError] = []

    def come() -> None:
        refusals.append(shop.refusal())

    with wedged_starts(shop):
        clients = [threading.Thread(target=come) for _ in range(3)]
        for client in clients:
            client.start()
        starting(shop)
        (start,) = shop.endpoint_operations("start_compute")[:1]
        began = time.monotonic()
        cancel(shop, start)
        for client in clients:
            client.join(20)
        assert time.monotonic() - began < 2
        for error in refusals:
            assert 'could not start: cancelled by the API key "tests"' in str(error)
        assert len(refusals) == 3
        shop.settle()
    # A cancelled start delays no later one: the next connection starts the endpoint.
    assert shop.is_served()

"""Real clients with only a connection string, at an active or idle endpoint."""

import asyncio
import itertools
import ssl
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import asyncpg
import psycopg
import pytest

from tests.selection import first_of
from tests.support.place import Place

QUESTION = "SELECT current_user || ' ' || 6 * 7"


def ask_by_psycopg(place: Place, parameters: Any) -> Any:
    with psycopg.connect(**parameters) as connection:
        row = connection.execute(QUESTION).fetchone()
        return row and row[0]


def ask_by_async_psycopg(place: Place, parameters: Any) -> Any:
    async def ask() -> Any:
        async with await psycopg.AsyncConnection.connect(**parameters) as connection:
            row = await (await connection.execute(QUESTION)).fetchone()
            return row and row[0]

    return asyncio.run(ask())


def ask_by_asyncpg(place: Place, parameters: Any) -> Any:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    tls = parameters["sslmode"] == "require"
    name = parameters["host"].partition(".")[0]

    async def ask() -> Any:
        connection = await asyncpg.connect(
            host="127.0.0.1",
            port=parameters["port"],
            user=parameters["user"],
            password=parameters["password"],
            database=parameters["dbname"],
            ssl=context if tls else False,
            server_settings={"options": f"endpoint={name}" if tls else parameters["options"]},
            statement_cache_size=0,
        )
        try:
            return await connection.fetchval(QUESTION)
        finally:
            await connection.close()

    return asyncio.run(ask())


CLIENTS: dict[str, Callable[[Place, Any], Any]] = {
    "psycopg": ask_by_psycopg,
    "psycopg async": ask_by_async_psycopg,
    "asyncpg": ask_by_asyncpg,
}


@pytest.mark.parametrize("pooled", [False, True], ids=["direct", "pooled"])
@pytest.mark.parametrize("tls", first_of([False, True]), ids=["plain", "tls"])
@pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS.keys())
def test_a_client_is_served_by_an_idle_and_by_an_active_endpoint(
    shop: Place, client: Callable[[Place, Any], Any], tls: bool, pooled: bool
) -> None:
    shop.suspend()
    parameters = shop.parameters(tls=tls, pooled=pooled)
    for _ in ("asleep", "awake"):
        assert client(shop, parameters) == f"{shop.role} 42"
    assert shop.state() == "active"


@pytest.mark.thorough
@pytest.mark.parametrize("pooled", [False, True], ids=["direct", "pooled"])
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_psql_is_served_by_an_idle_and_by_an_active_endpoint(
    shop: Place, tls: bool, pooled: bool
) -> None:
    shop.suspend()
    for _ in ("asleep", "awake"):
        done = shop.psql("-c", QUESTION, tls=tls, pooled=pooled)
        assert (done.stdout, done.stderr) == (f"{shop.role} 42\n", "")


@pytest.mark.parametrize("channel_binding", ["require", "disable"])
def test_psql_needs_only_the_connection_string(shop: Place, channel_binding: str) -> None:
    query = {"database_name": shop.database, "role_name": shop.role, "pooled": True}
    uri = shop.client.get(f"{shop.path}/connection_uri", **query)["uri"]
    done = shop.psql(
        f"{uri}&channel_binding={channel_binding}", "-c", QUESTION, host="", hostaddr="", dbname="x"
    )
    assert (done.stdout, done.stderr) == (f"{shop.role} 42\n", "")


@pytest.mark.thorough
def test_the_connection_string_leads_to_the_requested_database(place: Place) -> None:
    branch = place.new_branch_id(name="dev")
    path, query = (
        f"{place.path}/connection_uri",
        {"database_name": place.database, "role_name": place.role},
    )
    host = f"localhost:{place.stack.proxy_port}/{place.database}"
    login = f"postgresql://{place.role}:{place.password}@"
    direct = f"{login}{host}?options=endpoint%3D{place.endpoint_id}"
    for asked in ({}, {"branch_id": place.branch_id}, {"endpoint_id": place.endpoint_id}):
        assert place.client.get(path, **query, **asked)["uri"] == direct
    pooled = place.client.get(path, **query, pooled="true")["uri"]
    assert pooled == direct.replace(place.endpoint_id, f"{place.endpoint_id}-pooler")
    for asked in (
        {"branch_id": branch},
        {"branch_id": "br-none"},
        {"endpoint_id": "ep-none"},
        {"role_name": "nobody"},
        {"database_name": "none"},
        {"endpoint_id": place.endpoint_id, "branch_id": branch},
    ):
        assert place.client.call("GET", path, params={**query, **asked}).status_code == 404


def test_a_client_that_cannot_log_in_wakes_nothing(sleeping: Place) -> None:
    before = sleeping.endpoint_operations()
    wrong: list[Any] = [{"password": "wrong"}, {"user": "nobody"}]
    ways = list(itertools.product((False, True), (False, True), wrong))

    def tell(way: tuple[bool, bool, Any]) -> None:
        tls, pooled, changes = way
        user = changes.get("user", sleeping.role)
        told = str(sleeping.refusal(tls=tls, pooled=pooled, **changes))
        assert f'password authentication failed for user "{user}"' in told
        done = sleeping.psql("-c", "SELECT 1", tls=tls, pooled=pooled, **changes)
        assert f'password authentication failed for user "{user}"' in done.stderr

    # In parallel, because wrong passwords are answered with growing delays.
    with ThreadPoolExecutor(len(ways)) as threads:
        list(threads.map(tell, ways))
    assert (sleeping.endpoint_operations(), sleeping.state()) == (before, "idle")


@pytest.mark.thorough
def test_an_unknown_endpoint_looks_like_a_wrong_password(sleeping: Place) -> None:
    error = sleeping.refusal(host="ep-there-is-none-123456.localhost")
    assert f'password authentication failed for user "{sleeping.role}"' in str(error)


@pytest.fixture(scope="module")
def sleeping(shop: Place) -> Place:
    shop.suspend()
    return shop

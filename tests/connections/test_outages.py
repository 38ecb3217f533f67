"""Parts of the service die: what depends on them goes on as soon as they are back."""

import time

import psycopg
import pytest
import requests

from tests.connections.place import Place, serves
from tests.connections.processes import metadata_postmaster, of_service
from tests.stack import Stack, wait_for


def is_served(place: Place, **parameters: bool) -> bool:
    try:
        return bool(place.query("SELECT 1", **parameters) == (1,))
    except psycopg.OperationalError:
        return False


def is_well(stack: Stack) -> bool:
    try:
        url = stack.api_url.removesuffix("/api/v2") + "/healthz"
        return requests.get(url, timeout=5).status_code == 200
    except requests.RequestException:
        return False


def test_a_killed_proxy_is_started_again(shop: Place) -> None:
    with shop.connect() as connection:
        for process in of_service(shop.stack, "proxy"):
            process.kill()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    for pooled in (False, True):
        wait_for(lambda pooled=pooled: is_served(shop, pooled=pooled), "the proxy")  # type: ignore[misc]
    assert shop.state() == "active"


def test_sessions_go_on_without_the_metadata_database(shop: Place) -> None:
    with shop.connect() as direct, shop.connect(pooled=True) as pooled:
        metadata_postmaster(shop.stack).kill()
        for _ in range(20):
            assert serves(direct)
            assert serves(pooled)
        wait_for(lambda: is_served(shop), "new connections")
        assert serves(direct)
        assert serves(pooled)
    wait_for(lambda: is_well(shop.stack), "the service to be well")
    shop.suspend()
    assert shop.query("SELECT 1", pooled=True) == (1,)


def test_a_client_waits_for_a_worker_that_was_killed(shop: Place) -> None:
    shop.suspend()
    for process in of_service(shop.stack, "worker"):
        process.kill()
    began = time.monotonic()
    assert shop.query("SELECT 1") == (1,)
    assert time.monotonic() - began < 30
    wait_for(lambda: is_well(shop.stack), "the service to be well")

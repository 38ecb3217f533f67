"""Parts of the service die: what depends on them goes on as soon as they are back."""

import time

import psycopg
import pytest

from tests.support.place import Place, serves
from tests.support.processes import postmaster_in, processes_of
from tests.support.waiting import wait_for


def test_a_killed_proxy_is_started_again(shop: Place) -> None:
    with shop.connect() as connection:
        for process in processes_of(shop.stack, "proxy"):
            process.kill()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    for pooled in (False, True):
        wait_for(lambda pooled=pooled: shop.is_served(pooled=pooled), "the proxy")  # type: ignore[misc]
    assert shop.state() == "active"


def test_sessions_go_on_without_the_metadata_database(shop: Place) -> None:
    with shop.connect() as direct, shop.connect(pooled=True) as pooled:
        postmaster_in(shop.stack.state_dir / "metadata").kill()
        for _ in range(20):
            assert serves(direct)
            assert serves(pooled)
        wait_for(lambda: shop.is_served(), "new connections")
        assert serves(direct)
        assert serves(pooled)
    wait_for(shop.stack.answers, "the service to be well")
    shop.suspend()
    assert shop.query("SELECT 1", pooled=True) == (1,)


def test_a_client_waits_for_a_worker_that_was_killed(shop: Place) -> None:
    shop.suspend()
    for process in processes_of(shop.stack, "worker"):
        process.kill()
    began = time.monotonic()
    assert shop.query("SELECT 1") == (1,)
    assert time.monotonic() - began < 30
    wait_for(shop.stack.answers, "the service to be well")

"""The proxy is restarted under traffic."""

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from tests.support.place import Place, serves
from tests.support.processes import is_alive, proxy_processes
from tests.support.replacing import restart_proxy
from tests.support.traffic import Traffic
from tests.support.waiting import wait_for


def test_a_restart_of_the_proxy_refuses_nobody_and_ends_no_connection(shop: Place) -> None:
    previous = proxy_processes(shop.stack)
    with Traffic([shop]) as traffic:
        wait_for(lambda: all(seen.count for seen in traffic.seen.values()), "the clients")
        restart_proxy(shop.stack)
        counts = {kind: seen.count for kind, seen in traffic.seen.items()}
        wait_for(
            lambda: all(seen.count > counts[kind] for kind, seen in traffic.seen.items()),
            "the clients to continue",
        )
        assert any(map(is_alive, previous))
    assert traffic.errors == []
    wait_for(lambda: not any(map(is_alive, previous)), "the end of the previous processes")
    # The previous processes log although nobody reads their output any more.
    log = (shop.stack.state_dir / "log" / "proxy.log").read_text()
    assert "taken over by another proxy" in log


@pytest.mark.thorough
def test_a_query_of_a_previous_process_can_be_cancelled(shop: Place) -> None:
    with shop.connect() as connection, ThreadPoolExecutor(1) as pool:
        restart_proxy(shop.stack)
        running = pool.submit(connection.execute, "SELECT pg_sleep(60)")
        wait_for(lambda: shop.sleepers() == 1, "the query to run")
        connection.cancel_safe()
        with pytest.raises(psycopg.errors.QueryCanceled):
            running.result(20)


@pytest.mark.thorough
def test_clients_of_a_previous_process_are_parked_and_dropped_as_others(shop: Place) -> None:
    with shop.connect(pooled=True) as pooled, shop.connect() as direct:
        assert serves(direct)
        restart_proxy(shop.stack)
        shop.suspend()
        assert serves(pooled)
        with pytest.raises(psycopg.OperationalError):
            direct.execute("SELECT 1")
        shop.client.patch(shop.endpoint_path(), {"endpoint": {"disabled": True}})
        with pytest.raises(psycopg.OperationalError):
            pooled.execute("SELECT 1")
    shop.client.patch(shop.endpoint_path(), {"endpoint": {"disabled": False}})
    shop.settle()

"""Clients that wait for a start which is cancelled."""

import threading
import time

import psycopg

from tests.controlplane.cancel_retry import cancel, starting, wedged_starts
from tests.support.place import Place


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

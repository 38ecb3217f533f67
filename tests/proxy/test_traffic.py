"""What is sent to clients is counted while they are connected."""

from collections.abc import Mapping
from typing import Any

import pytest

from controlplane.proxy.traffic import Traffic
from tests.proxy.conftest import ENDPOINT, PASSWORDS
from tests.proxy.running_proxy import RunningProxy, plain
from tests.support.waiting import wait_for

ALICE: dict[str, Any] = {"user": "alice", "password": PASSWORDS["alice"]}
KEY = ("ep", "br")


@pytest.mark.parametrize("way", [{}, plain(ENDPOINT)], ids=["tls", "plain"])
def test_what_a_client_gets_is_counted_while_it_stays(
    proxy: RunningProxy, way: dict[str, str]
) -> None:
    taken = proxy.directory.traffic.take
    with proxy.connect(ENDPOINT, **ALICE, **way) as connection:
        taken()
        connection.execute("SELECT repeat('x', 5000000)")
        assert 5_000_000 <= taken()[ENDPOINT, ""] < 5_001_000
        connection.execute("SELECT length(%s)", ["x" * 1_000_000])
        # What it sends is none.
        assert taken()[ENDPOINT, ""] < 1000
        connection.execute("SELECT 1")
    # Its last words count as well, and then the endpoint is forgotten.
    assert taken()[ENDPOINT, ""] > 0
    wait_for(lambda: taken() == {} and not traffic_of(proxy), "the end of its tally")


def traffic_of(proxy: RunningProxy) -> Mapping[Any, Any]:
    return proxy.directory.traffic._tallies


def test_clients_of_one_endpoint_share_a_tally() -> None:
    traffic = Traffic()
    with traffic.counting(*KEY) as one, traffic.counting(*KEY) as other:
        one.bytes += 1
        other.bytes += 2
        assert traffic.take() == {KEY: 3}
        assert traffic.take() == {}

"""Bytes sent to clients are counted while they are connected."""

from collections import Counter
from typing import Any

import pytest

from controlplane.proxy.directory.interface import Traffic
from tests.proxy.conftest import ENDPOINT, PASSWORDS
from tests.proxy.running_proxy import RunningProxy, plain
from tests.support.waiting import wait_for

ALICE: dict[str, Any] = {"user": "alice", "password": PASSWORDS["alice"]}
KEY = ("ep", "br")


class Taken:
    """The bytes that the proxy has counted so far, read in its event loop."""

    def __init__(self, proxy: RunningProxy) -> None:
        self._proxy = proxy
        self._sum: Counter[str] = Counter()

    def bytes(self) -> int:
        async def take() -> None:
            for (endpoint_id, _), amount in self._proxy.directory.traffic.take().items():
                self._sum[endpoint_id] += amount

        self._proxy.call(take())
        return self._sum[ENDPOINT]

    def await_bytes(self, expected: int) -> None:
        """Wait for at least so many bytes, and check that there are not many more."""
        wait_for(lambda: self.bytes() >= expected, f"{expected} bytes")
        assert self.bytes() < expected + 1000


@pytest.mark.parametrize("way", [{}, plain(ENDPOINT)], ids=["tls", "plain"])
def test_bytes_to_a_client_are_counted_while_it_is_connected(
    proxy: RunningProxy, way: dict[str, str]
) -> None:
    taken = Taken(proxy)
    with proxy.connect(ENDPOINT, **ALICE, **way) as connection:
        before = taken.bytes()
        connection.execute("SELECT repeat('x', 5000000)")
        taken.await_bytes(before + 5_000_000)
        # Bytes from the client are not counted.
        connection.execute("SELECT length(%s)", ["x" * 1_000_000])
        connection.execute("SELECT repeat('x', 1000000)")
        taken.await_bytes(before + 6_000_000)


def test_clients_of_one_endpoint_share_a_tally() -> None:
    traffic = Traffic()
    with traffic.counting(*KEY) as one, traffic.counting(*KEY) as other:
        one.bytes += 1
        other.bytes += 2
        assert traffic.take() == {KEY: 3}
        assert traffic.take() == {}
        one.bytes += 4
    # Clients that have disconnected count as well.
    assert traffic.take() == {KEY: 4}
    assert traffic.take() == {}

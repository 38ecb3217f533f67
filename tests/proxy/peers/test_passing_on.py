"""Clients whose endpoint is on another host of the region than the proxy that they connect to."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from controlplane.proxy.wire.tls import TlsIdentity
from tests.proxy.conftest import ENDPOINT, PASSWORDS
from tests.proxy.region import Region, running_region
from tests.proxy.running_proxy import MemoryDirectory, plain
from tests.proxy.wire import RawClient
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow

ALICE: dict[str, Any] = {"user": "alice", "password": PASSWORDS["alice"]}


@pytest.fixture
def region(identity: TlsIdentity, directory: MemoryDirectory) -> Iterator[Region]:
    with running_region(identity, directory) as region:
        yield region


@pytest.mark.parametrize(
    "way",
    [{}, plain(ENDPOINT), {"channel_binding": "require"}, {"min_protocol_version": "3.2"}],
    ids=["tls", "plain", "channel binding", "protocol 3.2"],
)
def test_a_client_reaches_its_endpoint_through_any_proxy(
    region: Region, way: dict[str, str]
) -> None:
    with region.first.connect(ENDPOINT, **ALICE, **way) as connection:
        assert connection.execute("SELECT current_user").fetchone() == ("alice",)
        states = [session.state for session in region.first.proxy.sessions.all()]
        assert states == ["passed_on"]
        (there,) = region.second.proxy.sessions.all()
        assert there.state == "connected"
        assert there.client_address == "127.0.0.1"


def test_a_client_that_names_its_endpoint_in_the_password_is_asked_once(region: Region) -> None:
    given = {"user": "alice", "password": f"endpoint={ENDPOINT};{PASSWORDS['alice']}"}
    host = {"host": "127.0.0.1", "hostaddr": "127.0.0.1"}
    with region.first.connect(ENDPOINT, **given, **host) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.parametrize(
    ("way", "unread"),
    [({}, False), ({}, True), (plain(ENDPOINT), False)],
    ids=["tls", "tls unread", "plain"],
)
def test_large_amounts_of_data_pass_in_both_directions(
    region: Region, way: dict[str, str], unread: bool
) -> None:
    region.first.directory.tells_early = unread
    line = b"x" * 999 + b"\n"
    lines = 10_000
    with region.first.connect(ENDPOINT, **ALICE, **way) as connection:
        connection.execute("CREATE TEMPORARY TABLE lines (line text)")
        with connection.cursor().copy("COPY lines FROM STDIN") as into:
            for _ in range(lines // 100):
                into.write(line * 100)
        with connection.cursor().copy("COPY lines TO STDOUT") as out:
            # A slow reader must not make either proxy hold everything.
            time.sleep(0.2)
            assert sum(len(bytes(part)) for part in out) == lines * len(line)


def test_both_connections_end_with_either_side(region: Region) -> None:
    region.first.connect(ENDPOINT, **ALICE).close()
    wait_for(lambda: not region.first.sessions() and not region.second.sessions(), "both to end")
    with region.first.connect(ENDPOINT, **ALICE) as connection:
        assert region.second.drop(ENDPOINT) == 1
        with pytest.raises(psycopg.errors.AdminShutdown):
            connection.execute("SELECT 1")
    wait_for(lambda: not region.first.sessions() and not region.second.sessions(), "both to end")


def test_a_client_that_leaves_during_its_wake_calls_the_wake_off(
    region: Region, directory: MemoryDirectory
) -> None:
    endpoint = directory.endpoints[ENDPOINT]
    endpoint.asleep = True
    client = RawClient.start_log_in(region.first.port, ENDPOINT, **ALICE)
    wait_for(lambda: endpoint.wakes, "the wake")
    client.socket.close()
    wait_for(lambda: endpoint.cancelled_wakes == 1, "the wake to be cancelled")


def test_a_wake_is_waited_for_across_hosts(region: Region, directory: MemoryDirectory) -> None:
    endpoint = directory.endpoints[ENDPOINT]
    endpoint.asleep = True
    with ThreadPoolExecutor() as pool:
        connecting = pool.submit(region.first.connect, ENDPOINT, **ALICE)
        wait_for(lambda: endpoint.wakes, "the wake")
        (session,) = region.first.proxy.sessions.all()
        # It has authenticated, so it is no pending client of either proxy.
        assert session.admission is not None
        region.second.wake_up(ENDPOINT)
        with connecting.result(20) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)


def test_a_wrong_password_is_refused_by_the_endpoints_host(
    region: Region, directory: MemoryDirectory
) -> None:
    for name in (ENDPOINT, "ep-not-there-000001", "ep-not-there-000002"):
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            region.first.connect(name, user="alice", password="wrong")
    assert (ENDPOINT, "alice", "127.0.0.1") in directory.refusals


def test_a_host_that_has_just_changed_its_certificate_is_found(
    region: Region, directory: MemoryDirectory
) -> None:
    """Each process of the other proxy that is met reads the rows again; here the fourth knows."""
    known = region.second.directory.hosts
    region.second.directory.hosts = {}
    reads = 0

    async def read() -> None:
        nonlocal reads
        reads += 1
        if reads == 3:
            region.second.directory.hosts = known

    directory.read_peers = read  # type: ignore[method-assign]
    with region.first.connect(ENDPOINT, **ALICE) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)

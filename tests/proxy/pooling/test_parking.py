"""Parked clients of a pooler: which limits, rules and drops apply to them, and how they
continue."""

import select
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from controlplane.proxy.authentication.access_rules import parse_rules
from controlplane.proxy.directory.interface import ComputeAddress
from controlplane.proxy.limits.connection_limits import ConnectionLimits
from controlplane.proxy.wire.certificates import IssuingIdentity
from controlplane.proxy.wire.errors import WakeFailed
from tests.proxy.conftest import ENDPOINT, PASSWORDS
from tests.proxy.pooling.test_conversation import TERMINATE, query
from tests.proxy.running_proxy import MemoryDirectory, RunningProxy, plain, running_proxy
from tests.proxy.wire import RawClient
from tests.support.bare_postgres import BarePostgres
from tests.support.waiting import wait_for

Connection = psycopg.Connection[tuple[Any, ...]]
POOLED = f"{ENDPOINT}-pooler"


@pytest.fixture
def directory(directory: MemoryDirectory, postgres: BarePostgres) -> MemoryDirectory:
    """A Postgres in place of the pooler: its sessions end in the same way when the proxy closes
    them."""
    endpoint = directory.endpoints[ENDPOINT]
    endpoint.pooler = ComputeAddress(postgres.socket, pooler_version=(1, 25))
    return directory


@pytest.fixture
def proxy(identity: IssuingIdentity, directory: MemoryDirectory) -> Iterator[RunningProxy]:
    with running_proxy(identity, directory, limits=ConnectionLimits(per_endpoint=2)) as proxy:
        yield proxy


def connect(proxy: RunningProxy, **parameters: Any) -> Connection:
    return proxy.connect(POOLED, user="alice", password=PASSWORDS["alice"], **parameters)


def park(proxy: RunningProxy) -> None:
    async def park() -> None:
        proxy.proxy.park(ENDPOINT, "it is suspended")

    proxy.call(park())


def sessions_in(postgres: BarePostgres) -> int:
    asked = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'alice'"
    return int(postgres.execute(asked)[0][0])


def wait_parked(proxy: RunningProxy, postgres: BarePostgres) -> None:
    park(proxy)
    wait_for(lambda: sessions_in(postgres) == 0, "the sessions to end")


def final_message(client: Connection) -> str | None:
    assert select.select([client.fileno()], [], [], 10)[0], "nothing was said"
    with pytest.raises(psycopg.OperationalError) as ended:
        client.execute("SELECT 1")
    return ended.value.sqlstate


@pytest.mark.parametrize("tls", [True, False])
def test_a_parked_client_has_no_session_and_continues(
    proxy: RunningProxy, directory: MemoryDirectory, postgres: BarePostgres, tls: bool
) -> None:
    given = {} if tls else {**plain(POOLED)}
    with connect(proxy, **given) as client:
        client.execute("SET timezone TO 'Asia/Kathmandu'")
        assert client.execute("SELECT 1", prepare=True).fetchone() == (1,)
        for wakes in (2, 3):
            wait_parked(proxy, postgres)
            assert client.execute("SELECT 1", prepare=True).fetchone() == (1,)
            assert client.execute("SHOW timezone").fetchone() == ("Asia/Kathmandu",)
            assert directory.endpoints[ENDPOINT].wakes == wakes


def test_a_client_in_a_transaction_is_parked_after_it(
    proxy: RunningProxy, postgres: BarePostgres
) -> None:
    with connect(proxy) as client:
        with client.transaction():
            client.execute("SELECT 1")
            park(proxy)
            assert client.execute("SELECT 2").fetchone() == (2,)
            assert sessions_in(postgres) == 1
        wait_for(lambda: sessions_in(postgres) == 0, "the session to end")
        assert client.execute("SELECT 3").fetchone() == (3,)


def test_parked_clients_count_and_are_dropped(proxy: RunningProxy, postgres: BarePostgres) -> None:
    with connect(proxy) as one, connect(proxy) as other:
        wait_parked(proxy, postgres)
        with pytest.raises(psycopg.OperationalError, match="too many clients"):
            connect(proxy)
        assert proxy.drop(ENDPOINT) == 2
        assert (final_message(one), final_message(other)) == ("57P01", "57P01")


def test_new_rules_apply_to_parked_clients(proxy: RunningProxy, postgres: BarePostgres) -> None:
    rules = parse_rules('{"allowed_ips": {"ips": ["10.0.0.0/8"]}}', is_protected=False)
    with connect(proxy) as client:
        wait_parked(proxy, postgres)
        assert proxy.enforce_rules(ENDPOINT, rules) == 1
        assert final_message(client) == "57P01"


def test_changes_made_meanwhile_apply_to_a_client_that_continues(
    proxy: RunningProxy, directory: MemoryDirectory, postgres: BarePostgres
) -> None:
    with connect(proxy) as client:
        wait_parked(proxy, postgres)
        rules = parse_rules('{"allowed_ips": {"ips": ["10.0.0.0/8"]}}', is_protected=False)
        directory.endpoints[ENDPOINT].rules = rules
        with pytest.raises(psycopg.OperationalError, match="not allowed to connect"):
            client.execute("SELECT 1")


def test_a_failed_wake_is_reported_and_ends_the_connection(
    proxy: RunningProxy, directory: MemoryDirectory, postgres: BarePostgres
) -> None:
    with connect(proxy) as client:
        wait_parked(proxy, postgres)
        directory.endpoints[ENDPOINT].failure = WakeFailed("no compute today")
        with pytest.raises(psycopg.OperationalError, match="no compute today"):
            client.execute("SELECT 1")
        assert client.closed


def raw_client(proxy: RunningProxy) -> RawClient:
    client = RawClient.start_log_in(proxy.port, POOLED, user="alice", password=PASSWORDS["alice"])
    while client.read_message()[0] != b"Z":
        pass
    return client


@pytest.mark.parametrize("farewell", [b"", TERMINATE, TERMINATE[:3]])
def test_a_parked_client_that_disconnects_wakes_nothing(
    proxy: RunningProxy, directory: MemoryDirectory, postgres: BarePostgres, farewell: bytes
) -> None:
    client = raw_client(proxy)
    wait_parked(proxy, postgres)
    client.socket.sendall(farewell)
    client.socket.close()
    wait_for(lambda: proxy.sessions() == 0, "the session to end")
    assert directory.endpoints[ENDPOINT].wakes == 1


def test_a_client_within_a_message_is_parked_and_continues(
    proxy: RunningProxy, postgres: BarePostgres
) -> None:
    client = raw_client(proxy)
    asked = query(b"SELECT 'in parts'")
    client.socket.sendall(asked[:8])
    wait_parked(proxy, postgres)
    client.socket.sendall(asked[8:])
    assert client.read_message()[0] == b"T"
    assert b"in parts" in client.read_message()[1]
    client.socket.close()


@pytest.mark.parametrize("length", [b"\0\0\0\0", b"\0\0\0\3", b"\xff\xff\xff\xff"])
def test_an_invalid_length_ends_the_connection(
    proxy: RunningProxy, postgres: BarePostgres, length: bytes
) -> None:
    client = raw_client(proxy)
    client.socket.sendall(b"Q" + length)
    assert b"C08P01\0" in client.read_to_end()


def test_a_statement_whose_table_was_dropped_fails_alone(
    proxy: RunningProxy, postgres: BarePostgres
) -> None:
    postgres.execute("CREATE TABLE passing (a int)")
    postgres.execute("GRANT ALL ON passing TO alice")
    with connect(proxy) as client:
        client.execute("SELECT a FROM passing", prepare=True)
        client.execute("SELECT 1", prepare=True)
        wait_parked(proxy, postgres)
        postgres.execute("DROP TABLE passing")
        assert client.execute("SELECT 1", prepare=True).fetchone() == (1,)
        with pytest.raises(psycopg.Error):
            client.execute("SELECT a FROM passing", prepare=True)
        assert client.execute("SELECT 1").fetchone() == (1,)

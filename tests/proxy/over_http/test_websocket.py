"""The Postgres protocol over WebSocket, with a client of the tests' own. Neon's driver is in
`tests/clients`."""

import struct

import pytest
from websockets.exceptions import ConnectionClosed

from controlplane.proxy.settings import PlainConnections
from controlplane.proxy.wire import messages
from controlplane.proxy.wire.tls import TlsIdentity
from tests.proxy.conftest import ENDPOINT
from tests.proxy.http_client import RawHttp, request
from tests.proxy.running_proxy import MemoryDirectory, RunningProxy, running_proxy
from tests.proxy.websocket_client import (
    UPGRADE,
    Reader,
    frame,
    logged_in,
    opened,
    password,
    query,
    startup,
    values,
)
from tests.support.bare_postgres import BarePostgres
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("tls", [False, True])
def test_all_start_up_messages_may_be_sent_at_once(proxy: RunningProxy, tls: bool) -> None:
    with opened(proxy, tls=tls) as connection:
        # As `pipelineConnect: "password"` does.
        connection.send(startup() + password() + query("SELECT 'first'"))
        reader = Reader(connection)
        assert reader.read() == (b"R", struct.pack("!I", 3))
        assert reader.read() == (b"R", struct.pack("!I", 0))
        reader.until(b"Z")
        assert values(reader.until(b"Z")) == [b"first"]
        connection.send(query("SELECT 2"))
        assert values(reader.until(b"Z")) == [b"2"]
        connection.send(messages.TERMINATE)
        with pytest.raises(ConnectionClosed):
            connection.recv(timeout=10)


@pytest.mark.parametrize(
    ("host", "path", "options"),
    [
        ("localhost", f"/v1?address={ENDPOINT}.localhost:5432", ""),
        ("localhost", "/", f"endpoint={ENDPOINT}"),
        ("127.0.0.1", "/anything/at/all", f"endpoint={ENDPOINT}"),
    ],
)
def test_other_ways_to_name_the_endpoint(
    proxy: RunningProxy, host: str, path: str, options: str
) -> None:
    with opened(proxy, host=host, path=path) as connection:
        logged_in(connection, **({"options": options} if options else {}))


def test_messages_may_be_split_in_any_way(proxy: RunningProxy) -> None:
    with opened(proxy) as connection:
        given = startup() + password() + query("SELECT 'x'")
        # Frames of one message, with pings in between, then messages of one byte.
        connection.send(given[i : i + 3] for i in range(0, 30, 3))
        connection.ping(b"are you there?")
        connection.send(b"")
        for i in range(30, len(given)):
            connection.send(given[i : i + 1])
        reader = Reader(connection)
        reader.until(b"Z")
        assert values(reader.until(b"Z")) == [b"x"]


def test_pings_are_answered_at_any_time(proxy: RunningProxy) -> None:
    with opened(proxy) as connection:
        assert connection.ping().wait(10)
        reader = logged_in(connection)
        assert connection.ping().wait(10)
        connection.send(query("SELECT pg_sleep(1)"))
        assert connection.ping().wait(10)
        reader.until(b"Z")


def test_large_messages_both_ways(proxy: RunningProxy) -> None:
    with opened(proxy, tls=True) as connection:
        reader = logged_in(connection)
        for size in (125, 126, 65_535, 65_536, 20_000_000):
            connection.send(query(f"SELECT length('{'x' * size}')"))
            assert values(reader.until(b"Z")) == [str(size).encode()]
            connection.send(query(f"SELECT repeat('y', {size})"))
            ((value),) = values(reader.until(b"Z"))
            assert len(value) == size


def test_a_client_that_does_not_read_blocks_its_compute(
    proxy: RunningProxy, postgres: BarePostgres
) -> None:
    with RawHttp(proxy) as raw:
        raw.send(
            request(*UPGRADE, first="GET /v2 HTTP/1.1").replace(b"api.", f"{ENDPOINT}.".encode())
        )
        assert raw.answer()[0] == 101
        much = query("SELECT repeat('x', 1000000) FROM generate_series(1, 300)")
        raw.send(frame(startup(application_name="slow") + password() + much))
        state = "SELECT wait_event FROM pg_stat_activity WHERE application_name = 'slow'"
        wait_for(lambda: postgres.execute(state) == [("ClientWrite",)], "the compute to wait")
        for _ in range(100):
            raw.send(frame(b"unheard", opcode=9))
    wait_for(lambda: postgres.backends_of("slow") == 0, "the session to end")


def test_an_invalid_upgrade_request_is_refused(proxy: RunningProxy) -> None:
    for first, without, status in (
        ("GET /v2 HTTP/1.1", "Sec-WebSocket-Version: 13", 426),
        ("GET /v2 HTTP/1.1", UPGRADE[3], 400),
        ("POST /v2 HTTP/1.1", "", 400),
    ):
        with RawHttp(proxy) as raw:
            raw.send(request(*(one for one in UPGRADE if one != without), first=first))
            assert raw.answer()[0] == status
            assert raw.has_ended()


@pytest.mark.parametrize(
    ("sent", "sqlstate"),
    [
        (startup() + password("wrong"), "28P01"),
        (startup(user="nobody") + password("wrong"), "28P01"),
        (startup() + messages.message(b"p", b"no end"), "08P01"),
        (startup() + messages.message(b"p", b"two\0ends\0"), "08P01"),
        (startup() + query("SELECT 1"), "08P01"),
        (startup(database="nowhere") + password(), "3D000"),
        (struct.pack("!II", 8, 0x40000), "0A000"),
        (startup(options="endpoint=ep-other-000001") + password(), "28000"),
    ],
)
def test_refusals_are_postgres_errors(proxy: RunningProxy, sent: bytes, sqlstate: str) -> None:
    with opened(proxy) as connection:
        connection.send(sent)
        *_, (_, error) = Reader(connection).until(b"E")
        assert messages.error_sqlstate(error) == sqlstate
        with pytest.raises(ConnectionClosed):
            connection.recv(timeout=10)


def test_encryption_within_the_websocket_is_declined(proxy: RunningProxy) -> None:
    with opened(proxy) as connection:
        connection.send(struct.pack("!II", 8, 80877103))
        assert connection.recv(timeout=10) == b"N"
        logged_in(connection)


def test_encryption_is_declined_once(proxy: RunningProxy) -> None:
    """An endless run of requests would have the loop for itself."""
    with opened(proxy) as connection:
        connection.send(struct.pack("!II", 8, 80877103) * 2)
        assert connection.recv(timeout=10) == b"N"
        *_, (_, error) = Reader(connection).until(b"E")
        assert messages.error_sqlstate(error) == "08P01"


def test_websockets_without_tls_are_allowed_only_from_some_addresses(
    identity: TlsIdentity, directory: MemoryDirectory
) -> None:
    never = {"plain_connections": PlainConnections.NEVER}
    with running_proxy(identity, directory, **never) as proxy:
        with opened(proxy) as connection:
            connection.send(startup() + password())
            _, error = Reader(connection).read()
            assert b"connection is insecure" in error
        with RawHttp(proxy) as raw:
            raw.post(b'{"query": "SELECT 1"}')
            status, _, error = raw.answer()
            assert (status, error["code"]) == (400, "28000")
            assert "connection is insecure" in error["message"]
        with opened(proxy, tls=True) as connection:
            logged_in(connection)


def test_the_client_of_a_dropped_endpoint_gets_an_error(proxy: RunningProxy) -> None:
    with opened(proxy) as connection:
        reader = logged_in(connection)
        assert proxy.drop(ENDPOINT) == 1
        assert messages.error_sqlstate(reader.read()[1]) == "57P01"
        with pytest.raises(ConnectionClosed):
            connection.recv(timeout=10)


def test_a_client_that_waits_for_its_compute_may_disconnect(
    proxy: RunningProxy, directory: MemoryDirectory
) -> None:
    endpoint = directory.endpoints[ENDPOINT]
    endpoint.asleep = True
    with opened(proxy) as connection:
        connection.send(startup() + password())
        wait_for(lambda: endpoint.wakes == 1, "the wake")
        assert connection.ping().wait(10)
    wait_for(lambda: endpoint.cancelled_wakes == 1, "the wake to be given up")


def test_a_query_is_cancelled_by_its_key(proxy: RunningProxy, postgres: BarePostgres) -> None:
    with opened(proxy) as connection:
        connection.send(startup() + password())
        reader = Reader(connection)
        keys = dict(reader.until(b"Z"))[b"K"]
        connection.send(query("SELECT pg_sleep(600)"))
        wait_for(lambda: postgres.runs("SELECT pg_sleep(600)"), "the query to run")
        with opened(proxy, host="localhost") as canceller:
            pid, secret = struct.unpack("!I", keys[:4])[0], keys[4:]
            canceller.send(messages.cancel_request(pid, secret))
            with pytest.raises(ConnectionClosed):
                canceller.recv(timeout=10)
        error = dict(reader.until(b"Z"))[b"E"]
        assert messages.error_sqlstate(error) == "57014"

"""SQL over HTTP and WebSockets, for endpoints on another host of the region than the proxy that the
client connects to."""

from collections.abc import Iterator

import pytest

from controlplane.proxy.directory.interface import ComputeAddress
from controlplane.proxy.wire.tls import TlsIdentity
from tests.proxy.conftest import ENDPOINT, verifiers_of
from tests.proxy.http_client import SqlClient, connection_string
from tests.proxy.region import Region, running_region
from tests.proxy.running_proxy import Endpoint, MemoryDirectory
from tests.proxy.websocket_client import Reader, opened, password, query, startup, values
from tests.support.bare_postgres import BarePostgres
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow

HERE = "ep-at-home-000001"


@pytest.fixture
def region(
    identity: TlsIdentity, directory: MemoryDirectory, postgres: BarePostgres
) -> Iterator[Region]:
    with running_region(identity, directory) as region:
        region.first.directory.endpoints[HERE] = Endpoint(
            ComputeAddress(postgres.socket), verifiers=verifiers_of(postgres)
        )
        yield region


def test_each_request_goes_to_the_host_of_its_endpoint(region: Region) -> None:
    at_home = connection_string(host=f"{HERE}.localhost")
    with SqlClient(region.first) as sql:
        for _ in range(2):
            assert sql.rows("SELECT $1::int + 1", 41) == [["42"]]
            assert sql.post({"query": "SELECT 1"}, connection=at_home).json()["rows"] == [["1"]]
        # One connection to the other host serves all of its requests, and counts as no client of
        # either host between them.
        (there,) = region.second.proxy.sessions.all()
        assert there.state == "http"
        assert all(one.admission is None for one in region.first.proxy.sessions.all())
    wait_for(lambda: not region.second.sessions(), "the connection between the hosts to end")


def test_a_connection_that_the_other_host_has_closed_is_replaced(region: Region) -> None:
    with SqlClient(region.first) as sql:
        assert sql.rows("SELECT 1") == [["1"]]
        (there,) = region.second.proxy.sessions.all()
        region.second.loop.call_soon_threadsafe(there.abandon)
        wait_for(lambda: not region.second.sessions(), "the connection to end")
        assert sql.rows("SELECT 2") == [["2"]]


def test_large_requests_and_answers_pass(region: Region) -> None:
    text = "x" * 3_000_000
    with SqlClient(region.first) as sql:
        assert sql.rows("SELECT length($1), $1", text) == [["3000000", text]]
        answer = sql.post(
            {"queries": [{"query": "SELECT 1"}, {"query": "SELECT 2"}]},
            batch_isolation_level="Serializable",
        )
        assert answer.headers["Neon-Batch-Isolation-Level"] == "Serializable"
        assert answer.headers["Content-Type"] == "application/json"
        assert len(answer.json()["results"]) == 2


def test_errors_are_those_of_the_endpoints_host(region: Region, directory: MemoryDirectory) -> None:
    with SqlClient(region.first) as sql:
        assert sql.refusal("SELECT 1/0")["code"] == "22012"
        wrong = connection_string(password="wrong")
        assert sql.refusal("SELECT 1", connection=wrong)["code"] == "28P01"
        nowhere = connection_string(host="ep-not-there-000001.localhost")
        assert sql.refusal("SELECT 1", connection=nowhere)["code"] == "28P01"
        assert (ENDPOINT, "alice", "127.0.0.1") in directory.refusals


def test_a_client_that_leaves_cancels_its_query(region: Region, postgres: BarePostgres) -> None:
    sleep = "SELECT pg_sleep(61)"
    with SqlClient(region.first) as sql, pytest.raises(OSError, match="timed out"):
        sql.session.post(
            sql.url,
            json={"query": sleep},
            headers={"Neon-Connection-String": connection_string()},
            timeout=1,
        )
    wait_for(lambda: not postgres.runs(sleep), "the query to be cancelled")


def test_a_host_that_is_away_is_named(region: Region) -> None:
    region.introduce(port=1)
    with SqlClient(region.first) as sql:
        refused = sql.refusal("SELECT 1", status=503)
        assert refused["code"] == "57P03"
        assert 'host "second" cannot be reached' in refused["message"]
        assert refused["neon:retryable"] is True


@pytest.mark.parametrize("tls", [False, True])
def test_a_websocket_reaches_its_endpoint(region: Region, tls: bool) -> None:
    with opened(region.first, tls=tls) as connection:
        connection.send(startup() + password() + query("SELECT 'first'"))
        reader = Reader(connection)
        reader.until(b"Z")
        assert values(reader.until(b"Z")) == [b"first"]
        connection.send(query("SELECT repeat('x', 100000)"))
        assert values(reader.until(b"Z")) == [b"x" * 100_000]
        (session,) = region.first.proxy.sessions.all()
        assert session.state == "passed_on"

"""Clients of the first of two hosts, whose project moves to the second and back."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from controlplane.proxy.authentication.access_rules import parse_rules
from controlplane.proxy.directory.interface import ComputeAddress
from controlplane.proxy.limits.connection_limits import ConnectionLimits
from controlplane.proxy.peers.header import Admitted, Kind, PassedOn, SeenTls
from controlplane.proxy.wire import messages
from controlplane.proxy.wire.errors import ProjectMoved
from controlplane.proxy.wire.tls import TlsIdentity
from tests.proxy.conftest import ENDPOINT, PASSWORDS
from tests.proxy.http_client import SqlClient
from tests.proxy.peers.test_passing_on_limits import answer_to, context_of
from tests.proxy.pooling.test_parking import POOLED, final_message, sessions_in, wait_parked
from tests.proxy.region import FIRST, SECOND, Region, certificate, running_region
from tests.proxy.running_proxy import MemoryDirectory, RunningProxy
from tests.proxy.wire import RawClient
from tests.support.bare_postgres import BarePostgres
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow

ALICE: dict[str, Any] = {"user": "alice", "password": PASSWORDS["alice"]}
SLEEP = "SELECT pg_sleep(61)"
SEEN = SeenTls(f"{ENDPOINT}.localhost", b"")
READY = messages.message(b"Z", b"I")
ONLY_OTHERS = '{"allowed_ips": {"ips": ["10.0.0.0/8"]}}'


@pytest.fixture
def region(
    identity: TlsIdentity, directory: MemoryDirectory, postgres: BarePostgres
) -> Iterator[Region]:
    """The project is on the first host. One Postgres stands for the compute of either."""
    directory.endpoints[ENDPOINT].pooler = ComputeAddress(postgres.socket, pooler_version=(1, 25))
    with running_region(identity, directory) as region:
        move(region, FIRST)
        yield region


def move(region: Region, to: str, *, told: str | None = None) -> None:
    """Move the project; only the proxy of the host `told` is told of it, or both are."""
    for proxy, name in ((region.first, FIRST), (region.second, SECOND)):
        if told in (None, name):
            endpoint = proxy.directory.endpoints[ENDPOINT]
            endpoint.host_id = "" if name == to else to
            endpoint.failure = None if name == to else ProjectMoved()


def served(proxy: RunningProxy) -> list[str]:
    return [session.state for session in proxy.proxy.sessions.all()]


def test_a_parked_client_continues_on_the_other_host_and_back(
    region: Region, postgres: BarePostgres
) -> None:
    with region.first.connect(POOLED, **ALICE) as client:
        client.execute("SET timezone TO 'Asia/Kathmandu'")
        client.execute("SELECT 1", prepare=True)
        for home in (SECOND, FIRST, SECOND):
            wait_parked(region.first, postgres)
            move(region, home)
            assert client.execute("SELECT 1", prepare=True).fetchone() == (1,)
            assert client.execute("SHOW timezone").fetchone() == ("Asia/Kathmandu",)
            assert served(region.first) == ["connected"]
            assert served(region.second) == (["connected"] if home == SECOND else [])
        with client.transaction():
            assert client.execute("SELECT 2").fetchone() == (2,)
        # Its bytes are counted where the compute is.
        assert region.second.directory.traffic.take() != {}


def test_the_other_host_parks_the_client_that_it_serves(
    region: Region, postgres: BarePostgres
) -> None:
    with region.first.connect(POOLED, **ALICE) as client:
        wait_parked(region.first, postgres)
        move(region, SECOND)
        for number in range(3):
            assert client.execute("SELECT %s::int", [number]).fetchone() == (number,)
            wait_parked(region.second, postgres)
            # Nothing of it is left there, whichever of the two noticed it first.
            wait_for(lambda: served(region.second) == [], "the second host to let go")
            wait_for(lambda: served(region.first) == ["parked"], "the client to be parked")
        # The project is back before the first host has noticed that it ever left.
        move(region, FIRST)
        assert client.execute("SELECT 1").fetchone() == (1,)
        assert served(region.second) == []


def test_a_client_is_parked_by_the_other_host_after_its_transaction(
    region: Region, postgres: BarePostgres
) -> None:
    with region.first.connect(POOLED, **ALICE) as client:
        wait_parked(region.first, postgres)
        move(region, SECOND)
        with client.transaction():
            client.execute("SELECT 1")

            async def park() -> None:
                region.second.proxy.park(ENDPOINT, "it moves")

            region.second.call(park())
            assert client.execute("SELECT 2").fetchone() == (2,)
        wait_for(lambda: sessions_in(postgres) == 0, "the session to end")
        assert client.execute("SELECT 3").fetchone() == (3,)


@pytest.mark.parametrize("name", [ENDPOINT, POOLED])
@pytest.mark.parametrize("through", [FIRST, SECOND])
def test_a_client_that_waits_during_a_move_gets_the_other_hosts_compute(
    region: Region, name: str, through: str
) -> None:
    first = region.first.directory.endpoints[ENDPOINT]
    first.asleep = True
    proxy = {FIRST: region.first, SECOND: region.second}[through]
    with ThreadPoolExecutor() as pool:
        connecting = pool.submit(proxy.connect, name, **ALICE)
        wait_for(lambda: first.wakes, "the client to wait")
        move(region, SECOND)
        region.first.wake_up(ENDPOINT)
        with connecting.result(20) as client:
            assert client.execute("SELECT current_user").fetchone() == ("alice",)


def test_an_http_request_that_waits_during_a_move_is_answered(region: Region) -> None:
    first = region.first.directory.endpoints[ENDPOINT]
    first.asleep = True
    with SqlClient(region.first) as sql, ThreadPoolExecutor() as pool:
        asking = pool.submit(sql.rows, "SELECT 6 * 7")
        wait_for(lambda: first.wakes, "the request to wait")
        move(region, SECOND)
        region.first.wake_up(ENDPOINT)
        assert asking.result(20) == [["42"]]
        assert sql.rows("SELECT current_user") == [["alice"]]
    # The session that the request has left open on the other host.
    region.first.close_idle_sessions()


@pytest.mark.parametrize("name", [ENDPOINT, POOLED])
@pytest.mark.parametrize("last", [FIRST, SECOND])
def test_a_client_waits_until_both_hosts_know_of_the_move(
    region: Region, name: str, last: str
) -> None:
    """The host that is told last takes the project to be where it was."""
    move(region, SECOND, told=SECOND if last == FIRST else FIRST)
    if last == FIRST:
        # Its rows are from before the move, and its compute's state from after it.
        region.first.directory.endpoints[ENDPOINT].failure = ProjectMoved()
    else:
        region.second.directory.endpoints[ENDPOINT].failure = ProjectMoved()
    with ThreadPoolExecutor() as pool:
        connecting = pool.submit(region.first.connect, name, **ALICE)
        woken = region.first if last == FIRST else region.second
        wait_for(lambda: woken.directory.endpoints[ENDPOINT].wakes > 1, "the client to try again")
        assert not connecting.done()
        move(region, SECOND)
        with connecting.result(20) as client:
            assert client.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.parametrize("asked", [FIRST, SECOND])
def test_its_cancel_key_stays_good(region: Region, postgres: BarePostgres, asked: str) -> None:
    with region.first.connect(POOLED, **ALICE) as client, ThreadPoolExecutor() as pool:
        wait_parked(region.first, postgres)
        move(region, SECOND)
        sleeping = pool.submit(client.execute, SLEEP)
        wait_for(lambda: postgres.runs(SLEEP), "the query to run")
        pid = client.pgconn.backend_pid
        secret = region.first.secret_of(pid)
        messenger = RawClient({FIRST: region.first, SECOND: region.second}[asked].port)
        messenger.socket.sendall(messages.cancel_request(pid, secret))
        assert messenger.read_to_end() == b""
        with pytest.raises(psycopg.errors.QueryCanceled):
            sleeping.result(20)
        assert client.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rules": parse_rules(ONLY_OTHERS, is_protected=False)}, "not allowed to connect"),
        ({"disabled": True}, "endpoint is disabled"),
    ],
    ids=["rules", "disabled"],
)
def test_the_other_hosts_rules_apply(
    region: Region, postgres: BarePostgres, change: dict[str, Any], words: str
) -> None:
    with region.first.connect(POOLED, **ALICE) as client:
        wait_parked(region.first, postgres)
        move(region, SECOND)
        at_second = region.second.directory.endpoints
        at_second[ENDPOINT] = replace(at_second[ENDPOINT], **change)
        with pytest.raises(psycopg.OperationalError, match=words):
            client.execute("SELECT 1")
        assert client.closed


def test_the_other_hosts_limits_apply(
    identity: TlsIdentity, directory: MemoryDirectory, postgres: BarePostgres
) -> None:
    directory.endpoints[ENDPOINT].pooler = ComputeAddress(postgres.socket, pooler_version=(1, 25))
    one = {"limits": ConnectionLimits(per_endpoint=1)}
    with running_region(identity, directory, second=one) as region:
        move(region, FIRST)
        with (
            region.first.connect(POOLED, **ALICE) as client,
            region.first.connect(POOLED, **ALICE) as other,
        ):
            wait_parked(region.first, postgres)
            move(region, SECOND)
            assert client.execute("SELECT 1").fetchone() == (1,)
            with pytest.raises(psycopg.OperationalError, match="too many clients"):
                other.execute("SELECT 1")


@pytest.mark.parametrize("by", [FIRST, SECOND])
def test_either_host_ends_the_client(region: Region, postgres: BarePostgres, by: str) -> None:
    with region.first.connect(POOLED, **ALICE) as client:
        wait_parked(region.first, postgres)
        move(region, SECOND)
        client.execute("SELECT 1")
        assert {FIRST: region.first, SECOND: region.second}[by].drop(ENDPOINT) == 1
        assert final_message(client) == "57P01"


def test_only_a_host_of_the_region_may_say_who_has_authenticated(region: Region) -> None:
    move(region, SECOND)
    admitted = Admitted(ENDPOINT, True, "")
    header = PassedOn(kind=Kind.POSTGRES, client_address="127.0.0.1", tls=SEEN, admitted=admitted)
    startup = messages.startup_message({b"user": b"alice", b"database": b"postgres"})
    for own, is_believed in ((certificate(), False), (region.certificates[0], True)):
        context = context_of(own, region)
        answer = answer_to(region, context, header.encoded() + startup, waits_for=READY)
        assert (READY in answer) == is_believed

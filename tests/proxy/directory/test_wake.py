"""A client of an idle endpoint waits for its compute, and gets the reason if there is none."""

import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

from controlplane.proxy.directory.interface import ComputeAddress
from controlplane.proxy.wire.errors import DisabledEndpointRefused, WakeFailed
from controlplane.proxy.wire.tls import TlsIdentity
from tests.proxy.conftest import ENDPOINT, PASSWORDS
from tests.proxy.running_proxy import Endpoint, MemoryDirectory, RunningProxy, plain, running_proxy
from tests.proxy.wire import RawClient
from tests.support.bare_postgres import BarePostgres
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow

ALICE: dict[str, Any] = {"user": "alice", "password": PASSWORDS["alice"]}


@pytest.fixture
def endpoint(directory: MemoryDirectory) -> Endpoint:
    return directory.endpoints[ENDPOINT]


@pytest.mark.parametrize("way", [{}, plain(ENDPOINT)], ids=["tls", "plain"])
def test_a_client_waits_until_the_compute_answers(
    proxy: RunningProxy, endpoint: Endpoint, way: dict[str, str]
) -> None:
    endpoint.asleep = True
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(proxy.connect, ENDPOINT, **ALICE, **way)
        wait_for(lambda: endpoint.wakes == 1, "the wake")
        assert not waiting.done()
        proxy.wake_up(ENDPOINT)
        with waiting.result(20) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)


def test_one_wake_serves_all_waiting_clients(proxy: RunningProxy, endpoint: Endpoint) -> None:
    endpoint.asleep = True
    with ThreadPoolExecutor(30) as pool:
        waiting = [pool.submit(proxy.connect, ENDPOINT, **ALICE) for _ in range(30)]
        wait_for(lambda: len(proxy.proxy.sessions.of_endpoint(ENDPOINT)) == 30, "30 sessions")
        proxy.wake_up(ENDPOINT)
        for connection in waiting:
            connection.result(20).close()
    assert endpoint.wakes == 1


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (WakeFailed("the disk is full"), "Control plane request failed: the disk is full"),
        (DisabledEndpointRefused(), "Control plane request failed: endpoint is disabled"),
        (RuntimeError("a fault of ours"), "internal error"),
    ],
)
def test_the_client_gets_the_reason_why_there_is_no_compute(
    proxy: RunningProxy, endpoint: Endpoint, failure: Exception, words: str
) -> None:
    endpoint.failure = failure
    with pytest.raises(psycopg.OperationalError, match=words):
        proxy.connect(ENDPOINT, **ALICE)


def test_the_wait_is_bounded(identity: TlsIdentity, directory: MemoryDirectory) -> None:
    directory.endpoints[ENDPOINT].asleep = True
    with (
        running_proxy(identity, directory, wake_timeout=0.2) as proxy,
        pytest.raises(psycopg.OperationalError, match=r"did not start within 0\.2 seconds"),
    ):
        proxy.connect(ENDPOINT, **ALICE)
    assert directory.endpoints[ENDPOINT].cancelled_wakes == 1


def test_a_client_waits_longer_while_its_branch_is_made(
    identity: TlsIdentity, directory: MemoryDirectory
) -> None:
    endpoint = directory.endpoints[ENDPOINT]
    endpoint.asleep, endpoint.waits_for = True, ("its branch br-a is not ready yet", True)
    with (
        running_proxy(identity, directory, wake_timeout=0.1) as proxy,
        ThreadPoolExecutor() as threads,
    ):
        connected = threads.submit(proxy.connect, ENDPOINT, **ALICE)
        wait_for(lambda: endpoint.wakes > 3, "the client to wait longer")
        endpoint.asleep = False
        proxy.loop.call_soon_threadsafe(endpoint.woken.set)
        with connected.result() as client:
            assert client.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.parametrize("is_made", [False, True])
def test_a_client_that_has_waited_too_long_is_told_for_what(
    identity: TlsIdentity, directory: MemoryDirectory, is_made: bool
) -> None:
    endpoint = directory.endpoints[ENDPOINT]
    endpoint.asleep, endpoint.waits_for = True, ("its branch br-a is not ready yet", is_made)
    with (
        running_proxy(identity, directory, wake_timeout=0.1, branch_timeout=0.3) as proxy,
        pytest.raises(psycopg.OperationalError, match="br-a is not ready yet; try again"),
    ):
        proxy.connect(ENDPOINT, **ALICE)
    assert (endpoint.wakes > 1) == is_made


@pytest.mark.parametrize("tls", [False, True])
def test_a_client_that_vanishes_while_it_waits_is_forgotten(
    proxy: RunningProxy, endpoint: Endpoint, tls: bool
) -> None:
    endpoint.asleep = True
    parameters = proxy.parameters(ENDPOINT, **ALICE, **({} if tls else plain(ENDPOINT)))
    gone = psycopg.pq.PGconn.connect_start(psycopg.conninfo.make_conninfo(**parameters).encode())

    def poll() -> bool:
        gone.connect_poll()
        return endpoint.wakes == 1

    wait_for(poll, "the client to wake its endpoint")
    gone.finish()
    wait_for(lambda: proxy.sessions() == 0, "the sessions to end")
    assert endpoint.cancelled_wakes == 1


def test_what_a_client_sends_while_it_waits_is_not_lost(
    proxy: RunningProxy, endpoint: Endpoint
) -> None:
    endpoint.asleep = True
    client = RawClient.start_log_in(proxy.port, ENDPOINT, user="alice", password=PASSWORDS["alice"])
    client.send(b"Q", b"SELECT 'early'\0")
    client.send(b"X", b"")
    wait_for(lambda: endpoint.wakes == 1, "the wake")
    proxy.wake_up(ENDPOINT)
    assert b"early" in client.read_to_end()


def test_a_compute_that_died_meanwhile_is_woken_again(
    identity: TlsIdentity, postgres: BarePostgres, directory: MemoryDirectory
) -> None:
    """The directory is told which run did not answer, and then returns another."""
    dead = ComputeAddress(Path("/nowhere/.s.PGSQL.5432"), run="1")
    alive = ComputeAddress(postgres.socket, run="2")
    endpoint = directory.endpoints[ENDPOINT]

    class Learning(MemoryDirectory):
        async def wake(
            self, endpoint_id: str, *, pooled: bool, refused: ComputeAddress | None = None
        ) -> ComputeAddress:
            endpoint.address = alive if refused == dead else dead
            return await super().wake(endpoint_id, pooled=pooled, refused=refused)

    learning = Learning()
    learning.endpoints = directory.endpoints
    with running_proxy(identity, learning) as proxy:
        proxy.connect(ENDPOINT, **ALICE).close()
    assert endpoint.refused == [dead]


def test_a_compute_that_never_answers_is_reported(
    identity: TlsIdentity, directory: MemoryDirectory
) -> None:
    directory.endpoints[ENDPOINT].address = ComputeAddress(Path("/nowhere/.s.PGSQL.5432"))
    with (
        running_proxy(identity, directory, wake_timeout=0.3) as proxy,
        pytest.raises(psycopg.OperationalError, match="Couldn't connect to compute node"),
    ):
        proxy.connect(ENDPOINT, **ALICE)


def test_a_client_that_meets_a_stopping_compute_is_served_by_the_next(
    proxy: RunningProxy, endpoint: Endpoint, mortal_postgres: BarePostgres
) -> None:
    """A smart shutdown waits for its clients and refuses new ones."""
    mortal_postgres.start()
    mortal_postgres.execute("CREATE ROLE alice LOGIN")
    endpoint.address = ComputeAddress(mortal_postgres.socket)
    holding = mortal_postgres.connect()
    assert not mortal_postgres.is_stopping()
    stopping = threading.Thread(target=mortal_postgres.stop, args=[signal.SIGTERM])
    stopping.start()
    wait_for(mortal_postgres.is_stopping, "Postgres to be stopping")
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(proxy.connect, ENDPOINT, **ALICE)
        wait_for(lambda: endpoint.wakes > 2, "more wakes")
        assert not waiting.done()
        holding.close()
        stopping.join()
        mortal_postgres.start()
        with waiting.result(20) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)


def test_the_host_name_selects_the_pooler(
    proxy: RunningProxy, endpoint: Endpoint, postgres: BarePostgres
) -> None:
    endpoint.address, endpoint.pooler = (
        ComputeAddress(Path("/nowhere/.s.PGSQL.5432")),
        ComputeAddress(postgres.socket),
    )
    proxy.connect(f"{ENDPOINT}-pooler", **ALICE).close()

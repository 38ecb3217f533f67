"""How connections end: cancelled queries, dropped endpoints, dead computes, vanished clients."""

import collections
import os
import signal
import socket
import struct
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import psycopg
import pytest

from controlplane.proxy.directory.interface import ComputeAddress
from controlplane.proxy.wire import messages
from controlplane.proxy.wire.tls import TlsIdentity
from tests.proxy.conftest import ENDPOINT, PASSWORDS
from tests.proxy.running_proxy import MemoryDirectory, RunningProxy, plain, running_proxy
from tests.proxy.wire import RawClient
from tests.support.bare_postgres import BarePostgres
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow

ALICE: dict[str, Any] = {"user": "alice", "password": PASSWORDS["alice"]}
BOB: dict[str, Any] = {"user": "bob", "password": PASSWORDS["bob"]}
SLEEP = "SELECT pg_sleep(60)"
LONG = "COPY (SELECT repeat('x', 1000) FROM generate_series(1, 100000)) TO STDOUT"
TERMINATE = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'alice'"


@pytest.mark.parametrize(
    "way",
    [{}, plain(ENDPOINT), {"min_protocol_version": "3.2", "max_protocol_version": "3.2"}],
    ids=["tls", "plain", "long key"],
)
def test_a_cancel_request_reaches_the_compute(
    proxy: RunningProxy, postgres: BarePostgres, way: dict[str, str]
) -> None:
    with proxy.connect(ENDPOINT, **ALICE, **way) as connection, ThreadPoolExecutor() as pool:
        sleeping = pool.submit(connection.execute, SLEEP)
        wait_for(lambda: postgres.runs(SLEEP), "the query to run")
        connection.cancel_safe()
        with pytest.raises(psycopg.errors.QueryCanceled):
            sleeping.result(20)
        assert connection.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.parametrize("sslmode", ["disable", "require"])
def test_an_interrupted_psql_cancels_its_query(
    proxy: RunningProxy, postgres: BarePostgres, sslmode: str
) -> None:
    psql = subprocess.Popen(
        [
            "psql",
            f"host=127.0.0.1 port={proxy.port} user=alice dbname=postgres sslmode={sslmode}"
            f" options=endpoint={ENDPOINT}",
            *("-c", SLEEP),
        ],
        env={**os.environ, "PGPASSWORD": PASSWORDS["alice"]},
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for(lambda: postgres.runs(SLEEP), "the query to run")
    psql.send_signal(signal.SIGINT)
    _, words = psql.communicate(timeout=20)
    assert "canceling statement due to user request" in words


@pytest.mark.parametrize("pid_offset", [0, 1])
def test_a_cancel_request_with_another_key_is_ignored(
    proxy: RunningProxy, postgres: BarePostgres, pid_offset: int
) -> None:
    with proxy.connect(ENDPOINT, **ALICE) as connection, ThreadPoolExecutor() as pool:
        sleeping = pool.submit(connection.execute, SLEEP)
        wait_for(lambda: postgres.runs(SLEEP), "the query to run")
        guesser = RawClient(proxy.port)
        pid = connection.pgconn.backend_pid + pid_offset
        guesser.socket.sendall(messages.cancel_request(pid, b"\0\0\0\0"))
        assert guesser.read_to_end() == b""
        assert postgres.runs(SLEEP)
        connection.cancel_safe()
        with pytest.raises(psycopg.errors.QueryCanceled):
            sleeping.result(20)


def test_dropping_an_endpoint_ends_only_its_connections(
    proxy: RunningProxy, postgres: BarePostgres
) -> None:
    other = "ep-other-lake-000002"
    proxy.directory.endpoints[other] = proxy.directory.endpoints[ENDPOINT]
    with (
        proxy.connect(other, **BOB) as unharmed,
        proxy.connect(ENDPOINT, **ALICE) as idle,
        proxy.connect(ENDPOINT, **ALICE, **plain(ENDPOINT)) as busy,
        ThreadPoolExecutor() as pool,
    ):
        sleeping = pool.submit(busy.execute, SLEEP)
        wait_for(lambda: postgres.runs(SLEEP), "the query to run")
        assert proxy.drop(ENDPOINT) == 2
        with pytest.raises(psycopg.errors.AdminShutdown, match="command: the endpoint was deleted"):
            sleeping.result(20)
        with pytest.raises(psycopg.errors.AdminShutdown, match="command: the endpoint was deleted"):
            idle.execute("SELECT 1")
        assert unharmed.execute("SELECT 1").fetchone() == (1,)
    # The compute of a real endpoint stops now; this Postgres must end the sleeping query.
    postgres.execute(TERMINATE)


def test_a_client_learns_why_its_compute_stops(proxy: RunningProxy, postgres: BarePostgres) -> None:
    async def expect(because: str) -> None:
        proxy.proxy.park(ENDPOINT, because)

    with (
        proxy.connect(ENDPOINT, **ALICE) as idle,
        proxy.connect(ENDPOINT, **ALICE, **plain(ENDPOINT)) as busy,
        ThreadPoolExecutor() as pool,
    ):
        idle.execute("SELECT 1")
        sleeping = pool.submit(busy.execute, SLEEP)
        wait_for(lambda: postgres.runs(SLEEP), "the query to run")
        proxy.call(expect("it is suspended"))
        # The compute's other errors are its own.
        with pytest.raises(psycopg.errors.DivisionByZero):
            idle.execute("SELECT 1/0")
        postgres.execute(TERMINATE)
        with pytest.raises(psycopg.errors.AdminShutdown, match="command: it is suspended"):
            sleeping.result(20)
        with pytest.raises(psycopg.errors.AdminShutdown, match="command: it is suspended"):
            idle.execute("SELECT 1")
    with proxy.connect(ENDPOINT, **ALICE) as spared:
        spared.execute("SELECT 1")
        proxy.call(expect("it is suspended"))
        # The stop is called off, so the next end has another reason.
        proxy.call(expect(""))
        postgres.execute(TERMINATE)
        with pytest.raises(psycopg.errors.AdminShutdown) as ended:
            spared.execute("SELECT 1")
        assert "suspended" not in str(ended.value)


def test_dropping_an_endpoint_never_interrupts_a_message(
    proxy: RunningProxy, postgres: BarePostgres
) -> None:
    """A client that reads a long result sees the connection end, but no invalid message."""
    with (
        proxy.connect(ENDPOINT, **ALICE) as connection,
        connection.cursor().copy(LONG) as copy,
    ):
        copy.read()
        proxy.drop(ENDPOINT)
        with pytest.raises(psycopg.OperationalError, match=r"closed .*unexpectedly"):
            collections.deque(copy, maxlen=0)


def test_dropping_an_endpoint_ends_waiting_clients(proxy: RunningProxy) -> None:
    endpoint = proxy.directory.endpoints[ENDPOINT]
    endpoint.asleep = True
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(proxy.connect, ENDPOINT, **ALICE)
        wait_for(lambda: endpoint.wakes == 1, "the wake")
        proxy.drop(ENDPOINT)
        with pytest.raises(psycopg.OperationalError, match="administrator command"):
            waiting.result(20)


def test_clients_get_an_error_when_the_proxy_stops(
    identity: TlsIdentity, directory: MemoryDirectory
) -> None:
    with running_proxy(identity, directory) as proxy:
        connection = proxy.connect(ENDPOINT, **ALICE)
        proxy.call(proxy.proxy.stop())
        with pytest.raises(psycopg.errors.AdminShutdown):
            connection.execute("SELECT 1")


def test_a_proxy_that_drains_serves_its_clients_until_they_leave(
    identity: TlsIdentity, directory: MemoryDirectory
) -> None:
    with running_proxy(identity, directory) as proxy:
        with proxy.connect(ENDPOINT, **ALICE) as connection:
            draining = proxy.drain()
            with pytest.raises(psycopg.OperationalError, match="refused"):
                proxy.connect(ENDPOINT, **ALICE)
            assert connection.execute("SELECT 1").fetchone() == (1,)
            assert not draining.done()
        draining.result(10)


def test_a_client_that_stays_too_long_at_a_proxy_that_drains_is_disconnected(
    identity: TlsIdentity, directory: MemoryDirectory
) -> None:
    with running_proxy(identity, directory, drain_timeout=0.5) as proxy:
        connection = proxy.connect(ENDPOINT, **ALICE)
        proxy.drain().result(10)
        with pytest.raises(psycopg.errors.AdminShutdown):
            connection.execute("SELECT 1")


def test_a_stopping_proxy_does_not_wait_for_a_handshake(
    identity: TlsIdentity, directory: MemoryDirectory
) -> None:
    with running_proxy(identity, directory) as proxy:
        client = RawClient(proxy.port)
        client.socket.sendall(struct.pack("!II", 8, 80877103))
        assert client.read(1) == b"S"
        before = time.process_time()
        proxy.call(proxy.proxy.stop())
        assert time.process_time() - before < 1.0
        client.socket.close()


def test_the_error_of_a_fast_shutdown_is_passed_on(
    proxy: RunningProxy, mortal_postgres: BarePostgres
) -> None:
    mortal_postgres.start()
    mortal_postgres.execute("CREATE ROLE alice LOGIN")
    proxy.directory.endpoints[ENDPOINT].address = ComputeAddress(mortal_postgres.socket)
    with proxy.connect(ENDPOINT, **ALICE) as connection:
        # A client that has sent no query yet is passed to the next compute.
        connection.execute("SELECT 1")
        mortal_postgres.stop(signal.SIGINT)
        with pytest.raises(psycopg.errors.AdminShutdown):
            connection.execute("SELECT 1")


def test_the_death_of_a_compute_affects_no_other(
    proxy: RunningProxy, mortal_postgres: BarePostgres
) -> None:
    mortal_postgres.start()
    mortal_postgres.execute("CREATE ROLE alice LOGIN")
    dying = "ep-dying-swan-000003"
    proxy.directory.endpoints[dying] = type(proxy.directory.endpoints[ENDPOINT])(
        ComputeAddress(mortal_postgres.socket),
        verifiers=proxy.directory.endpoints[ENDPOINT].verifiers,
    )
    with proxy.connect(ENDPOINT, **BOB) as unharmed:
        doomed = [proxy.connect(dying, **ALICE) for _ in range(10)]
        for connection in doomed:
            connection.execute("SELECT 1")
        mortal_postgres.stop(signal.SIGQUIT)
        for connection in doomed:
            with pytest.raises(psycopg.OperationalError):
                connection.execute("SELECT 1")
            connection.close()
        wait_for(lambda: proxy.sessions() == 1, "the session")
        assert unharmed.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.parametrize("way", [{}, plain(ENDPOINT)], ids=["tls", "plain"])
@pytest.mark.parametrize("reset", [False, True])
def test_a_client_that_vanishes_leaves_no_backend(
    proxy: RunningProxy, postgres: BarePostgres, way: dict[str, str], reset: bool
) -> None:
    connection = proxy.connect(ENDPOINT, **ALICE, **way, application_name="vanishing")
    wait_for(lambda: postgres.backends_of("vanishing") == 1, "the backend")
    descriptor = connection.pgconn.socket
    if reset:
        with socket.socket(fileno=socket.dup(descriptor)) as raw:
            linger = (1).to_bytes(4, "little") + (0).to_bytes(4, "little")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    # As when the kernel closes a killed client's socket: no Terminate and no close_notify.
    null = socket.socket()
    try:
        os.dup2(null.fileno(), descriptor)
    finally:
        null.close()
    wait_for(lambda: postgres.backends_of("vanishing") == 0, "the backend to end")
    connection.close()


def test_a_client_that_stops_reading_blocks_only_its_backend(
    proxy: RunningProxy, postgres: BarePostgres
) -> None:
    """Unread data stays in the compute's socket, not in the proxy."""
    lazy = RawClient.start_log_in(proxy.port, ENDPOINT, user="alice", password=PASSWORDS["alice"])
    lazy.send(b"Q", b"SELECT repeat('x', 1000000) FROM generate_series(1, 200)\0")
    blocked = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE usename = 'alice' AND wait_event = 'ClientWrite'"
    )
    wait_for(lambda: postgres.execute(blocked) == [(1,)], "the backend to be blocked")
    before = resident_bytes()
    began = time.monotonic()
    with proxy.connect(ENDPOINT, **BOB) as quick:
        assert quick.execute("SELECT 1").fetchone() == (1,)
    assert time.monotonic() - began < 2
    assert resident_bytes() - before < 50_000_000
    lazy.socket.close()


def resident_bytes() -> int:
    size: int = psutil.Process().memory_info().rss
    return size

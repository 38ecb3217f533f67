"""Traffic through the proxy: cancel requests, large data, many clients, and clients that
misbehave."""

import asyncio
import contextlib
import hashlib
import os
import socket
import struct
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from psycopg import errors

from tests.support.place import Place, environment_of
from tests.support.processes import descriptors, processes_of
from tests.support.waiting import wait_for

LINE = 1 << 20
LINES = 100
CROWD = 500

tls_and_plain = pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
direct_and_pooled = pytest.mark.parametrize("pooled", [False, True], ids=["direct", "pooled"])


@pytest.mark.thorough
@direct_and_pooled
@tls_and_plain
@pytest.mark.parametrize("way", ["cancel_safe", "cancel"])
def test_a_cancel_request_ends_only_its_own_query(
    shop: Place, tls: bool, pooled: bool, way: str
) -> None:
    with (
        shop.connect(tls=tls, pooled=pooled) as patient,
        shop.connect(tls=tls, pooled=pooled) as hasty,
        ThreadPoolExecutor(2) as threads,
    ):
        staying = threads.submit(patient.execute, "SELECT pg_sleep(1)")
        leaving = threads.submit(hasty.execute, "SELECT pg_sleep(60)")
        wait_for(lambda: sleepers(shop) == 2, "both to run")
        getattr(hasty, way)()
        with pytest.raises(errors.QueryCanceled):
            leaving.result(10)
        assert staying.result(10).fetchone() == ("",)
        assert hasty.execute("SELECT 1").fetchone() == (1,)


def sleepers(place: Place) -> int:
    with place.stack.compute(place.endpoint_id) as platform:
        row = platform.execute(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE state = 'active' AND query ~ '^SELECT pg_sleep'"
        ).fetchone()
        return int(row[0]) if row else 0


def test_ctrl_c_in_psql_cancels(shop: Place) -> None:
    psql = subprocess.Popen(
        ["psql", "-Xqc", "SELECT pg_sleep(60)"],
        env={**os.environ, **environment_of(shop.parameters())},
        stderr=subprocess.PIPE,
    )
    wait_for(lambda: sleepers(shop) == 1, "the query to run")
    psql.send_signal(2)
    assert b"canceling statement due to user request" in psql.communicate(timeout=10)[1]


@pytest.fixture(scope="module")
def freight() -> list[bytes]:
    """Return 100 MB in lines that hardly compress."""
    return [os.urandom(LINE // 2).hex().encode()[:-1] + b"\n" for _ in range(LINES)]


@pytest.mark.thorough
@pytest.mark.parametrize(("tls", "pooled"), [(True, False), (False, True)])
def test_a_copy_of_100_megabytes_is_unchanged_in_both_directions(
    shop: Place, freight: list[bytes], tls: bool, pooled: bool
) -> None:
    sent, received = hashlib.sha256(), hashlib.sha256()
    with shop.connect(tls=tls, pooled=pooled) as connection, connection.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS freight")
        cursor.execute("CREATE UNLOGGED TABLE freight (line text STORAGE EXTERNAL)")
        with cursor.copy("COPY freight FROM STDIN") as copy:
            for line in freight:
                copy.write(line)
                sent.update(line)
        with cursor.copy("COPY freight TO STDOUT") as copy:
            for data in copy:
                received.update(data)
        cursor.execute("DROP TABLE freight")
    assert received.digest() == sent.digest()


@pytest.mark.thorough
def test_five_hundred_connections_at_once_are_served(place: Place) -> None:
    place.change(autoscaling_limit_max_cu=2)
    place.suspend()
    before = len(place.endpoint_operations("start_compute"))
    parameters = place.parameters(tls=False, connect_timeout=60)

    async def come(everybody: asyncio.Barrier) -> Any:
        async with await psycopg.AsyncConnection.connect(**parameters) as connection:
            await everybody.wait()
            return await (await connection.execute("SELECT 1")).fetchone()

    async def come_all() -> list[Any]:
        everybody = asyncio.Barrier(CROWD)
        return await asyncio.gather(*[come(everybody) for _ in range(CROWD)])

    assert asyncio.run(come_all()) == [(1,)] * CROWD
    assert len(place.endpoint_operations("start_compute")) == before + 1


@contextlib.contextmanager
def nothing_left_behind(place: Place) -> Iterator[None]:
    """Check that afterwards the proxy and the compute hold no more than before."""
    # Start anew, without sessions that the pooler keeps for later clients.
    place.suspend()
    assert place.query("SELECT 1") == (1,)
    stack = place.stack
    wait_for(lambda: place.backends() == 0, "a quiet compute")
    before, processes = descriptors(stack), len(processes_of(stack, "proxy"))
    yield
    wait_for(lambda: place.backends() == 0, "all backends to end")
    wait_for(lambda: descriptors(stack) <= before, "all descriptors to be closed")
    assert len(processes_of(stack, "proxy")) == processes
    assert place.query("SELECT 1") == (1,)


def raw(place: Place, data: bytes = b"") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", place.stack.proxy_port), timeout=10)
    connection.sendall(data)
    return connection


@pytest.mark.thorough
def test_a_client_that_vanishes_leaves_nothing_behind(shop: Place) -> None:
    with nothing_left_behind(shop):
        for tls in (False, True):
            for _ in range(5):
                connection = shop.connect(tls=tls)
                connection.execute("SELECT 1")
                reset(connection.fileno())
                connection.close()


def reset(descriptor: int) -> None:
    """Reset a connection without closing it properly; data sent to it afterwards is lost."""
    with socket.socket(fileno=os.dup(descriptor)) as twin, open(os.devnull, "r+b") as nowhere:
        twin.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        os.dup2(nowhere.fileno(), descriptor)


@pytest.mark.thorough
def test_a_client_that_vanishes_in_the_middle_of_a_query_ends_it(shop: Place) -> None:
    with nothing_left_behind(shop):
        psql = subprocess.Popen(
            ["psql", "-Xqc", "COPY (SELECT generate_series(1, 1000000000)) TO STDOUT"],
            env={**os.environ, **environment_of(shop.parameters())},
            stdout=subprocess.PIPE,
        )
        assert psql.stdout is not None
        psql.stdout.read(100)
        psql.kill()
        psql.stdout.close()
        psql.wait()


@pytest.mark.thorough
def test_silent_and_invalid_clients_leave_nothing_behind(shop: Place) -> None:
    def startup(*fields: bytes, version: int = 196608) -> bytes:
        body = struct.pack("!I", version) + b"\0".join(fields) + b"\0\0"
        return struct.pack("!I", len(body) + 4) + body

    option = f"endpoint={shop.endpoint_id}".encode()
    user = shop.role.encode()
    with nothing_left_behind(shop), contextlib.ExitStack() as opened:
        silent = [opened.enter_context(raw(shop)) for _ in range(20)]
        for data in (
            os.urandom(64),
            b"GET / HTTP/1.1\r\n\r\n",
            b"\x16\x03\x01" + os.urandom(200),
            struct.pack("!I", 1 << 30),
            struct.pack("!II", 8, 80877103) + b"no handshake at all",
            startup(b"user", user, b"options", option, version=131072),
            startup(b"user", user, b"options", option, version=262144),
            startup(b"user", user, b"options", option) + os.urandom(300),
            startup(b"user", user, b"options", b"endpoint=../../etc"),
            startup(b"user", b"\xff\xfe", b"options", option),
        ):
            # The proxy may close the connection at any point.
            with raw(shop, data) as connection, contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(4096):
                    pass
        # Meanwhile, all other clients are served.
        assert shop.query("SELECT 1") == (1,)
        assert len(silent) == 20

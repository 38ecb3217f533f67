"""A client whose compute ends before its first answer continues with the next compute, if the first
cannot have executed anything for it."""

import asyncio
import contextlib
import fcntl
import os
import socket
import stat
import sys
import termios
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from controlplane.proxy.directory.interface import ComputeAddress, Tally
from controlplane.proxy.relaying.compute import ComputeConnection
from controlplane.proxy.relaying.direct import FirstExchange
from controlplane.proxy.wire import messages
from controlplane.proxy.wire.channel import Channel
from controlplane.proxy.wire.readiness import Readiness
from controlplane.proxy.wire.startup import CancelKey
from tests.proxy.conftest import ENDPOINT, PASSWORDS
from tests.proxy.running_proxy import RunningProxy, plain
from tests.support.bare_postgres import BarePostgres
from tests.support.waiting import wait_for

ALICE: dict[str, Any] = {"user": "alice", "password": PASSWORDS["alice"]}
WAYS = pytest.mark.parametrize("way", [{}, plain(ENDPOINT)], ids=["tls", "plain"])


def backends(postgres: BarePostgres) -> list[int]:
    found = postgres.execute("SELECT pid FROM pg_stat_activity WHERE usename = 'alice'")
    return [pid for (pid,) in found]


def unread(postgres: BarePostgres) -> int:
    """Return the bytes that the proxy, which runs in this process, has sent there and no process
    has read."""
    found = 0
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):
            if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                continue
            with socket.socket(fileno=os.dup(descriptor)) as line:
                if line.family == socket.AF_UNIX and line.getpeername() == str(postgres.socket):
                    answer = fcntl.ioctl(line, termios.TIOCOUTQ, bytes(4))
                    found += int.from_bytes(answer, sys.byteorder)
    return found


def end(postgres: BarePostgres, pid: int) -> None:
    postgres.execute(f"SELECT pg_terminate_backend({pid})")


def connect(proxy: RunningProxy, way: dict[str, str]) -> "psycopg.Connection[Any]":
    return proxy.connect(ENDPOINT, **ALICE, **way)


@WAYS
def test_a_client_without_a_query_is_served_at_its_first_query(
    proxy: RunningProxy, postgres: BarePostgres, way: dict[str, str]
) -> None:
    with connect(proxy, way) as connection:
        (pid,) = backends(postgres)
        end(postgres, pid)
        wait_for(lambda: pid not in backends(postgres), "the end of its session")
        assert connection.execute("SELECT 1").fetchone() == (1,)


@WAYS
def test_a_client_without_a_query_that_disconnects_wakes_nothing(
    proxy: RunningProxy, postgres: BarePostgres, way: dict[str, str]
) -> None:
    with connect(proxy, way):
        (pid,) = backends(postgres)
        wakes = proxy.directory.endpoints[ENDPOINT].wakes
        end(postgres, pid)
        wait_for(lambda: backends(postgres) == [], "the end of its session")
    wait_for(lambda: proxy.sessions() == 0, "the end of the connection")
    assert proxy.directory.endpoints[ENDPOINT].wakes == wakes


@pytest.mark.slow
@WAYS
def test_an_unread_query_is_sent_to_the_next_compute(
    proxy: RunningProxy, mortal_postgres: BarePostgres, way: dict[str, str]
) -> None:
    mortal_postgres.start()
    mortal_postgres.execute("CREATE ROLE alice LOGIN")
    proxy.directory.endpoints[ENDPOINT].address = ComputeAddress(mortal_postgres.socket)
    with connect(proxy, way) as connection, ThreadPoolExecutor() as pool:
        (pid,) = backends(mortal_postgres)
        backend = psutil.Process(pid)
        backend.suspend()
        asking = pool.submit(connection.execute, "SELECT 1")
        wait_for(lambda: unread(mortal_postgres) > 0, "the question to reach the compute")
        backend.kill()
        assert asking.result(20).fetchone() == (1,)


@WAYS
def test_a_query_that_was_begun_ends_with_its_error(
    proxy: RunningProxy, postgres: BarePostgres, way: dict[str, str]
) -> None:
    with connect(proxy, way) as connection, ThreadPoolExecutor() as pool:
        (pid,) = backends(postgres)
        asking = pool.submit(connection.execute, "SELECT pg_sleep(60)")
        active = f"SELECT state FROM pg_stat_activity WHERE pid = {pid}"
        wait_for(lambda: postgres.execute(active) == [("active",)], "the query to run")
        end(postgres, pid)
        with pytest.raises(psycopg.errors.AdminShutdown, match="administrator command"):
            asking.result(20)


def test_an_error_like_that_of_a_stopping_compute_is_passed_on(proxy: RunningProxy) -> None:
    with connect(proxy, {}) as connection:
        with pytest.raises(psycopg.errors.AdminShutdown, match="mine"):
            connection.execute("DO $$ BEGIN RAISE 'mine' USING ERRCODE = '57P01'; END $$")
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_such_an_error_is_passed_on_also_if_the_client_asks_more_meanwhile() -> None:
    asked = messages.message(b"Q", b"SELECT 1\0")
    error = messages.error_response(severity="ERROR", sqlstate="57P01", text="mine")

    async def exchange() -> bytes:
        readiness = Readiness(asyncio.get_running_loop())
        (client, client_end), (compute, compute_end) = socket.socketpair(), socket.socketpair()
        channel = Channel(compute_end, readiness)
        address, key = ComputeAddress(Path("/none")), CancelKey(1, b"key")
        first = FirstExchange(
            Channel(client_end, readiness),
            ComputeConnection(channel, address, key, b"", b""),
            readiness=readiness,
            sent=Tally(),
            parked=lambda: None,
        )
        with client, compute, contextlib.closing(first):
            first.start(b"")
            for sender, sent in ((client, asked), (compute, error), (client, asked)):
                sender.send(sent)
                await asyncio.sleep(0.02)
            compute.send(messages.READY_FOR_QUERY_PREFIX + b"I")
            await asyncio.sleep(0.02)
            return client.recv(1000, socket.MSG_DONTWAIT)

    assert asyncio.run(exchange()) == error + messages.READY_FOR_QUERY_PREFIX + b"I"


def test_a_query_that_is_too_long_to_be_stored_is_answered(proxy: RunningProxy) -> None:
    with connect(proxy, {}) as connection:
        long = "x" * 100_000
        assert connection.execute(f"SELECT '{long}'").fetchone() == (long,)

"""Large amounts of data, and many clients."""

import asyncio
import contextlib
import hashlib
import socket
import ssl
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from controlplane.proxy.wire.channel import Channel
from controlplane.proxy.wire.readiness import Readiness
from controlplane.proxy.wire.tls import TlsIdentity
from tests.proxy.conftest import ENDPOINT, PASSWORDS
from tests.proxy.running_proxy import REGION_HOST, RunningProxy, plain
from tests.proxy.wire import trusting_context
from tests.selection import first_of
from tests.support.bare_postgres import BarePostgres

pytestmark = pytest.mark.slow

ALICE: dict[str, Any] = {"user": "alice", "password": PASSWORDS["alice"]}
WAYS = {"tls": {}, "plain": plain(ENDPOINT)}
ROWS = 100_000
ROW = b"0123456789abcdef" * 62 + b"%07d\n"


def rows() -> Iterator[bytes]:
    for number in range(ROWS):
        yield ROW % number


@pytest.mark.parametrize("way", first_of(WAYS.values()), ids=WAYS.keys())
def test_100_megabytes_pass_unchanged_in_both_directions(
    proxy: RunningProxy, way: dict[str, str]
) -> None:
    sent, received = hashlib.sha256(), hashlib.sha256()
    with proxy.connect(ENDPOINT, **ALICE, **way) as connection:
        connection.execute("CREATE TEMPORARY TABLE lines (line text)")
        with connection.cursor().copy("COPY lines FROM STDIN") as copy:
            for row in rows():
                sent.update(row)
                copy.write(row)
        size = 0
        with connection.cursor().copy("COPY lines TO STDOUT") as copy:
            for data in copy:
                received.update(data)
                size += len(data)
    assert size == ROWS * 1000
    assert sent.digest() == received.digest()


@pytest.mark.parametrize("way", first_of(WAYS.values()), ids=WAYS.keys())
def test_500_clients_at_once(
    proxy: RunningProxy, postgres: BarePostgres, way: dict[str, str]
) -> None:
    parameters = proxy.parameters(ENDPOINT, **ALICE, **way, application_name="crowd")

    async def meet() -> list[Any]:
        everyone = await asyncio.gather(
            *(psycopg.AsyncConnection.connect(**parameters) for _ in range(500))
        )
        assert postgres.backends_of("crowd") == 500
        cursors = await asyncio.gather(
            *(each.execute("SELECT %s::int", [n]) for n, each in enumerate(everyone))
        )
        answers = [await cursor.fetchone() for cursor in cursors]
        await asyncio.gather(*(each.close() for each in everyone))
        return answers

    assert asyncio.run(meet()) == [(n,) for n in range(500)]


def test_the_end_of_tls_behind_large_records_is_noticed(identity: TlsIdentity) -> None:
    """The peer leaves its socket open, so the kernel reports nothing more to read."""
    near, far = socket.socketpair()

    async def receive() -> list[bytes]:
        readiness = Readiness(asyncio.get_running_loop())
        channel = Channel(near, readiness)
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = trusting_context().wrap_bio(incoming, outgoing, server_hostname=REGION_HOST)
        handshake = asyncio.create_task(channel.start_tls(identity.context))
        while not handshake.done():
            with contextlib.suppress(ssl.SSLWantReadError):
                client.do_handshake()
            far.sendall(outgoing.read())
            await asyncio.sleep(0.01)
            with contextlib.suppress(BlockingIOError):
                incoming.write(far.recv(65536, socket.MSG_DONTWAIT))
        client.write(b"x" * 16384 * 2)
        with pytest.raises(ssl.SSLWantReadError):
            client.unwrap()
        far.sendall(outgoing.read())
        received: list[bytes] = []
        has_ended = asyncio.Event()

        def read() -> None:
            received.append(bytes(channel.receive_burst()))
            if not received[-1]:
                readiness.remove_reader(channel.fileno)
                has_ended.set()

        readiness.add_reader(channel.fileno, read)
        await asyncio.wait_for(has_ended.wait(), 10)
        channel.close()
        readiness.close()
        return received

    assert asyncio.run(receive()) == [b"x" * 16384 * 2, b""]
    far.close()

"""What a peer does to one connection costs no other one its turn, or its socket."""

import asyncio
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import pytest
import uvloop

from controlplane.proxy.wire.channel import Channel
from controlplane.proxy.wire.errors import ConnectionLost
from controlplane.proxy.wire.readiness import Readiness

RESET = struct.pack("ii", 1, 0)


@contextmanager
def connected() -> Iterator[tuple[Channel, Readiness, socket.socket]]:
    """A channel over TCP, and the client's socket."""
    readiness = Readiness(asyncio.get_running_loop())
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        channel = Channel(listener.accept()[0], readiness)
    with client:
        yield channel, readiness, client
    channel.close()
    readiness.close()


async def turns_during(work: Callable[[], Awaitable[object]]) -> int:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    counting = asyncio.create_task(count())
    await work()
    counting.cancel()
    return turns


async def read_singly() -> int:
    with connected() as (channel, _, client):
        client.sendall(bytes(400))
        await channel.peek()

        async def read() -> None:
            for _ in range(400):
                await channel.read(1)

        return await turns_during(read)


def test_a_peer_with_more_at_hand_lets_others_have_their_turn() -> None:
    assert uvloop.run(read_singly()) >= 20


async def break_before_tls() -> None:
    with connected() as (channel, readiness, client):
        number = channel.fileno
        await asyncio.sleep(0)
        client.sendall(b"\x16")
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        client.close()
        while number not in readiness._broken:
            await asyncio.sleep(0.01)
        with pytest.raises(ConnectionLost):
            await channel.start_tls(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        channel.close()
        # Its number may be that of another connection by now.
        assert number not in readiness._broken
        with pytest.raises(ConnectionLost):
            channel.send(b"")


def test_a_connection_that_breaks_before_tls_is_forgotten() -> None:
    uvloop.run(break_before_tls())

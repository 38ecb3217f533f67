"""The error of a socket that breaks during a wait is reported, although uvloop does not report
it."""

import asyncio
import socket
from functools import partial

import uvloop

from controlplane.proxy.wire.readiness import Readiness


async def first_word_of_a_broken_socket() -> bytes | OSError:
    """Return what a read returns after the peer has closed without reading what was sent to it."""
    readiness = Readiness(asyncio.get_running_loop())
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    readiness.adopt(ours.fileno())
    told = asyncio.Event()
    readiness.add_reader(ours.fileno(), told.set)
    try:
        ours.send(b"never read")
        theirs.close()
        await asyncio.wait_for(told.wait(), 10)
        try:
            return ours.recv(1)
        except OSError as error:
            return error
    finally:
        readiness.remove_reader(ours.fileno())
        readiness.forget(ours.fileno())
        ours.close()
        readiness.close()


def test_a_reset_connection_is_reported() -> None:
    assert isinstance(uvloop.run(first_word_of_a_broken_socket()), ConnectionResetError)


async def callbacks_once_broken() -> int:
    """Return how often a socket that was broken before calls a waiter."""
    readiness = Readiness(asyncio.get_running_loop())
    ours, theirs = socket.socketpair()
    readiness.adopt(ours.fileno())
    ours.send(b"never read")
    theirs.close()
    await asyncio.sleep(0)
    calls: list[None] = []
    for _ in range(100):
        await asyncio.sleep(0)
    readiness.add_reader(ours.fileno(), partial(calls.append, None))
    for _ in range(100):
        await asyncio.sleep(0)
    readiness.remove_reader(ours.fileno())
    readiness.forget(ours.fileno())
    ours.close()
    readiness.close()
    return len(calls)


def test_a_connection_that_was_reset_before_is_reported_too() -> None:
    assert uvloop.run(callbacks_once_broken()) >= 1

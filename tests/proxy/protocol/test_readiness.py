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


async def words_of_the_next_connection() -> bytes:
    """Return what arrives on a connection with the number of one that was closed when another one
    broke at the same time as it."""
    readiness = Readiness(asyncio.get_running_loop())
    pairs = [socket.socketpair() for _ in range(2)]
    numbers = [ours.fileno() for ours, _ in pairs]
    closed = asyncio.Event()

    def close_both() -> None:
        if closed.is_set():
            return
        for ours, _ in pairs:
            readiness.remove_reader(ours.fileno())
            readiness.forget(ours.fileno())
            ours.close()
        closed.set()

    for ours, _ in pairs:
        ours.setblocking(False)
        readiness.adopt(ours.fileno())
        readiness.add_reader(ours.fileno(), close_both)
    for ours, theirs in pairs:
        ours.send(b"never read")
        theirs.close()
    await asyncio.wait_for(closed.wait(), 10)
    received = b""
    done = asyncio.Event()
    again = [socket.socketpair() for _ in range(2)]
    ends = {one.fileno(): (one, other) for pair in again for one, other in (pair, pair[::-1])}
    used = [number for number in numbers if number in ends]
    assert used, "no number was used again"

    def read(end: socket.socket) -> None:
        nonlocal received
        try:
            received += end.recv(1)
        except BlockingIOError:
            return
        if received.count(b"y") == len(used):
            done.set()

    for number in used:
        ends[number][0].setblocking(False)
        readiness.adopt(number)
        readiness.add_reader(number, partial(read, ends[number][0]))
    for word in (b"x", b"y"):
        await asyncio.sleep(0.05)
        for number in used:
            ends[number][1].send(word)
    try:
        await asyncio.wait_for(done.wait(), 5)
    finally:
        for number in used:
            readiness.remove_reader(number)
            readiness.forget(number)
        for one, other in again:
            one.close()
            other.close()
        readiness.close()
    return received


def test_a_connection_does_not_inherit_that_an_earlier_one_of_its_number_broke() -> None:
    """Two connections that a relay joins may break in the same moment. Whichever is reported first
    closes both."""
    assert sorted(uvloop.run(words_of_the_next_connection())) == sorted(b"xxyy")

"""The relay through which a program of a branch's account reads a compute."""

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from controlplane.compute.data.relaying import PREFIX, relay_directory
from controlplane.compute.host.accounts import Account
from controlplane.compute.host.listener_socket import SOCKET
from tests.support.stack import new_directory

US = Account(os.geteuid(), os.getegid())


@pytest.fixture
def compute(settings: Any) -> Iterator[Path]:
    """The directory in which a compute would listen."""
    with new_directory() as place:
        settings.SOCKET_DIR = place
        (place / "ep").mkdir()
        yield place / "ep"


def listener_in(compute: Path, *, backlog: int) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(compute / SOCKET))
    listener.listen(backlog)
    return listener


def connected(relay: Path) -> socket.socket:
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.settimeout(10)
    client.connect(str(relay / SOCKET))
    return client


def test_it_carries_bytes_both_ways_and_leaves_nothing(compute: Path) -> None:
    with (
        listener_in(compute, backlog=1) as listener,
        relay_directory(compute, US) as relay,
        connected(relay) as client,
        listener.accept()[0] as server,
    ):
        client.sendall(b"asked")
        assert server.recv(100) == b"asked"
        server.sendall(b"answered")
        assert client.recv(100) == b"answered"
    assert not list(compute.parent.glob(f"{PREFIX}*"))


@pytest.mark.parametrize("accepts", [False, True], ids=["full", "unread"])
def test_a_compute_that_accepts_or_reads_nothing_holds_no_thread(
    compute: Path, accepts: bool
) -> None:
    before = threading.active_count()
    with ExitStack() as held:
        held.enter_context(listener_in(compute, backlog=4 if accepts else 0))
        if not accepts:
            waiting = held.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            waiting.connect(str(compute / SOCKET))
        began = time.monotonic()
        with relay_directory(compute, US) as relay:
            client = held.enter_context(connected(relay))
            client.setblocking(False)
            # More than fits, which nobody reads.
            for _ in range(200):
                try:
                    client.send(b"x" * 100_000)
                except OSError:
                    time.sleep(0.005)
        assert time.monotonic() - began < 10
    assert threading.active_count() == before
    assert not list(compute.parent.glob(f"{PREFIX}*"))

"""A proxy that is restarted: the next one takes over its listeners and counts.

The processes here serve lines instead of Postgres; `tests.connections.serving.test_proxy_restarts`
restarts the proxy itself."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import psutil
import pytest

from controlplane.proxy.limits.connection_limits import (
    SLOTS,
    Admission,
    ConnectionCounts,
    ConnectionLimits,
    SharedCounts,
)
from controlplane.proxy.listeners import is_offered, open_listeners
from controlplane.proxy.sessions.connecting import waited_for_accept
from controlplane.proxy.settings import ProxySettings
from controlplane.proxy.wire.errors import TooManyConnections
from tests.selection import first_of
from tests.support.processes import is_alive
from tests.support.stack import free_port
from tests.support.waiting import wait_for

# Arguments: the directory, the port, the seconds to linger, and "hang" to never accept clients.
PROGRAM = """
import asyncio, os, signal, socket, sys, time
from pathlib import Path
from controlplane.proxy.listeners import Handover
from controlplane.proxy.processes import DRAIN, EXPECT_SUCCESSOR, run_processes

directory, port, linger, mood = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
handover = Handover(directory, linger_within=linger).take_over()
if not handover.listeners:
    handover.listeners = [socket.create_server(("127.0.0.1", port))]

async def serve(ready):
    clients, drained = set(), asyncio.Event()

    async def answer(reader, writer):
        clients.add(writer)
        while await reader.readline():
            writer.write(b"%d\\n" % os.getpid())
        clients.discard(writer)
        writer.close()

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(DRAIN, drained.set)
    loop.add_signal_handler(EXPECT_SUCCESSOR, lambda: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {DRAIN, EXPECT_SUCCESSOR})
    server = await asyncio.start_server(answer, sock=handover.listeners[0])
    ready()
    await drained.wait()
    server.close()
    while clients:
        await asyncio.sleep(0.02)

def run(number, ready):
    if mood == "hang":
        time.sleep(600)
    asyncio.run(serve(ready))

run_processes(2, run, handover=handover)
"""


class Proxies:
    """Proxies that are started one after the other at one port."""

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        self.directory = directory
        self.started: list[psutil.Process] = []

    def start(self, *, linger: float = 60, mood: str = "serve") -> psutil.Popen:
        arguments = [str(self.directory), str(self.port), str(linger), mood]
        process = psutil.Popen([sys.executable, "-c", PROGRAM, *arguments])
        wait_for(lambda: len(process.children(recursive=True)) == 3, "all processes")
        self.started += [process, *process.children(recursive=True)]
        if mood == "serve":
            serving = {child.pid for child in process.children(recursive=True)}
            wait_for(lambda: self.answers_from(serving), "its own clients")
        return process

    def answers_from(self, pids: set[int]) -> bool:
        with suppress(OSError), closing(self.connect()) as client:
            return ask(client) in pids
        return False

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=10)

    def is_offered(self) -> bool:
        return is_offered(self.directory)

    def end(self) -> None:
        for process in self.started:
            with suppress(psutil.NoSuchProcess):
                process.kill()
                process.wait(10)


def ask(client: socket.socket) -> int:
    """Return the id of the process that serves the client."""
    client.sendall(b"?\n")
    return int(client.makefile().readline())


@pytest.fixture
def proxies(tmp_path: Path) -> Iterator[Proxies]:
    proxies = Proxies(tmp_path)
    try:
        yield proxies
    finally:
        proxies.end()


def test_the_next_proxy_gets_new_clients_and_the_previous_one_keeps_its_own(
    proxies: Proxies,
) -> None:
    first = proxies.start()
    previous = first.children(recursive=True)
    with closing(proxies.connect()) as kept:
        owner = ask(kept)
        first.terminate()
        assert first.wait(5) == 0
        with closing(proxies.connect()) as between:
            assert ask(between) in {process.pid for process in previous}
        proxies.start()
        wait_for(lambda: sum(map(is_alive, previous)) == 2, "the end of those without clients")
        assert ask(kept) == owner
    wait_for(lambda: not any(map(is_alive, previous)), "the end of the previous processes")


@pytest.mark.slow
def test_a_proxy_whose_main_process_is_killed_is_taken_over(proxies: Proxies) -> None:
    first = proxies.start()
    previous = first.children(recursive=True)
    with closing(proxies.connect()) as kept:
        first.kill()
        first.wait(5)
        wait_for(proxies.is_offered, "the offer")
        proxies.start()
        assert ask(kept) in {process.pid for process in previous}


@pytest.mark.slow
def test_a_next_proxy_that_dies_before_it_serves_changes_nothing(proxies: Proxies) -> None:
    first = proxies.start()
    previous = {process.pid for process in first.children(recursive=True)}
    first.terminate()
    failing = proxies.start(mood="hang")
    assert not proxies.is_offered()
    failing.send_signal(signal.SIGINT)
    failing.wait(10)
    wait_for(proxies.is_offered, "another offer")
    assert proxies.answers_from(previous)
    proxies.start()


@pytest.mark.thorough
@pytest.mark.slow
def test_a_proxy_that_is_replaced_before_it_serves_releases_the_one_before(
    proxies: Proxies,
) -> None:
    first = proxies.start()
    previous = first.children(recursive=True)
    first.terminate()
    hanging = proxies.start(mood="hang")
    hanging.terminate()
    assert hanging.wait(5) == 0
    proxies.start()
    wait_for(lambda: not any(map(is_alive, previous)), "the end of the first processes")


@pytest.mark.slow
def test_without_a_next_proxy_the_processes_end(proxies: Proxies) -> None:
    first = proxies.start(linger=0.5)
    previous = first.children(recursive=True)
    first.terminate()
    assert first.wait(5) == 0
    wait_for(lambda: not any(map(is_alive, previous)), "their end")
    with pytest.raises(ConnectionRefusedError):
        proxies.connect()
    assert not proxies.is_offered()


@pytest.mark.slow
@pytest.mark.parametrize(("number", "linger"), first_of([(signal.SIGINT, 60), (signal.SIGTERM, 0)]))
def test_a_stop_ends_all_processes_at_once(
    proxies: Proxies, number: signal.Signals, linger: float
) -> None:
    first = proxies.start(linger=linger)
    processes = first.children(recursive=True)
    first.send_signal(number)
    assert first.wait(10) == 0
    assert not any(map(is_alive, processes))


@pytest.mark.thorough
@pytest.mark.slow
def test_signals_to_every_process_end_all_of_them(proxies: Proxies) -> None:
    """As systemd sends them with KillMode=control-group."""
    first = proxies.start()
    processes = first.children(recursive=True)
    for process in (first, *processes):
        process.terminate()
    wait_for(lambda: not any(map(is_alive, processes)), "their end")


COUNT_ONE = """
import sys
from controlplane.proxy.limits.connection_limits import *
counts = SharedCounts(int(sys.argv[1]))
slot = counts.claim()
mine = ConnectionCounts(ConnectionLimits(9, 9, 9, 3), counts.of(slot))
mine.add(Admission(1, "ep-a", "alice"))
print(slot, flush=True)
sys.stdin.read()
"""


def test_limits_count_the_clients_of_other_programs_until_these_end() -> None:
    counts = SharedCounts()
    own = ConnectionCounts(ConnectionLimits(9, 9, 9, 3), counts.of(SLOTS - 1))
    alice = Admission(1, "ep-a", "alice")
    command = [sys.executable, "-c", COUNT_ONE, str(counts.descriptor)]
    others = [
        subprocess.Popen(
            command, pass_fds=[counts.descriptor], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for _ in range(2)
    ]
    slots = {int(other.stdout.readline()) for other in others if other.stdout}
    assert len(slots) == 2
    own.add(alice)
    with pytest.raises(TooManyConnections):
        own.add(alice)
    own.add(Admission(1, "ep-a", "bob"))
    for other in others:
        other.kill()
        other.communicate()
    counts.forget_ended()
    own.add(alice)
    own.add(alice)


def test_processes_that_drain_make_room_for_new_ones() -> None:
    counts = SharedCounts()
    for number in range(SLOTS - 1):
        counts.of(number).note_sessions(number)
    assert counts.in_the_way(1) == []
    draining = counts.of(SLOTS - 1)
    draining.note_sessions(5)
    assert counts.in_the_way(1) == []
    draining.accept_no_more()
    assert counts.in_the_way(0) == []
    assert counts.in_the_way(2) == [os.getpid()]


WAIT = 0.3


@pytest.mark.parametrize("sends", [b"", b"12345678"], ids=["silent", "sends"])
def test_a_client_that_waits_to_be_accepted_is_measured(sends: bytes) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as client,
    ):
        client.sendall(sends)
        began = time.monotonic()
        wait_for(lambda: time.monotonic() - began > WAIT, "the time to pass")
        connection, _ = listener.accept()
        waited = time.monotonic() - began
        with connection:
            assert WAIT - 0.05 < waited_for_accept(connection) < waited + 0.05


def test_a_connection_that_is_gone_has_not_waited() -> None:
    gone, other = socket.socketpair()
    with gone, other:
        assert waited_for_accept(gone) == 0


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = ProxySettings(
            domains=[], secret=b"secret", host_id="local", host="127.0.0.1", port=port
        )
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1, port {port}: .* in use"):
            open_listeners(settings)

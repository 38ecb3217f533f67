"""A slow client of the API or the console costs a buffer, and does not delay other clients."""

import contextlib
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
import requests

from tests.selection import first_of
from tests.support.client import Client
from tests.support.processes import processes_of
from tests.support.stack import ROOT, Stack, free_port
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow

MANY = 1000
HALF_A_HEAD = b"GET /healthz HTTP/1.1\r\nHost: 127.0"
HALF_A_BODY = b"POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n%s\r\n{" % (
    b"/api/v2/projects",
    b"Authorization: Bearer %s\r\n",
)


@contextlib.contextmanager
def connections(url: str, *texts: bytes, count: int = 1) -> Iterator[list[socket.socket]]:
    """Open so many connections, each of which has sent one of the texts, in turn."""
    address = urlsplit(url)
    with contextlib.ExitStack() as opened:
        made = []
        for number in range(count):
            connection = socket.create_connection((address.hostname, address.port), timeout=10)
            made.append(opened.enter_context(connection))
            connection.sendall(texts[number % len(texts)])
        yield made


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """Raise this process's own limit: each connection is a descriptor here as well."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("part", first_of(["api", "console"]))
def test_a_thousand_half_sent_requests_delay_nobody(
    stack: Stack, alice: Client, many_descriptors: None, part: str
) -> None:
    url = stack.api_url.replace("/api/v2", "/healthz") if part == "api" else stack.console_url
    half_a_body = HALF_A_BODY % alice.key.encode()
    with connections(url, HALF_A_HEAD, half_a_body, count=MANY):
        server = processes_of(stack, part)[-1]
        wait_for(lambda: server.num_fds() > MANY, "all of them to be accepted")
        began = time.monotonic()
        for _ in range(10):
            assert requests.get(url, timeout=10).ok
        assert time.monotonic() - began < 3
        assert server.num_fds() > MANY
        assert server.num_threads() < 10


@pytest.fixture(scope="module")
def hasty_server() -> Iterator[str]:
    """Yields the address of `tests.support.hasty_server`."""
    address = f"127.0.0.1:{free_port()}"
    program = (sys.executable, "-m", "gunicorn", "tests.support.hasty_server:application")
    options = ("--worker-class", "tests.support.hasty_server.HastyWorker", "--no-control-socket")
    more = ("--bind", address, "--keep-alive", "1", "--log-level", "error")
    with subprocess.Popen([*program, *options, *more], cwd=ROOT) as process:
        try:
            wait_for(lambda: can_connect(f"http://{address}"), "the server")
            yield f"http://{address}"
        finally:
            process.terminate()


def can_connect(url: str) -> bool:
    with contextlib.suppress(requests.ConnectionError):
        return requests.get(url, timeout=5).ok
    return False


def everything(connection: socket.socket) -> bytes:
    """Return what arrives until the connection is closed."""
    return b"".join(iter(lambda: connection.recv(65536), b""))


@pytest.mark.thorough
def test_it_works(hasty_server: str) -> None:
    for body in (b"", b"short", b"long" * 100_000):
        assert requests.post(hasty_server, data=body, timeout=10).content == body
    pieces = requests.post(hasty_server, data=iter([b"in ", b"pieces"]), timeout=10)
    assert pieces.content == b"in pieces"


@pytest.mark.thorough
@pytest.mark.parametrize(
    "text",
    [
        b"GET / HT",
        b"GET / HTTP/1.1\r\nHost: x\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999\r\n\r\nhalf",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nhalf",
    ],
)
def test_a_request_that_is_not_sent_in_time_is_refused(hasty_server: str, text: bytes) -> None:
    with connections(hasty_server, text) as (slow,):
        assert everything(slow).startswith(b"HTTP/1.1 408 Request Timeout\r\n")


@pytest.mark.thorough
def test_sending_single_bytes_does_not_extend_the_time(hasty_server: str) -> None:
    with connections(hasty_server, b"G") as (slow,):
        began = time.monotonic()
        slow.settimeout(0.1)
        answer = b""
        while not answer:
            assert time.monotonic() - began < 5
            slow.sendall(b"G")
            with contextlib.suppress(TimeoutError):
                answer = slow.recv(65536)
    assert answer.startswith(b"HTTP/1.1 408")


@pytest.mark.thorough
@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"])
def test_an_idle_connection_is_closed_in_time(hasty_server: str, sent: bytes) -> None:
    with connections(hasty_server, sent) as (idle,):
        assert everything(idle).startswith(b"HTTP/1.1 200 OK" if sent else b"")


def test_an_incomplete_body_is_not_a_request(hasty_server: str) -> None:
    with connections(hasty_server, b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\n{}") as (gone,):
        gone.shutdown(socket.SHUT_WR)
        assert everything(gone) == b""


@pytest.mark.thorough
def test_a_client_that_does_not_read_its_answer_is_disconnected(hasty_server: str) -> None:
    def closed() -> int:
        return int(requests.get(f"{hasty_server}/closed", timeout=10).content)

    before = closed()
    with connections(hasty_server, b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n") as (slow,):
        # The answer to this question is closed as well.
        wait_for(lambda: closed() > before + 1, "the answer to be closed")
        port = slow.getsockname()[1]
        wait_for(lambda: port not in served_ports(hasty_server), "the connection to be closed")


def served_ports(url: str) -> set[int]:
    """Return the ports of the clients for which the server holds a descriptor."""
    ends: list[tuple[Any, Any]] = [
        (one.laddr, one.raddr) for one in psutil.net_connections("tcp4") if one.pid and one.raddr
    ]
    return {theirs.port for ours, theirs in ends if ours.port == urlsplit(url).port}


@pytest.mark.thorough
def test_a_client_may_wait_for_100_continue(hasty_server: str) -> None:
    head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n"
    with connections(hasty_server, head) as (client,):
        assert client.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(b"body")
        assert everything(client).endswith(b"body\r\n0\r\n\r\n")

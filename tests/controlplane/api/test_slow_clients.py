"""A slow client of the API or the console costs a buffer, and does not delay other clients."""

import contextlib
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import requests

from tests.selection import first_of
from tests.support.another_api import another_api, is_open
from tests.support.client import Client
from tests.support.processes import processes_of
from tests.support.stack import ROOT, Stack, free_port
from tests.support.waiting import load, wait_for

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
        assert time.monotonic() - began < 3 * load()
        assert server.num_fds() > MANY
        assert server.num_threads() < 10


@pytest.mark.parametrize("part", ["api", "console"])
def test_a_body_that_is_not_needed_delays_nobody(stack: Stack, part: str) -> None:
    url, path = (
        (stack.api_url.replace("/api/v2", "/healthz"), b"/api/v2/projects")
        if part == "api"
        else (f"{stack.console_url}/sign-in", b"/sign-in")
    )
    head = b"POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n" % (path, 10**12)
    with connections(url, head) as (client,):

        def send() -> int:
            sent = 0
            with contextlib.suppress(ConnectionError):
                while sent < 10**8:
                    sent += client.send(bytes(1 << 20))
            return sent

        with ThreadPoolExecutor(1) as threads:
            sending = threads.submit(send)
            began = time.monotonic()
            for _ in range(10):
                assert requests.get(url, timeout=60).ok
            assert time.monotonic() - began < 3 * load()
            assert sending.result(60) < 40 << 20


@pytest.mark.parametrize("size", [5000, 3 << 20])
def test_who_sends_a_body_without_a_key_gets_the_answer(stack: Stack, size: int) -> None:
    head = b"POST /api/v2/projects HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size
    with connections(stack.api_url, head + bytes(size)) as (client,):
        client.settimeout(60)
        received = b""
        while not received.endswith(b"}"):
            received += client.recv(65536)
    assert received.startswith(b"HTTP/1.1 401 ")
    assert (b"Connection: close" in received) == (size > 65536)


def test_no_header_moves_a_path(stack: Stack) -> None:
    text = b"GET /y/livez HTTP/1.1\r\nHost: x\r\nSCRIPT_NAME: /y\r\nConnection: close\r\n\r\n"
    assert sent(stack.api_url, text).startswith(b"HTTP/1.1 404 ")


def test_half_sent_requests_keep_nobody_out_of_the_api(stack: Stack) -> None:
    with another_api(stack, options="--worker-connections 40") as api:
        keep_nobody_out(f"{api.api_url}/openapi.json")


def test_half_sent_requests_keep_nobody_out_of_the_console(tmp_path: Path) -> None:
    log = tmp_path / "log"
    port = free_port()
    program = (sys.executable, "-m", "gunicorn", "wsgiref.simple_server:demo_app")
    worker = ("--worker-class", "console.server.ConsoleWorker", "--worker-connections", "40")
    options = (*worker, "--bind", f"127.0.0.1:{port}", "--no-control-socket", "--keep-alive", "60")
    with (
        log.open("wb") as output,
        subprocess.Popen(
            [*program, *options, "--log-level", "error"], cwd=ROOT, stderr=output
        ) as server,
    ):
        try:
            wait_for(lambda: is_open(port), "the server")
            keep_nobody_out(f"http://127.0.0.1:{port}/")
        finally:
            server.terminate()
    assert log.read_text() == ""


def test_an_api_that_stops_answers_idle_connections_by_their_end(
    stack: Stack, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with (
        another_api(stack, log=log) as api,
        connections(api.api_url, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", count=10) as idle,
    ):
        for client in idle:
            while not client.recv(65536).endswith(b"}"):
                pass
        api.process.terminate()
        assert [client.recv(65536) for client in idle] == [b""] * len(idle)
        assert api.process.wait(60) == 0
    assert "Traceback" not in log.read_text()


def keep_nobody_out(url: str, text: bytes = HALF_A_HEAD) -> None:
    """Hold more connections than the server may have, and make requests of an own connection."""
    with connections(url, text, count=100):
        for _ in range(3):
            began = time.monotonic()
            assert requests.get(url, timeout=60).ok
            assert time.monotonic() - began < load()


def sent(url: str, text: bytes, *, ends: bool = False) -> bytes:
    """Send the text, and return what arrives until the server closes the connection. `ends`: the
    client then sends nothing more, and says so."""
    with connections(url, text) as (client,):
        client.settimeout(60)
        if ends:
            client.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: client.recv(65536), b""))


def request(alice: Client, *lines: bytes, body: bytes = b"") -> bytes:
    head = b"POST /api/v2/projects HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    key = b"Authorization: Bearer %s" % alice.key.encode()
    return head + b"\r\n".join([key, *lines, b"", body])


@pytest.mark.thorough
def test_a_body_that_is_not_sent_in_time_is_refused(alice: Client) -> None:
    answer = sent(alice.api_url, request(alice, b"Content-Length: 9", body=b"{"))
    assert answer.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
    assert b"it was not sent in time" in answer


def test_an_incomplete_body_is_not_a_request(alice: Client) -> None:
    half = request(alice, b"Content-Length: 30", body=b'{"project": {}}')
    assert sent(alice.api_url, half, ends=True).startswith(b"HTTP/1.1 400 ")
    assert alice.get("/projects")["projects"] == []


@pytest.mark.thorough
def test_a_client_may_wait_for_100_continue(alice: Client) -> None:
    text = request(alice, b"Content-Length: 2", b"Expect: 100-continue")
    with connections(alice.api_url, text) as (client,):
        assert client.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(b"{}")
        assert client.recv(65536).startswith(b"HTTP/1.1 400 ")


def test_unread_answers_keep_nobody_out_of_the_api(stack: Stack) -> None:
    text = b"GET /api/v2/docs/swagger-ui-bundle.js HTTP/1.1\r\nHost: x\r\n\r\n"
    with another_api(stack, options="--worker-connections 40") as api:
        keep_nobody_out(f"{api.api_url}/livez".replace("/api/v2", ""), text * 4)


@pytest.mark.thorough
def test_a_body_without_a_key_has_no_more_time(stack: Stack) -> None:
    half = (
        b"POST /hosts/join HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 9\r\n\r\n{"
    )
    assert sent(stack.api_url, half).startswith(b"HTTP/1.1 408 ")

"""HTTP on the proxy's port: which clients speak it, its forms and its limits."""

import asyncio
import contextlib
import json
import random
import socket
import struct
import time

import pytest

from controlplane.proxy.limits import pending_clients
from controlplane.proxy.limits.connection_limits import ConnectionLimits
from controlplane.proxy.limits.pending_clients import PendingTurns
from controlplane.proxy.wire.tls import TlsIdentity
from tests.proxy.conftest import ENDPOINT, PASSWORDS
from tests.proxy.http_client import RawHttp, SqlClient, headers, request
from tests.proxy.running_proxy import MemoryDirectory, RunningProxy, running_proxy
from tests.support.bare_postgres import BarePostgres
from tests.support.stack import free_port
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow

ONE = b'{"query": "SELECT 1"}'


def is_one(answer: tuple[int, dict[str, str], object]) -> bool:
    status, _, body = answer
    return status == 200 and isinstance(body, dict) and body["rows"] == [{"?column?": 1}]


@pytest.mark.parametrize("alpn", [None, [], ["http/1.1"], ["h2", "http/1.1"], ["h2"]])
def test_http_is_served_beside_postgres(proxy: RunningProxy, alpn: list[str] | None) -> None:
    """Without TLS, and with TLS with or without ALPN."""
    with RawHttp(proxy, alpn=alpn) as http:
        for _ in range(2):
            http.post(ONE)
            assert is_one(http.answer())
    with proxy.connect(ENDPOINT, user="alice", password=PASSWORDS["alice"]) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_a_client_with_the_alpn_of_postgres_cannot_speak_http(proxy: RunningProxy) -> None:
    with RawHttp(proxy, alpn=["postgresql"]) as http:
        http.post(ONE)
        assert http.read(1) == b"E"


def test_http_on_a_separate_port(identity: TlsIdentity, directory: MemoryDirectory) -> None:
    port = free_port()
    with running_proxy(identity, directory, http_port=port) as proxy:
        for each in (proxy.port, port):
            with SqlClient(proxy) as client:
                client.url = f"http://127.0.0.1:{each}/sql"
                assert client.rows("SELECT 1") == [["1"]]


def test_chunked_bodies_and_100_continue(proxy: RunningProxy) -> None:
    with RawHttp(proxy) as http:
        http.send(request("Transfer-Encoding: chunked"))
        for part in (ONE[:5], ONE[5:], b""):
            http.send(f"{len(part):x}\r\n".encode() + part + b"\r\n")
        assert is_one(http.answer())
        http.send(request(f"Content-Length: {len(ONE)}", "Expect: 100-continue"))
        assert http.answer()[0] == 100
        http.send(ONE)
        assert is_one(http.answer())


def test_two_pipelined_requests_are_answered_in_order(proxy: RunningProxy) -> None:
    with RawHttp(proxy) as http:
        two = request(f"Content-Length: {len(ONE)}") + ONE
        http.send(two + two)
        assert is_one(http.answer())
        assert is_one(http.answer())


def test_a_request_in_single_bytes_is_answered(proxy: RunningProxy) -> None:
    with RawHttp(proxy) as http:
        http.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in request(f"Content-Length: {len(ONE)}") + ONE:
            http.send(bytes([byte]))
        assert is_one(http.answer())


@pytest.mark.parametrize(
    ("first", "status"),
    [
        ("GET / HTTP/1.1", 404),
        ("GET /sql HTTP/1.1", 405),
        ("POST /sqll HTTP/1.1", 404),
        ("POST http://api.localhost/sql HTTP/1.1", 404),
        ("BREW /sql HTTP/1.1", 405),
    ],
)
def test_unknown_paths_and_methods_end_connections_of_unknown_clients(
    proxy: RunningProxy, first: str, status: int
) -> None:
    """Each takes the time of all clients, and nobody has proved a password for it."""
    with RawHttp(proxy) as http:
        http.send(20 * request(first=first))
        answered, named, _ = http.answer()
        assert (answered, named["connection"]) == (status, "close")
        assert http.has_ended()
    with RawHttp(proxy) as http:
        for _ in range(3):
            http.post(ONE)
            assert is_one(http.answer())
            http.send(9 * request(first=first))
            for _ in range(9):
                answered, named, _ = http.answer()
                assert (answered, "connection" in named) == (status, False)
        http.send(20 * request(first=first))
        assert http.answer()[1]["connection"] == "close"
        assert http.has_ended()


def test_preflight_requests_without_end_are_refused(proxy: RunningProxy) -> None:
    with RawHttp(proxy) as http:
        http.send(20 * request(first="OPTIONS /sql HTTP/1.1"))
        answers = [http.answer() for _ in range(10)]
        assert [status for status, _, _ in answers] == [200] * 10
        closing = [named.get("connection") == "close" for _, named, _ in answers]
        assert closing == [False] * 9 + [True]
        assert http.has_ended()


def test_refusals_of_an_address_take_ever_longer(proxy: RunningProxy) -> None:
    def refuse() -> None:
        with RawHttp(proxy) as http:
            http.send(request(first="GET / HTTP/1.1"))
            assert http.answer()[0] == 404

    for _ in range(6):
        refuse()
    began = time.monotonic()
    refuse()
    assert time.monotonic() - began > 0.5
    # Nobody who authenticates waits.
    with RawHttp(proxy) as http:
        http.post(ONE)
        assert is_one(http.answer())


@pytest.mark.parametrize("refused", ["disabled", "too many"])
def test_refusals_of_a_correct_password_neither_wait_nor_end_the_connection(
    identity: TlsIdentity, directory: MemoryDirectory, refused: str
) -> None:
    directory.endpoints[ENDPOINT].disabled = refused == "disabled"
    with (
        running_proxy(identity, directory, limits=ConnectionLimits(total=0)) as proxy,
        RawHttp(proxy) as http,
    ):
        began = time.monotonic()
        for _ in range(12):
            http.send(request())
            status, named, body = http.answer()
            assert status >= 400
            assert refused in json.dumps(body)
            assert "connection" not in named
        assert time.monotonic() - began < 5  # it would be 15


def test_clients_that_have_not_authenticated_share_a_part_of_each_turn() -> None:
    turns = [0]

    async def go() -> int:
        pending = PendingTurns()
        most = 0

        async def work() -> None:
            for _ in range(5):
                await pending.next()
                turns[-1] += 1

        working = asyncio.gather(*(work() for _ in range(300)))
        while not working.done():
            await asyncio.sleep(0)
            most = max(most, turns[-1])
            turns.append(0)
        return most

    most = asyncio.run(go())
    assert 0 < most <= 32
    assert sum(turns) == 1500


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET  /  HTTP/1.1\r\n\r\n", 400),
        (b"POST /sql HTTP/1.1\r\n\r\n", 400),
        (b"POST /sql HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"POST /sql HTTP/1.1\r\nHost: a\r\nno colon\r\n\r\n", 400),
        (b"POST /sql HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n", 400),
        (b"POST /sql HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"POST /sql HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
        (b"POST /sql HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 40_000, 431),
        (b"POST /" + b"x" * 40_000, 431),
        (b"POST /sql HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 32_768 + b"\r\n\r\n", 431),
        (b"POST /sql HTTP/1.1\r\nHost: a\r\nX: a\0b\r\n\r\n", 400),
    ],
)
def test_malformed_heads_are_refused(proxy: RunningProxy, sent: bytes, status: int) -> None:
    with RawHttp(proxy) as http:
        http.send(sent)
        answered, named, body = http.answer()
        assert (answered, named["connection"]) == (status, "close")
        assert body["message"].startswith("malformed HTTP request")
        assert "bytearray" not in body["message"]
        assert http.has_ended()


@pytest.mark.parametrize("name", ["neon-connection-string", "Neon-Array-Mode", "Content-Type"])
def test_a_header_with_one_value_is_not_repeated(proxy: RunningProxy, name: str) -> None:
    value = headers()["Neon-Connection-String"]
    with RawHttp(proxy) as http:
        http.send(request("Content-Type: x", "Neon-Array-Mode: true", f"{name}: {value}"))
        status, _, body = http.answer()
        assert (status, body["message"]) == (
            400,
            f"malformed HTTP request: it has two headers {name.lower()}",
        )
        assert http.has_ended()


def test_a_malformed_chunk_is_refused(proxy: RunningProxy) -> None:
    with RawHttp(proxy) as http:
        http.send(request("Transfer-Encoding: chunked") + b"zz\r\n")
        assert http.answer()[0] == 400
        assert http.has_ended()


def test_the_body_is_not_read_before_the_password_is_verified(proxy: RunningProxy) -> None:
    with RawHttp(proxy) as http:
        wrong = headers()["Neon-Connection-String"].encode()
        head = request("Content-Length: 60000000", "Expect: 100-continue")
        http.send(head.replace(wrong, wrong.replace(b"alice:", b"alice:not")))
        status, named, body = http.answer()
        assert (status, named["connection"], body["code"]) == (400, "close", "28P01")
        assert http.has_ended()


@pytest.mark.parametrize("declared", [True, False])
def test_a_body_that_is_too_large(proxy: RunningProxy, declared: bool) -> None:
    most = 64 * 1024 * 1024
    with RawHttp(proxy) as http:
        if declared:
            http.send(request(f"Content-Length: {most + 1}"))
        else:
            http.send(request("Transfer-Encoding: chunked"))
            part = b"%x\r\n" % 1_000_000 + b" " * 1_000_000 + b"\r\n"
            with contextlib.suppress(ConnectionError):
                for _ in range(80):
                    http.send(part)
        status, _, body = http.answer()
        assert status == 413
        assert body["message"] == f"request is too large (max is {most} bytes)"


def test_a_request_of_the_largest_size(proxy: RunningProxy) -> None:
    value = "x" * 60_000_000
    with SqlClient(proxy) as client:
        assert client.rows("SELECT length($1)", value) == [["60000000"]]


def test_large_requests_together_stay_within_the_memory(
    proxy: RunningProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy.proxy.queries, "memory", type(proxy.proxy.queries.memory)(1_000_000))
    with SqlClient(proxy) as client:
        error = client.refusal("SELECT length($1)", "x" * 2_000_000, status=503)
        assert error["code"] == "53400"
        error = client.refusal("SELECT repeat('x', 1000) FROM generate_series(1, 5000)", status=503)
        assert error["code"] == "53400"
        assert client.rows("SELECT length($1)", "x" * 400_000) == [["400000"]]


def test_idle_connections_make_room_for_others(
    identity: TlsIdentity, directory: MemoryDirectory
) -> None:
    """A connection without a request counts as one that has not shown its password."""
    with running_proxy(identity, directory, max_pending=5) as proxy:
        idle = []
        for _ in range(6):
            http = RawHttp(proxy)
            http.post(ONE)
            assert is_one(http.answer())
            idle.append(http)
        assert idle[0].has_ended()
        http.post(ONE)
        assert is_one(http.answer())
        for http in idle:
            http.close()


def test_a_stop_answers_waiting_requests_and_closes_the_others(
    identity: TlsIdentity, directory: MemoryDirectory, postgres: BarePostgres
) -> None:
    with (
        running_proxy(identity, directory) as proxy,
        RawHttp(proxy) as idle,
        RawHttp(proxy) as waiting,
    ):
        idle.post(ONE)
        assert is_one(idle.answer())
        waiting.post(b'{"query": "SELECT pg_sleep(600)"}')
        wait_for(lambda: postgres.runs("SELECT pg_sleep(600)"), "the query to run")
        proxy.call(proxy.proxy.stop())
        status, named, body = waiting.answer()
        assert (status, named["connection"], body["code"]) == (503, "close", "57P01")
        assert idle.has_ended()


def test_a_proxy_that_drains_closes_a_connection_with_its_next_answer(
    identity: TlsIdentity, directory: MemoryDirectory
) -> None:
    with running_proxy(identity, directory) as proxy, RawHttp(proxy) as http:
        http.post(ONE)
        assert "connection" not in http.answer()[1]
        draining = proxy.drain()
        http.post(ONE)
        answer = http.answer()
        assert is_one(answer)
        assert answer[1]["connection"] == "close"
        assert http.has_ended()
        draining.result(10)


def test_a_client_that_resets_its_connection_during_a_request(proxy: RunningProxy) -> None:
    for sent in (
        b"POST /sql",
        request("Content-Length: 100"),
        request("Content-Length: 100") + ONE,
    ):
        http = RawHttp(proxy)
        http.send(sent)
        time.sleep(0.05)
        http.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        http.close()


def test_random_requests(proxy: RunningProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proxy answers a modified request or closes the connection, and continues to serve."""
    monkeypatch.setattr(pending_clients, "_MAX_DELAY", 0.0)
    whole = request(f"Content-Length: {len(ONE)}") + ONE
    for seed in range(300):
        generator = random.Random(seed)
        changed = bytearray(whole)
        for _ in range(generator.randrange(1, 6)):
            changed[generator.randrange(len(changed))] = generator.randrange(256)
        broken = (ConnectionError, TimeoutError, IndexError, ValueError)
        with contextlib.suppress(*broken), RawHttp(proxy) as http:
            http.send(bytes(changed[: generator.randrange(1, len(changed) + 1)]))
            http.socket.shutdown(socket.SHUT_WR)
            http.socket.settimeout(5)
            http.answer()
    with SqlClient(proxy) as client:
        assert client.rows("SELECT 1") == [["1"]]


def test_errors_have_one_form(proxy: RunningProxy) -> None:
    """The driver reads this form, whatever the error is."""
    with SqlClient(proxy) as client:
        shapes = {
            tuple(client.refusal("SELECT 1/0")),
            tuple(client.refusal("SELECT 1", connection="mysql://x")),
            tuple(json.loads(client.session.get(client.url).text)),
        }
    assert len(shapes) == 1
    assert {"message", "code", "detail", "hint", "position", "severity", "where"} <= {*shapes.pop()}

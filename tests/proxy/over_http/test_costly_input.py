"""Input that is costly to parse, and requests that take much memory: the proxy goes on serving its
other clients."""

import asyncio
import contextlib
import json
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from controlplane.proxy.authentication.passwords import check_password
from controlplane.proxy.authentication.scram import mock_verifier
from controlplane.proxy.directory.interface import ComputeAddress
from controlplane.proxy.over_http import connection, websocket
from controlplane.proxy.over_http.compute_session import ComputeSession
from controlplane.proxy.over_http.framing import parse_head
from controlplane.proxy.over_http.request import (
    SMALL_BODY_BYTES,
    MemoryBudget,
    MemoryExhausted,
    RequestRefused,
    read_json,
)
from controlplane.proxy.over_http.statements import Sender, read_sender, without_neons_options
from controlplane.proxy.over_http.websocket import WebSocketFraming
from controlplane.proxy.relaying.compute import ComputeConnection, _read_greeting
from controlplane.proxy.sessions.queries import Conversions
from controlplane.proxy.wire import messages
from controlplane.proxy.wire.channel import Channel
from controlplane.proxy.wire.readiness import Readiness
from tests.proxy.http_client import RawHttp, SqlClient, request
from tests.proxy.running_proxy import RunningProxy
from tests.proxy.websocket_client import UPGRADE, frame
from tests.support.waiting import load

# Processor seconds, so that a busy machine makes no difference. Each of the inputs here took one or
# more.
BRIEF = 0.3


def seconds_for(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


@contextlib.contextmanager
def going_on(proxy: RunningProxy) -> Iterator[None]:
    """Check that the loop's thread never computes for long without giving others their turn."""
    longest = 0.0

    async def watch() -> None:
        nonlocal longest
        while True:
            began = time.thread_time()
            await asyncio.sleep(0.001)
            longest = max(longest, time.thread_time() - began)

    async def start() -> "asyncio.Task[None]":
        return asyncio.create_task(watch())

    async def stop(watching: "asyncio.Task[None]") -> None:
        await asyncio.sleep(0.01)
        watching.cancel()

    watching = proxy.call(start())
    try:
        yield
    finally:
        proxy.call(stop(watching))
    assert longest < BRIEF


class Dripping:
    """A channel to a compute that sends single bytes."""

    def __init__(self, sent: bytes) -> None:
        self._left = iter(sent)

    async def read_some(self) -> bytes:
        return bytes([next(self._left)])


def test_a_greeting_of_single_bytes_takes_time_by_its_length_only() -> None:
    greeting = messages.message(b"S", b"") * 12_000

    channel = cast(Channel, Dripping(greeting * 2))

    def read() -> None:
        with pytest.raises(messages.MalformedMessage, match="too long"):
            asyncio.run(_read_greeting(channel, ComputeAddress(Path("/none"))))

    assert seconds_for(read) < BRIEF


class Flooding:
    """A channel to a compute that sends one message without an end."""

    sent = 0

    def take_ahead(self) -> bytes:
        return b""

    async def next_ahead(self) -> bytes:
        beginning = b"" if self.sent else struct.pack("!ci", b"N", 2**31 - 1)
        self.sent += 65_536
        return beginning + bytes(65_536)


def test_a_session_that_is_not_clean_again_holds_little() -> None:
    channel = Flooding()
    peer = SimpleNamespace(address=None, channel=channel, greeting_after_key=b"")
    session = ComputeSession(cast(ComputeConnection, peer), cast(Readiness, None))
    assert not asyncio.run(session.is_reusable())
    assert channel.sent < 1_000_000


def test_a_long_length_is_refused_at_once() -> None:
    spaces = b" " * 15_500
    head = b"POST /sql HTTP/1.1\r\nHost: a\r\nContent-Length: 1" + spaces + b"," + spaces + b"1"

    def check() -> None:
        with pytest.raises(RequestRefused, match="Content-Length must be a single number"):
            parse_head(head)

    assert seconds_for(check) < BRIEF


def test_a_long_connection_string_takes_time_by_its_length_only() -> None:
    """Marks that have to be brought into order, which takes the square of their number."""
    marks = "\u0300" * 7_500 + "\u0316" * 7_500
    given = f"postgresql://alice:{marks}@ep-1.localhost/neondb"

    def read() -> Sender:
        return read_sender({"neon-connection-string": given}, ["localhost"], None)

    assert read().password.decode() == marks
    assert seconds_for(read) < 0.05
    verifier = mock_verifier("ep-1/alice", b"secret")
    assert seconds_for(lambda: check_password(verifier, marks.encode())) < 0.05


def test_a_long_list_of_explains_options_is_left_unchanged() -> None:
    query = "EXPLAIN (" + "PREFETCH," * 500_000 + "ANALYZE) SELECT 1"
    assert seconds_for(lambda: without_neons_options(query)) < BRIEF
    assert without_neons_options(query) == query


def test_requests_without_a_pause_let_others_go_on(proxy: RunningProxy) -> None:
    """A client that never authenticates gets one answer."""
    count, one = 1_000, b'{"query": ""}'
    with RawHttp(proxy) as http, going_on(proxy):
        sent = request(f"Content-Length: {len(one)}") + one
        sent += b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 9
        sending = threading.Thread(target=http.send, args=[sent * count])
        sending.start()
        for _ in range(count):
            assert [http.answer()[0] for _ in range(10)] == [200] + [404] * 9
        sending.join()


def test_a_head_of_very_many_headers_is_refused(proxy: RunningProxy) -> None:
    with RawHttp(proxy) as http:
        http.send(b"GET / HTTP/1.1\r\nHost: x\r\n" + b"a:\r\n" * 8000 + b"\r\n")
        assert http.answer()[0] == 431
        assert http.has_ended()


def test_a_body_of_single_bytes_lets_others_go_on(proxy: RunningProxy) -> None:
    body = json.dumps({"query": "SELECT 1"}).ljust(150_000).encode()
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    with RawHttp(proxy) as http, going_on(proxy):
        http.send(request("Transfer-Encoding: chunked") + chunks)
        assert http.answer()[0] == 200


@pytest.mark.parametrize(
    ("query", "modes"),
    [
        ("SELECT array_agg(1::int4) FROM generate_series(1, 1500000)", {"raw_text_output": "no"}),
        ("SELECT repeat('x', 60000000)", {}),
    ],
    ids=["array", "text"],
)
def test_a_large_value_lets_others_go_on(
    proxy: RunningProxy, query: str, modes: dict[str, str]
) -> None:
    with SqlClient(proxy) as client, going_on(proxy):
        assert len(client.post({"query": query}, **modes).content) > 1_000_000


def test_a_large_value_delays_no_other_answer(proxy: RunningProxy) -> None:
    large = "SELECT array_agg(1::int4) FROM generate_series(1, 4000000)"
    middling = "SELECT repeat('x', 20000) FROM generate_series(1, 20)"
    with SqlClient(proxy) as client, SqlClient(proxy) as other, ThreadPoolExecutor(1) as threads:
        other.post({"query": middling})
        answer = threads.submit(client.post, {"query": large}, raw_text_output="no")
        slowest, answers = 0.0, 0
        while not answer.done():
            began = time.monotonic()
            assert other.post({"query": middling}).ok
            slowest = max(slowest, time.monotonic() - began)
            answers += 1
        assert answer.result().ok
    assert answers > 3
    assert slowest < load()


def test_a_value_that_is_too_large_only_as_json_is_refused(proxy: RunningProxy) -> None:
    with SqlClient(proxy) as client:
        refused = client.post({"query": "SELECT repeat(chr(1), 20000000)"})
        assert refused.status_code == 507
        assert client.rows("SELECT 1") == [["1"]]


def test_of_a_long_error_the_beginning_is_answered(proxy: RunningProxy) -> None:
    with SqlClient(proxy) as client, going_on(proxy):
        refused = client.post({"query": "SELECT repeat(chr(1), 6000000)::int"})
        size = len(refused.content)
        assert (refused.status_code, size < 500_000) == (400, True)
        error = refused.json()
        assert (error["code"], error["severity"], error["message"][-1]) == ("22P02", "ERROR", "…")
        assert client.rows("SELECT 1") == [["1"]]


def test_the_conversions_of_an_account_let_others_go_between() -> None:
    order: list[str] = []
    begun, freed = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        freed.wait(20)

    async def go() -> None:
        conversions = Conversions()
        first = asyncio.create_task(conversions.convert(1, 100_000, wait))
        await asyncio.to_thread(begun.wait, 20)
        many = [conversions.convert(1, 100_000, lambda: order.append("one's")) for _ in range(20)]
        waiting = list(map(asyncio.create_task, many))
        await asyncio.sleep(0.01)
        first.cancel()  # its thread is not free yet
        await asyncio.sleep(0.01)
        other = conversions.convert(2, 100_000, lambda: order.append("another's"))
        waiting.append(asyncio.create_task(other))
        await asyncio.sleep(0.01)
        freed.set()
        await asyncio.gather(*waiting)
        conversions.close()

    asyncio.run(go())
    assert order == ["another's", *["one's"] * 20]


def test_an_account_leaves_memory_to_others() -> None:
    budget = MemoryBudget(1000)
    with budget.reserve() as one, budget.reserve() as another, budget.reserve() as third:
        one.account_id = another.account_id = 1
        third.account_id = 2
        one.grow(300)
        another.grow(200)
        with pytest.raises(MemoryExhausted):
            another.grow(1)
        third.grow(250)
        with pytest.raises(MemoryExhausted):
            third.grow(1)
    with budget.reserve() as again:
        again.account_id = 1
        again.grow(500)


def test_an_answer_takes_memory_until_the_client_has_read_it(
    proxy: RunningProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy.proxy.queries, "memory", MemoryBudget(100_000_000))
    large = {"query": "SELECT repeat('x', 30000000)"}
    with RawHttp(proxy) as slow, SqlClient(proxy) as client:
        slow.post(json.dumps(large).encode())
        assert slow.read(1)
        assert client.post(large).status_code == 503
        assert client.rows("SELECT 1") == [["1"]]
    with SqlClient(proxy) as client:
        assert client.post(large).status_code == 200


def test_a_body_without_progress_is_not_waited_for(
    proxy: RunningProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_BODY_TIMEOUT", 0.5)
    with RawHttp(proxy) as http:
        http.post(b" " * 1_000_000, length=2_000_000)
        assert http.answer()[0] == 408


class FullSocket:
    """A channel whose peer reads nothing until `is_full` is False."""

    def __init__(self, received: bytes) -> None:
        self.received, self.sent = received, b""
        self.is_full, self.is_announced = True, False

    def receive(self, size: int) -> bytes:
        if not self.received:
            raise BlockingIOError
        data, self.received = self.received[:size], self.received[size:]
        return data

    def send(self, data: bytes) -> int:
        if self.is_full:
            raise BlockingIOError
        self.sent += data
        return len(data)

    def announce_input(self) -> None:
        self.is_announced = True

    def withdraw_input(self) -> None:
        self.is_announced = False


def test_answers_to_pings_do_not_pile_up() -> None:
    channel = FullSocket(frame(b"x" * 125, opcode=9) * 90)
    framing = WebSocketFraming(channel, b"")  # type: ignore[arg-type]
    while channel.received or channel.is_announced:
        with pytest.raises(BlockingIOError):
            framing.receive(1000)
    channel.is_full = False
    framing.send(b"data")
    assert len(channel.sent) < 300
    assert channel.sent.endswith(b"data")


def test_small_frames_are_read_a_few_at_a_time() -> None:
    channel = FullSocket(b"".join(frame(bytes([i % 256])) for i in range(2000)))
    framing = WebSocketFraming(channel, b"")  # type: ignore[arg-type]
    parts = [framing.receive(65536)]
    while channel.is_announced or channel.received:
        with contextlib.suppress(BlockingIOError):
            parts.append(framing.receive(65536))
    assert b"".join(parts) == bytes(i % 256 for i in range(2000))
    assert max(map(len, parts)) < 100


@pytest.mark.parametrize(("opcode", "text"), [(9, b""), (10, b"x"), (2, b"")])
def test_frames_without_data_end_a_websocket(proxy: RunningProxy, opcode: int, text: bytes) -> None:
    with RawHttp(proxy) as raw:
        raw.send(request(*UPGRADE, first="GET /v2 HTTP/1.1"))
        assert raw.answer()[0] == 101
        raw.send(frame(text, opcode=opcode) * 150)
        while (head := raw.read(2))[0] != 0x88:
            raw.read(head[1])
        assert struct.unpack("!H", raw.read(2)) == (1008,)


def test_a_websocket_may_send_pings_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(websocket, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    channel = FullSocket(b"")
    framing = WebSocketFraming(channel, b"")  # type: ignore[arg-type]
    for _ in range(1000):
        clock[0] += 1
        channel.received = frame(b"", opcode=9)
        with pytest.raises(BlockingIOError):
            framing.receive(1000)


@pytest.mark.parametrize("digits", [5_000, SMALL_BODY_BYTES + 1])
def test_an_integer_of_too_many_digits_is_refused_in_words_of_ours(digits: int) -> None:
    with pytest.raises(RequestRefused, match=r"body: an integer has too many digits$"):
        read_json(b"9" * digits)

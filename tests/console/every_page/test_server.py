"""What the console's gunicorn worker allows a client, without a server."""

import io
from collections.abc import Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import gevent
import gevent.socket
import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from gunicorn.config import Config

from console import server
from console.server import ConsoleWorker, WholeBody, make_room, origin_of
from console.sign_in import sessions
from tests.console.browser import Browser


class Reader:
    """Reads from texts, as gunicorn does from a socket; after the last one, nothing comes."""

    def __init__(self, *texts: bytes, length: int, ends: bool = False) -> None:
        self.texts, self.length, self.ends = list(texts), length, ends

    def read(self, size: int) -> bytes:
        if not self.texts and not self.ends and self.length:
            gevent.sleep(60)
        data = self.texts.pop(0) if self.texts else b""
        self.length -= min(self.length, size)
        return data


def test_a_whole_body_is_read() -> None:
    body = WholeBody(Reader(b"ab", b"c", length=3))
    assert [body.read(2), body.read(8), body.read(8)] == [b"ab", b"c", b""]


def test_a_body_that_ends_early_is_refused() -> None:
    with pytest.raises(ConnectionResetError):
        WholeBody(Reader(b"a", length=3, ends=True)).read(1024)


def test_a_body_must_arrive_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "BODY_TIMEOUT", 0.05)
    with pytest.raises(TimeoutError):
        WholeBody(Reader(length=3)).read(1024)


class Client:
    """A connection, which may be ended."""

    def __init__(self) -> None:
        self.is_ended = False
        self._sock = SimpleNamespace(shutdown=lambda how: setattr(self, "is_ended", True))


def test_the_origin_with_the_most_connections_makes_room() -> None:
    one, first, second = Client(), Client(), Client()
    taken: dict[Any, str] = {one: "192.0.2.1", first: "192.0.2.2", second: "192.0.2.2"}
    make_room(taken, 4)
    assert not first.is_ended
    make_room(taken, 3)
    assert [one.is_ended, first.is_ended, second.is_ended] == [False, True, False]


def answer(environ: dict[str, Any], start_response: Any) -> list[bytes]:
    environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH", 0)))
    start_response("200 OK", [("Content-Length", str(8 << 20))])
    return [bytes(8 << 20)]


@pytest.fixture
def worker() -> Iterator[ConsoleWorker]:
    """A worker that serves the connections which the test gives it. It takes up to 7 of them."""
    config = Config()
    config.set("timeout", 1)
    config.set("worker_connections", 8)
    worker = ConsoleWorker(1, 1, [], None, 1, config, Mock())
    worker.wsgi = answer
    yield worker
    worker.tmp.close()


def connect(worker: ConsoleWorker, text: bytes, address: str = "192.0.2.1") -> Any:
    """Send a text by a new connection. Returns its greenlet, which ends with the connection."""
    ours, serving = connected(worker, address)
    serving.link(lambda _: ours.close())
    ours.sendall(text)
    gevent.sleep(0)
    return serving


def connected(worker: ConsoleWorker, address: str = "192.0.2.1") -> Any:
    """Return a client's socket, and the greenlet that serves it."""
    ours, theirs = gevent.socket.socketpair()
    listener = SimpleNamespace(getsockname=lambda: ("127.0.0.1", 8000))
    return ours, gevent.spawn(worker.handle, listener, theirs, (address, 1))


HALF_A_FORM = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nkey="


@pytest.mark.parametrize("text", [HALF_A_FORM, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"])
def test_a_client_that_sends_no_more_or_reads_no_more_is_disconnected(
    worker: ConsoleWorker, monkeypatch: pytest.MonkeyPatch, text: bytes
) -> None:
    monkeypatch.setattr(server, "BODY_TIMEOUT", 0.5)
    serving = connect(worker, text)
    serving.join(20)
    assert serving.dead
    assert worker.connections == {}


def test_half_sent_forms_of_one_address_make_room_for_others(worker: ConsoleWorker) -> None:
    half = [connect(worker, HALF_A_FORM) for _ in range(10)]
    other = connect(worker, HALF_A_FORM, "192.0.2.2")
    gevent.joinall(half, timeout=20, count=4)
    assert [one.dead for one in (*half, other)] == [True] * 4 + [False] * 7
    gevent.killall([*half, other])


def refuse(environ: dict[str, Any], start_response: Any) -> list[bytes]:
    start_response("413 Too Large", [("Content-Length", "2")])
    return [environ["PATH_INFO"].encode()[:2]]


def post(length: int) -> bytes:
    return b"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % length


def test_a_body_that_the_answer_does_not_need_is_not_read(
    worker: ConsoleWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "DRAIN_TIMEOUT", 0.5)
    worker.wsgi = refuse
    client, serving = connected(worker)
    sent = 0
    with client, suppress(OSError):
        client.sendall(post(10**12))
        while sent < 10**9:
            sent += client.send(bytes(1 << 20))
    assert sent < 20 << 20
    serving.join(20)
    assert serving.dead


def test_who_sends_a_large_body_gets_the_answer(worker: ConsoleWorker) -> None:
    worker.wsgi = refuse
    client, _ = connected(worker)
    with client:
        client.sendall(post(5 << 20) + bytes(5 << 20))
        received = b"".join(iter(lambda: client.recv(65536), b""))
    assert received.startswith(b"HTTP/1.1 413 ")
    assert b"Connection: close" in received


def test_a_small_unread_body_leaves_the_connection_open(worker: ConsoleWorker) -> None:
    worker.wsgi = refuse
    client, serving = connected(worker)
    for _ in range(2):
        client.sendall(post(5000) + bytes(5000))
        received = b""
        while not received.endswith(b"\r\n\r\n/x"):
            received += client.recv(65536)
        assert b"Connection: keep-alive" in received
    client.close()
    serving.join()


def test_a_large_body_lets_others_have_their_turn(worker: ConsoleWorker) -> None:
    turns = 0

    def count() -> None:
        nonlocal turns
        while True:
            gevent.sleep(0)
            turns += 1

    texts = [bytes(1000)] * 100
    body = WholeBody(Reader(*texts, length=100_000))
    counting = gevent.spawn(count)
    for _ in texts:
        body.read(1000)
    counting.kill()
    assert turns >= 90


def test_no_header_moves_a_path(worker: ConsoleWorker) -> None:
    worker.wsgi = refuse
    client, _ = connected(worker, "127.0.0.1")
    with client:
        client.sendall(
            b"GET /y/x HTTP/1.1\r\nHost: x\r\nSCRIPT_NAME: /y\r\nConnection: close\r\n\r\n"
        )
        assert b"".join(iter(lambda: client.recv(65536), b"")).endswith(b"\r\n\r\n/y")


@pytest.mark.parametrize("header", [b"X-Forwarded-Proto: https", b"X-Forwarded-Ssl: on"])
def test_no_header_of_a_client_says_that_it_used_tls(worker: ConsoleWorker, header: bytes) -> None:
    def tell(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        start_response("200 OK", [])
        return [environ["wsgi.url_scheme"].encode()]

    worker.wsgi = tell
    client, _ = connected(worker, "127.0.0.1")
    with client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + header + b"\r\n\r\n")
        assert b"http\r\n" in b"".join(iter(lambda: client.recv(65536), b""))


@pytest.mark.parametrize(
    "head",
    [
        (b"Cookie: " + b"a;" * 4000 + b"\r\n") * 5,
        b"Content-Type: " + b";" * 2000 + b"\r\n",
    ],
)
def test_a_long_head_is_refused_before_it_is_used(worker: ConsoleWorker, head: bytes) -> None:
    """Python and Django take long for cookies and parameters: 0.1 s for 800 kB."""
    worker.wsgi = Mock()
    client, _ = connected(worker)
    with client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n" + head + b"\r\n")
        assert b"".join(iter(lambda: client.recv(65536), b"")).startswith(b"HTTP/1.1 431 ")
    worker.wsgi.assert_not_called()


@pytest.mark.parametrize(
    ("address", "origin"),
    [
        (("192.0.2.1", 5), "192.0.2.1"),
        (("::ffff:192.0.2.1", 5, 0, 0), "192.0.2.1"),
        (("2001:db8:1:2:3::4", 5, 0, 0), "2001:db8:1:2::"),
        (("fe80::1%eth0", 5, 0, 3), "fe80::"),
        ("", ""),
    ],
)
def test_what_a_connection_is_counted_as(address: Any, origin: str) -> None:
    assert origin_of(address) == origin


def send(browser: Browser, size: int) -> Any:
    file = SimpleUploadedFile("much.csv", bytes(size))
    return browser.post("/projects/p/tables/import?table=x", {"file": file})


def test_only_who_is_signed_in_may_send_a_large_file(settings: Any) -> None:
    settings.MANAGEMENT_API_URL = "http://127.0.0.1:9/api/v2"
    browser = Browser()
    answer = send(browser, 5 << 20)
    assert (answer.status_code, answer["Location"].partition("?")[0]) == (302, "/sign-in")
    browser.cookies[settings.SESSION_COOKIE_NAME] = "forged"
    assert send(browser, 5 << 20).status_code == 302
    sign_in, session = sessions.SignIn("key", sessions.Account()), sessions.SessionStore()
    session.update({sessions.SIGN_INS: [sign_in], sessions.PRESENT: sign_in.id})
    session.save()
    browser.cookies[settings.SESSION_COOKIE_NAME] = session.session_key or ""
    assert send(browser, 5 << 20).status_code not in (302, 413)
    assert send(browser, 10 << 20).status_code == 413


def test_a_form_that_ends_early_is_not_used() -> None:
    class Broken(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            raise ConnectionResetError

    form = "application/x-www-form-urlencoded"
    read: Any = {"wsgi.input": Broken()}
    answer = Browser().generic("POST", "/sign-in", "key=x", form, **read)
    assert answer.status_code == 408

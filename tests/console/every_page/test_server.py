"""What the console's gunicorn worker allows a client, without a server."""

import io
from types import SimpleNamespace
from typing import Any

import gevent
import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client as Browser
from gunicorn.workers.ggevent import GeventWorker

from console import server
from console.server import ConsoleWorker, WholeBody, make_room, origin_of
from console.sign_in import sessions


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
    """A connection; what was done to it."""

    def __init__(self) -> None:
        self.timeouts: list[float | None] = []
        self.is_ended = False
        self._sock = SimpleNamespace(shutdown=lambda how: setattr(self, "is_ended", True))

    def settimeout(self, seconds: float | None) -> None:
        self.timeouts.append(seconds)


def test_a_client_that_does_not_accept_its_answer_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worker, client, another = object.__new__(ConsoleWorker), Client(), Client()
    worker.cfg, worker.connections = SimpleNamespace(timeout=180), {client: "a", another: "a"}

    def answer(*args: Any) -> None:
        # It counts as one of its address also while its request is being served.
        assert list(worker.connections) == [another, client]
        raise TimeoutError

    monkeypatch.setattr(GeventWorker, "handle_request", answer)
    request = SimpleNamespace(body=SimpleNamespace(reader=Reader(length=0)))
    with pytest.raises(StopIteration):
        worker.handle_request("", request, client, ("192.0.2.1", 1))
    assert client.timeouts == [180, None]


def test_the_origin_with_the_most_connections_makes_room() -> None:
    one, first, second = Client(), Client(), Client()
    taken: dict[Any, str] = {one: "192.0.2.1", first: "192.0.2.2", second: "192.0.2.2"}
    make_room(taken, 4)
    assert not first.is_ended
    make_room(taken, 3)
    assert [one.is_ended, first.is_ended, second.is_ended] == [False, True, False]


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

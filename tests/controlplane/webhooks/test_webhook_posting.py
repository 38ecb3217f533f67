"""Messages are posted within limits, to addresses that were checked, whatever the receiver does."""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from controlplane.webhooks import lines, posting
from controlplane.webhooks.posting import Outcome, post
from tests.support.certificates import certificate
from tests.support.receiver import Answer, Receiver, receiving

pytestmark = pytest.mark.slow

BODY = b'{"type":"test"}'


@pytest.fixture(autouse=True)
def allowed(settings: Any) -> None:
    """Allow only the first loopback address. The others stay private."""
    settings.WEBHOOK_ALLOWED_NETWORKS = [ip_network("127.0.0.1/32")]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


@pytest.fixture
def private() -> Iterator[Receiver]:
    """A receiver at an address that may not be called."""
    with receiving("127.0.0.2") as made:
        yield made


def posted(url: str, *, timeout: float = 5.0) -> Outcome:
    return post(url, {"webhook-id": "evt-1"}, BODY, timeout=timeout)


def test_what_the_receiver_gets(receiver: Receiver) -> None:
    outcome = posted(receiver.url + "?a=b")
    assert (outcome.error, outcome.status, outcome.body) == ("", 200, b"taken")
    assert 0 < outcome.duration < 5
    (message,) = receiver.messages
    assert (message.method, message.path, message.body) == ("POST", "/hook?a=b", BODY)
    assert message.headers["host"] == f"127.0.0.1:{receiver.server_port}"
    assert message.headers["webhook-id"] == "evt-1"


def test_proxy_settings_are_ignored(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert not posted(receiver.url).error


@pytest.mark.parametrize("status", [200, 201, 204, 299])
def test_success(receiver: Receiver, status: int) -> None:
    receiver.answers = lambda message: Answer(status, b"")
    outcome = posted(receiver.url)
    assert (outcome.error, outcome.status) == ("", status)


@pytest.mark.parametrize("status", [301, 302, 303, 304, 400, 404, 410, 429, 500, 503])
def test_failure(receiver: Receiver, status: int) -> None:
    receiver.answers = lambda message: Answer(status, b"", location="/elsewhere")
    outcome = posted(receiver.url)
    assert outcome.status == status
    assert outcome.error.startswith(f"answered {status}")
    assert len(receiver.messages) == 1


def test_only_the_beginning_of_an_answer_is_read(receiver: Receiver) -> None:
    receiver.answers = lambda message: Answer(body=b"x" * 10_000_000)
    assert posted(receiver.url).body == b"x" * posting.MAX_BODY_BYTES


class TestRedirects:
    @pytest.mark.parametrize("status", [307, 308])
    def test_are_followed_with_method_and_body(self, receiver: Receiver, status: int) -> None:
        receiver.answers = lambda message: (
            Answer(status, location="/new?x=y") if message.path == "/hook" else Answer()
        )
        assert posted(receiver.url).error == ""
        assert [(m.method, m.path, m.body) for m in receiver.messages] == [
            ("POST", "/hook", BODY),
            ("POST", "/new?x=y", BODY),
        ]

    def test_are_not_followed_endlessly(self, receiver: Receiver) -> None:
        receiver.answers = lambda message: Answer(307, location="/hook")
        assert posted(receiver.url).error == "not called: more than 3 redirects"
        assert len(receiver.messages) == 4

    def test_to_a_private_address_are_refused(self, receiver: Receiver, private: Receiver) -> None:
        receiver.answers = lambda message: Answer(307, location=private.url)
        assert "is not a public address" in posted(receiver.url).error
        assert private.messages == []

    @pytest.mark.parametrize("location", ["ftp://127.0.0.1/", "file:///etc/passwd", "http://[x"])
    def test_to_other_schemes_are_refused(self, receiver: Receiver, location: str) -> None:
        receiver.answers = lambda message: Answer(307, location=location)
        assert posted(receiver.url).error.startswith("not called: ")


class TestAddresses:
    def test_a_private_address_is_not_called(self, private: Receiver) -> None:
        assert posted(private.url).error == (
            "not called: 127.0.0.2 is not a public address, and not in "
            "PERCH_WEBHOOK_ALLOWED_NETWORKS"
        )
        assert private.messages == []

    @pytest.mark.parametrize("host", ["localhost", "127.1", "0x7f000001", "2130706433"])
    def test_a_name_of_a_private_address_is_not_called(
        self, receiver: Receiver, settings: Any, host: str
    ) -> None:
        settings.WEBHOOK_ALLOWED_NETWORKS = [ip_network("10.0.0.0/8")]
        outcome = posted(f"http://{host}:{receiver.server_port}/")
        assert outcome.error == f"not called: {host} has no public address"
        assert receiver.messages == []

    def test_a_name_is_resolved_once_and_the_checked_address_is_called(
        self, receiver: Receiver, private: Receiver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        answers = ["127.0.0.1", "127.0.0.2"]
        ask_for = names(monkeypatch, "rebinding.example", answers)
        outcome = posted(f"http://rebinding.example:{receiver.server_port}/")
        assert (outcome.error, len(receiver.messages)) == ("", 1)
        assert ask_for == ["rebinding.example"]
        host = receiver.messages[0].headers["host"]
        assert host == f"rebinding.example:{receiver.server_port}"
        # The next resolution returns the other address, which may not be called.
        assert "public address" in posted(f"http://rebinding.example:{private.server_port}/").error
        assert private.messages == []

    def test_plain_http_is_used_only_if_the_operator_allows_it(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        names(monkeypatch, "public.example", ["93.184.216.34"])
        assert posted("http://public.example/").error == (
            "not called: public.example must be called over https"
        )

    def test_a_name_that_does_not_resolve(self) -> None:
        outcome = posted("https://nobody.invalid/")
        assert outcome.error == "the name of the host could not be resolved"


class TestLimits:
    def test_a_receiver_that_does_not_listen(self) -> None:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{unused.getsockname()[1]}/"
            assert posted(url).error == "connection refused"

    def test_a_receiver_that_hangs(self, receiver: Receiver) -> None:
        receiver.answers = lambda message: None
        outcome = posted(receiver.url, timeout=0.3)
        assert (outcome.error, outcome.status) == ("no answer within 0.3 seconds", None)
        assert outcome.duration < 2

    @pytest.mark.parametrize(
        "beginning", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 100 Continue\r\n\r\n"]
    )
    def test_a_receiver_that_sends_its_head_byte_by_byte(
        self, receiver: Receiver, beginning: bytes
    ) -> None:
        receiver.answers = lambda message: None
        receiver.holds = lambda connection: drip(receiver, connection, beginning, b"x: y\r\n")
        outcome = posted(receiver.url, timeout=0.5)
        assert outcome.duration < 2
        assert outcome.status is None
        assert outcome.error

    def test_a_receiver_that_sends_its_body_byte_by_byte_has_answered(
        self, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(posting, "BODY_TIMEOUT", 1.0)
        head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"
        receiver.answers = lambda message: None
        receiver.holds = lambda connection: drip(receiver, connection, head, b"z")
        outcome = posted(receiver.url, timeout=20)
        assert outcome.duration < 3
        assert (outcome.error, outcome.status) == ("", 200)
        assert set(outcome.body) == set(b"z")

    @pytest.mark.parametrize(
        "again",
        [
            b"HTTP/1.1 100 Continue\r\n\r\n",
            b"HTTP/1.1 100 Continue\r\nx: " + b"y" * 60_000 + b"\r\n\r\n",
            b"HTTP/1.1 200 OK\r\n" + (b"Set-Cookie: " + b"y" * 60_000 + b"\r\n") * 9,
        ],
    )
    def test_a_receiver_whose_head_does_not_end(self, receiver: Receiver, again: bytes) -> None:
        receiver.answers = lambda message: None
        receiver.holds = lambda connection: flood(receiver, connection, b"", again)
        outcome = posted(receiver.url)
        assert (outcome.error, outcome.status) == ("no HTTP response: AnswerTooLong", None)

    @pytest.mark.parametrize(
        ("body", "read"),
        [
            (b"-1\r\n", b""),
            (b"-5\r\n", b""),
            (b"zz\r\n", b""),
            (b"fffffffffffffffff\r\n", b"z" * posting.MAX_BODY_BYTES),
            (b"1;" + b"x" * 9 + b"\r\nz\r\n1\r\nz\r\n-1\r\n", b""),
        ],
    )
    def test_a_receiver_with_invalid_chunks(
        self, receiver: Receiver, body: bytes, read: bytes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        taken = [0]
        readinto = posting._Bounded.readinto

        def counted(self: posting._Bounded, buffer: Any) -> int | None:
            count = readinto(self, buffer)
            taken[0] += count or 0
            return count

        monkeypatch.setattr(posting._Bounded, "readinto", counted)
        head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        receiver.answers = lambda message: None
        receiver.holds = lambda connection: flood(receiver, connection, head + body, b"z" * 1000)
        outcome = posted(receiver.url)
        assert (outcome.error, outcome.status, outcome.body) == ("", 200, read)
        assert taken[0] <= posting.MAX_READ_BYTES

    def test_a_receiver_that_does_not_speak_http(self, receiver: Receiver) -> None:
        receiver.answers = lambda message: None
        receiver.holds = lambda connection: connection.sendall(b"220 mail.example ESMTP\r\n")
        assert posted(receiver.url).error == "no HTTP response: BadStatusLine"

    def test_a_receiver_that_closes_at_once(self, receiver: Receiver) -> None:
        receiver.answers = lambda message: None
        receiver.holds = lambda connection: connection.shutdown(socket.SHUT_RDWR)
        assert posted(receiver.url).error == "the connection was closed without an answer"

    def test_no_receiver_is_waited_for_while_the_process_stops(
        self, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(lines, "ending", threading.Event())
        receiver.answers = lambda message: None
        broken_off: list[BaseException] = []

        def attempt() -> None:
            try:
                posted(receiver.url, timeout=60)
            except lines.BrokenOff as error:
                broken_off.append(error)

        thread = threading.Thread(target=attempt)
        thread.start()
        receiver.await_messages(1)
        lines.break_off()
        thread.join(5)
        assert broken_off
        with pytest.raises(lines.BrokenOff):
            posted(receiver.url)
        assert len(receiver.messages) == 1


class TestTls:
    @pytest.fixture
    def named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[tuple[Receiver, list[str]]]:
        """Run a receiver with a trusted certificate for hooks.example. Yields it and the list of
        names that were resolved; all names below example lead to it."""
        path = certificate(tmp_path, "hooks.example")
        monkeypatch.setenv("SSL_CERT_FILE", str(path))
        posting._tls.cache_clear()
        asked: list[str] = []
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(path)
        context.sni_callback = lambda _, name, __: asked.append(name)
        with receiving(tls=context) as made:
            for host in ("hooks.example", "other.example"):
                names(monkeypatch, host, ["127.0.0.1"] * 9)
            yield made, asked
        posting._tls.cache_clear()

    def test_the_name_is_verified_although_an_address_is_called(
        self, named: tuple[Receiver, list[str]]
    ) -> None:
        receiver, asked = named
        outcome = posted(f"https://hooks.example:{receiver.server_port}/hook")
        assert (outcome.error, asked) == ("", ["hooks.example"])
        outcome = posted(f"https://other.example:{receiver.server_port}/hook")
        assert outcome.error.startswith("TLS: Hostname mismatch")
        assert len(receiver.messages) == 1

    def test_a_certificate_of_an_unknown_authority(
        self, named: tuple[Receiver, list[str]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        receiver, _ = named
        monkeypatch.delenv("SSL_CERT_FILE")
        posting._tls.cache_clear()
        outcome = posted(f"https://hooks.example:{receiver.server_port}/hook")
        assert outcome.error.startswith("TLS: self-signed certificate")
        assert receiver.messages == []

    def test_a_handshake_that_does_not_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            outcome = posted(f"https://127.0.0.1:{silent.getsockname()[1]}/", timeout=0.3)
        assert outcome.duration < 2
        assert outcome.error == "no answer within 0.3 seconds"


def drip(receiver: Receiver, connection: socket.socket, first: bytes, again: bytes) -> None:
    """Send something every few milliseconds until the connection is closed."""
    with suppress(OSError):
        connection.sendall(first)
        while not receiver.closing.wait(0.02):
            connection.sendall(again)


def flood(receiver: Receiver, connection: socket.socket, first: bytes, again: bytes) -> None:
    """Send as fast as possible."""
    with suppress(OSError):
        connection.sendall(first)
        while not receiver.closing.is_set():
            connection.sendall(again)


def names(monkeypatch: pytest.MonkeyPatch, host: str, addresses: list[str]) -> list[str]:
    """Make the resolver return one address after another for the host. Returns the list of resolved
    names."""
    asked: list[str] = []
    really = socket.getaddrinfo

    def getaddrinfo(name: str, port: int, *args: Any, **named: Any) -> Any:
        if name != host:
            return really(name, port, *args, **named)
        asked.append(name)
        return really(addresses.pop(0), port, *args, **named)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return asked

"""Posts a message to a receiver that is a stranger's: bounded in time and size, and only to
addresses that may be called.

A name is resolved once, and the connection goes to an address that was looked at: who answers the
name differently the next time is not asked. There are no proxies here, and nothing is kept of one
request for another.
"""

import http.client
import io
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from threading import Thread
from typing import Any
from urllib.parse import urljoin

import certifi

from controlplane.webhooks.addresses import is_allowed_by_operator, may_be_called
from controlplane.webhooks.lines import Line
from controlplane.webhooks.urls import NotAllowed, Target, target_of

# Seconds to find out addresses, and to connect to one, TLS included.
RESOLVE_WITHIN, CONNECT_WITHIN = 5.0, 5.0
# Seconds by which a line is cut before its socket gives up by itself, as that is for one read.
CUT_FIRST = 1.0
# Of one name; many have an IPv6 and an IPv4 one, and some receivers one that is dead.
MOST_ADDRESSES = 3
# With these the request is made again as it was. To follow others would be to lose the body.
FOLLOWED, MOST_REDIRECTS = (307, 308), 3
# Bytes that are read of an answer, and seconds that its body has: what counts is the status.
LONGEST_BODY, BODY_WITHIN = 4096, 2.0
# Bytes that are read of an answer in all: provisional answers, its head, and how its body is cut
# into chunks. Whoever sends more is a stranger who wants our memory, or our time.
LONGEST_ANSWER = 256 << 10


@dataclass(frozen=True)
class Outcome:
    """What became of an attempt to deliver a message."""

    error: str  # in words; "" where the receiver has taken it
    status: int | None  # of the HTTP answer, where there was one
    body: bytes  # its beginning
    duration: float  # seconds


def post(url: str, headers: Mapping[str, str], body: bytes, *, within: float) -> Outcome:
    """Post the body and see how it is answered, within so many seconds in all.

    Raises `lines.BrokenOff` where this process ends meanwhile: nobody knows then what the
    receiver has got.
    """
    began = time.monotonic()
    with Line(within=within) as line:
        try:
            status, answered = _follow(url, headers, body, line)
        # The last is what Python's own parser says of numbers that it did not expect.
        except (NotAllowed, OSError, http.client.HTTPException, ValueError) as error:
            line.check()
            return Outcome(_words_of(error, line, within), None, b"", time.monotonic() - began)
    return Outcome(_judge(status), status, answered, time.monotonic() - began)


def _follow(url: str, headers: Mapping[str, str], body: bytes, line: Line) -> tuple[int, bytes]:
    """The status of the answer, and the beginning of its body."""
    for _ in range(MOST_REDIRECTS + 1):
        target = target_of(url)
        with _connected(target, line) as connected:
            connection = http.client.HTTPConnection(target.host, target.port)
            connection.response_class = _Answer
            connection.sock = connected
            connection.request("POST", target.path, body, {"Host": target.host_header, **headers})
            answer = connection.getresponse()
            # A head that was cut off reads like one that has ended.
            line.left()
            leads_to = answer.headers.get("Location", "")
            if answer.status not in FOLLOWED or not leads_to:
                return answer.status, _beginning(answer, line)
            url = _joined(url, leads_to)
    raise NotAllowed(f"more than {MOST_REDIRECTS} redirects")


class AnswerTooLong(http.client.HTTPException):
    """More than LONGEST_ANSWER bytes."""


class _Bounded(io.RawIOBase):
    """The first LONGEST_ANSWER bytes of what comes from a socket."""

    def __init__(self, source: io.RawIOBase) -> None:
        self._source = source
        self._left = LONGEST_ANSWER

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if self._left <= 0:
            raise AnswerTooLong
        count = self._source.readinto(memoryview(buffer)[: self._left])
        self._left -= count or 0
        return count

    def close(self) -> None:
        self._source.close()
        super().close()


class _Answer(http.client.HTTPResponse):
    def __init__(self, sock: socket.socket, *args: Any, **named: Any) -> None:
        super().__init__(sock, *args, **named)
        self.fp = io.BufferedReader(_Bounded(self.fp.detach()))


def _joined(url: str, location: str) -> str:
    try:
        return urljoin(url, location)
    except ValueError:
        raise NotAllowed("redirected to what is no URL") from None


def _beginning(answer: http.client.HTTPResponse, line: Line) -> bytes:
    line.shorten(BODY_WITHIN)
    try:
        return answer.read(LONGEST_BODY)
    except http.client.IncompleteRead as error:
        return error.partial
    except (OSError, http.client.HTTPException, ValueError):
        return b""


@contextmanager
def _connected(target: Target, line: Line) -> Iterator[socket.socket]:
    """A connection to the target, with TLS for https; closed at the end."""
    connected = _dial(target, line)
    try:
        if target.scheme == "https":
            # Takes the plain one's place before it shakes hands, so that this can be cut too.
            connected = secure = _tls().wrap_socket(
                connected, server_hostname=target.host, do_handshake_on_connect=False
            )
            line.hold(secure)
            secure.settimeout(min(CONNECT_WITHIN, line.left() + CUT_FIRST))
            secure.do_handshake()
        connected.settimeout(line.left() + CUT_FIRST)
        yield connected
    finally:
        line.let_go()
        connected.close()


def _dial(target: Target, line: Line) -> socket.socket:
    """A connection to the first of the target's addresses that takes it."""
    failed: OSError | None = None
    for address in _addresses(target, line)[:MOST_ADDRESSES]:
        try:
            connected = socket.create_connection(
                (address, target.port), timeout=min(CONNECT_WITHIN, line.left())
            )
        except OSError as error:
            failed = error
        else:
            line.hold(connected)
            return connected
    assert failed is not None
    raise failed


def _addresses(target: Target, line: Line) -> list[str]:
    """The addresses of the target's name that may be called, at least one. Raises NotAllowed."""
    found = list(dict.fromkeys(_resolve(target, within=min(RESOLVE_WITHIN, line.left()))))
    callable_ones = [address for address in found if may_be_called(address)]
    if not callable_ones:
        raise NotAllowed(f"{target.host} has no address of the Internet")
    if target.scheme == "https":
        return callable_ones
    vouched_for = [address for address in callable_ones if is_allowed_by_operator(address)]
    if not vouched_for:
        raise NotAllowed(f"{target.host} must be called by https")
    return vouched_for


def _resolve(target: Target, *, within: float) -> list[str]:
    """In a thread of its own, as a resolver cannot be told how long to wait."""
    answer: Future[list[Any]] = Future()

    def ask() -> None:
        try:
            found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
        except OSError as error:
            answer.set_exception(error)
        except UnicodeError:
            # A label that is empty, or has more than 63 characters.
            answer.set_exception(socket.gaierror(socket.EAI_NONAME, "no name of a host"))
        else:
            answer.set_result(found)

    Thread(target=ask, name="resolve", daemon=True).start()
    return [str(address[0]) for *_, address in answer.result(within)]


@cache
def _tls() -> ssl.SSLContext:
    """Checks names and certificates: against the system's authorities, SSL_CERT_FILE's or
    SSL_CERT_DIR's, and certifi's, as a host may have none of its own."""
    context = ssl.create_default_context()
    context.load_verify_locations(certifi.where())
    return context


def _judge(status: int) -> str:
    if 200 <= status < 300:
        return ""
    if 300 <= status < 400:
        return f"answered {status}: of redirects only 307 and 308 are followed"
    return f"answered {status}"


def _words_of(error: Exception, line: Line, within: float) -> str:
    """What the webhook's owner reads."""
    if isinstance(error, NotAllowed):
        return f"not called: {error}"
    if line.is_cut:
        return f"no answer within {within:g} seconds"
    match error:
        case socket.gaierror():
            return "the name of the host could not be resolved"
        case ssl.SSLCertVerificationError():
            return f"TLS: {error.verify_message}"
        case ssl.SSLError():
            return f"TLS: {error.reason or 'the connection was closed'}"
        case TimeoutError():
            return "no connection in time"
        case http.client.RemoteDisconnected():
            return "the connection was closed without an answer"
        case OSError(strerror=str(words)):
            return words[:1].lower() + words[1:]
    return f"no answer in HTTP: {type(error).__name__}"

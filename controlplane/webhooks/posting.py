"""Posts a message to an untrusted receiver, with limits of time and size, and only to addresses
that are allowed.

A host name is resolved once, and the connection is made to an address that was checked. So a name
server that returns another address the second time cannot bypass the check. HTTP proxies are not
used, and no state is kept between requests.
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

from controlplane.webhooks.lines import Line
from controlplane.webhooks.urls import (
    NotAllowed,
    Target,
    is_allowed_by_operator,
    may_be_called,
    target_of,
)

# Seconds for resolving a name, and for connecting to one address; the TLS handshake has its own
# CONNECT_TIMEOUT.
RESOLVE_TIMEOUT, CONNECT_TIMEOUT = 5.0, 5.0
# Seconds by which a socket's timeout exceeds the time that its line has left, so that the line is
# cut first. The socket's timeout applies to each read only.
CUT_MARGIN = 1.0
# Addresses of one name that are tried. Many names have an IPv6 and an IPv4 address, and for some
# receivers one of them does not work.
MAX_ADDRESSES = 3
# The redirects that are followed, and how many. These statuses keep the method and the body; other
# redirects would lose the body.
REDIRECT_STATUSES, MAX_REDIRECTS = (307, 308), 3
# Bytes that are read of a response's body, and the seconds for it. Only the status matters.
MAX_BODY_BYTES, BODY_TIMEOUT = 4096, 2.0
# Bytes that are read of a response in all, including interim responses (1xx), its head and the
# framing of chunks. A receiver that sends more is trying to exhaust memory or time.
MAX_READ_BYTES = 256 << 10


@dataclass(frozen=True)
class Outcome:
    """The outcome of an attempt to deliver a message."""

    error: str  # a message; "" if the receiver has accepted it
    status: int | None  # of the HTTP response; None if there was none
    body: bytes  # the beginning of the response's body
    duration: float  # seconds


def post(url: str, headers: Mapping[str, str], body: bytes, *, timeout: float) -> Outcome:
    """Post the body and return the outcome; the whole attempt takes at most `timeout` seconds.

    Raises `lines.BrokenOff` if this process is to exit meanwhile. It is then unknown whether the
    receiver has got the message.
    """
    began = time.monotonic()
    with Line(timeout=timeout) as line:
        try:
            status, answered = _follow(url, headers, body, line)
        # Python's HTTP parser raises ValueError for malformed numbers.
        except (NotAllowed, OSError, http.client.HTTPException, ValueError) as error:
            line.check()
            return Outcome(
                _error_message(error, line, timeout), None, b"", time.monotonic() - began
            )
    return Outcome(_status_error(status), status, answered, time.monotonic() - began)


def _follow(url: str, headers: Mapping[str, str], body: bytes, line: Line) -> tuple[int, bytes]:
    """Post the body, following redirects. Returns the status of the last response and the beginning
    of its body. Raises NotAllowed, OSError, HTTPException, ValueError."""
    for _ in range(MAX_REDIRECTS + 1):
        target = target_of(url)
        with _connected(target, line) as connected:
            connection = http.client.HTTPConnection(target.host, target.port)
            connection.response_class = _Answer
            connection.sock = connected
            connection.request("POST", target.path, body, {"Host": target.host_header, **headers})
            answer = connection.getresponse()
            # If the line was cut while the head was read, the head looks complete. `left` raises
            # TimeoutError in that case.
            line.left()
            leads_to = answer.headers.get("Location", "")
            if answer.status not in REDIRECT_STATUSES or not leads_to:
                return answer.status, _read_body(answer, line)
            url = _redirect_url(url, leads_to)
    raise NotAllowed(f"more than {MAX_REDIRECTS} redirects")


class AnswerTooLong(http.client.HTTPException):
    """The response has more than MAX_READ_BYTES."""


class _Bounded(io.RawIOBase):
    """The first MAX_READ_BYTES that a socket receives; then reading raises AnswerTooLong."""

    def __init__(self, source: io.RawIOBase) -> None:
        self._source = source
        self._left = MAX_READ_BYTES

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


def _redirect_url(url: str, location: str) -> str:
    try:
        return urljoin(url, location)
    except ValueError:
        raise NotAllowed("redirected to an invalid URL") from None


def _read_body(answer: http.client.HTTPResponse, line: Line) -> bytes:
    line.shorten(BODY_TIMEOUT)
    try:
        return answer.read(MAX_BODY_BYTES)
    except http.client.IncompleteRead as error:
        return error.partial
    except (OSError, http.client.HTTPException, ValueError):
        return b""


@contextmanager
def _connected(target: Target, line: Line) -> Iterator[socket.socket]:
    """A connection to the target, with TLS for https. It is closed at the end of the block."""
    connected = _dial(target, line)
    try:
        if target.scheme == "https":
            # The line holds the TLS socket before the handshake, so that the handshake can be cut
            # too.
            connected = secure = _tls().wrap_socket(
                connected, server_hostname=target.host, do_handshake_on_connect=False
            )
            line.hold(secure)
            secure.settimeout(min(CONNECT_TIMEOUT, line.left() + CUT_MARGIN))
            secure.do_handshake()
        connected.settimeout(line.left() + CUT_MARGIN)
        yield connected
    finally:
        line.let_go()
        connected.close()


def _dial(target: Target, line: Line) -> socket.socket:
    """A connection to the first of the target's addresses that accepts one. Raises NotAllowed, and
    the last OSError if none does."""
    failed: OSError | None = None
    for address in _addresses(target, line)[:MAX_ADDRESSES]:
        try:
            connected = socket.create_connection(
                (address, target.port), timeout=min(CONNECT_TIMEOUT, line.left())
            )
        except OSError as error:
            failed = error
        else:
            line.hold(connected)
            return connected
    assert failed is not None
    raise failed


def _addresses(target: Target, line: Line) -> list[str]:
    """The addresses of the target's host that may be called, at least one. Raises NotAllowed if
    there are none, and what `_resolve` raises."""
    found = list(dict.fromkeys(_resolve(target, timeout=min(RESOLVE_TIMEOUT, line.left()))))
    callable_ones = [address for address in found if may_be_called(address)]
    if not callable_ones:
        raise NotAllowed(f"{target.host} has no public address")
    if target.scheme == "https":
        return callable_ones
    vouched_for = [address for address in callable_ones if is_allowed_by_operator(address)]
    if not vouched_for:
        raise NotAllowed(f"{target.host} must be called over https")
    return vouched_for


def _resolve(target: Target, *, timeout: float) -> list[str]:
    """Resolve the target's host to addresses. This runs in a separate thread, because the resolver
    takes no timeout. Raises socket.gaierror, and TimeoutError after `timeout` seconds."""
    answer: Future[list[Any]] = Future()

    def ask() -> None:
        try:
            found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
        except OSError as error:
            answer.set_exception(error)
        except UnicodeError:
            # The name has a label that is empty or has more than 63 characters.
            answer.set_exception(socket.gaierror(socket.EAI_NONAME, "not a host name"))
        else:
            answer.set_result(found)

    Thread(target=ask, name="resolve", daemon=True).start()
    return [str(address[0]) for *_, address in answer.result(timeout)]


@cache
def _tls() -> ssl.SSLContext:
    """A context that verifies certificates and host names. It trusts the system's certificate
    authorities (or those of SSL_CERT_FILE or SSL_CERT_DIR), and certifi's, because a host may have
    none of its own."""
    context = ssl.create_default_context()
    context.load_verify_locations(certifi.where())
    return context


def _status_error(status: int) -> str:
    if 200 <= status < 300:
        return ""
    if 300 <= status < 400:
        return f"answered {status}: only the redirects 307 and 308 are followed"
    return f"answered {status}"


def _error_message(error: Exception, line: Line, timeout: float) -> str:
    """The error message that the webhook's owner reads."""
    if isinstance(error, NotAllowed):
        return f"not called: {error}"
    if line.is_cut:
        return f"no answer within {timeout:g} seconds"
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
    return f"no HTTP response: {type(error).__name__}"

"""The parser of requests by itself. It accepts less than h11, and never reads something else."""

import random
from collections.abc import Iterator

import h11
import pytest

from controlplane.proxy.over_http.framing import ChunkedBody, PlainBody, parse_head, take_head
from controlplane.proxy.over_http.request import RequestRefused

BODY = b'{"query": "SELECT 1"}'
HEAD = b"POST /sql?a=b HTTP/1.1\r\nHost: a\r\nNeon-Connection-String: x\r\nX-Y:\t z \r\n"
PLAIN = HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\n%b\r\n10;a=b\r\n%b\r\n0\r\n\r\n" % (
    BODY[:5],
    BODY[5:],
)
# What changes a request's meaning or its end, for a parser that is not strict.
MARKS = (b"\r", b"\n", b"\r\n", b" ", b"\t", b"\0", b"\x0b", b":", b";", b",", b"0", b"+", b"-")
LINES = (b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n", b"Host: b\r\n", b"X : y\r\n")

Read = tuple[bytes, bytes, dict[bytes, bytes], bytes, bytes]


def by_us(sent: bytes, pieces: random.Random | None = None) -> Read | None:
    """Return the first request and what follows it; None if it is not whole. `pieces` cuts what
    arrives."""
    received, left, head, parsed, read = bytearray(), sent, None, None, bytearray()
    while True:
        if head is None:
            head = take_head(received)
        if head is not None:
            request, body = parsed = parsed or parse_head(head)
            while taken := body.take(received):
                read += taken
            if body.has_ended:
                target = request.path + (f"?{request.query}" if request.query else "")
                named = {name.encode(): value.encode() for name, value in request.headers.items()}
                rest = bytes(received) + left
                return request.method.encode(), target.encode(), named, bytes(read), rest
        if not left:
            return None
        size = pieces.randrange(1, 8) if pieces else len(left)
        received += left[:size]
        left = left[size:]


def by_h11(sent: bytes) -> Read | None:
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(sent)
    request = connection.next_event()
    if not isinstance(request, h11.Request):
        return None
    body = b""
    while isinstance(event := connection.next_event(), h11.Data):
        body += bytes(event.data)
    if not isinstance(event, h11.EndOfMessage):
        return None
    named: dict[bytes, bytes] = {}
    for name, value in request.headers:
        named[name] = named[name] + b", " + value if name in named else value
    return request.method, request.target, named, body, bytes(connection.trailing_data[0])


def changed(request: bytes, generator: random.Random) -> bytes:
    for _ in range(generator.randrange(1, 4)):
        at = generator.randrange(len(request) + 1)
        kind = generator.randrange(4)
        if kind == 0:
            request = request[:at] + generator.choice(MARKS) + request[at:]
        elif kind == 1:
            request = request[:at] + generator.choice(MARKS) + request[at + 1 :]
        elif kind == 2:
            request = request[:at] + request[at + 1 :]
        else:
            line = request.find(b"\r\n") + 2
            request = request[:line] + generator.choice(LINES) + request[line:]
    return request


def cases(count: int) -> Iterator[tuple[int, bytes]]:
    for seed in range(count):
        generator = random.Random(seed)
        yield seed, changed(generator.choice((PLAIN, CHUNKED)), generator) + PLAIN


def test_what_is_accepted_is_what_h11_reads() -> None:
    accepted = 0
    for seed, sent in cases(4_000):
        try:
            ours = by_us(sent)
        except RequestRefused:
            continue
        if ours is not None:
            accepted += 1
            assert ours == by_h11(sent), (seed, sent)
    assert accepted > 400


def test_the_pieces_in_which_a_request_arrives_make_no_difference() -> None:
    def outcome(sent: bytes, pieces: random.Random | None) -> Read | str | None:
        try:
            return by_us(sent, pieces)
        except RequestRefused:
            return "refused"

    for seed, sent in cases(1_000):
        assert outcome(sent, None) == outcome(sent, random.Random(seed)), sent


@pytest.mark.parametrize(
    ("body", "sent"),
    [
        (ChunkedBody(), b"5\r\nhello"),
        (ChunkedBody(), b"5\r\nhello\r\n0\r\n\r"),
        (PlainBody(6), b"hello"),
    ],
)
def test_a_body_that_has_not_arrived_has_not_ended(
    body: ChunkedBody | PlainBody, sent: bytes
) -> None:
    received = bytearray(sent)
    assert body.take(received) == b"hello"
    assert body.take(received) == b""
    assert not body.has_ended


@pytest.mark.parametrize(
    "sent",
    [
        b"5\r\nhello0\r\n\r\n",
        b"5\nhello",
        b"-5\r\nhello",
        b"0x5\r\nhello",
        b" 5\r\nhello",
        b"11111111111111111\r\n",
        b"5;" + b"x" * 5_000,
        b"0\r\nX: y\r\n\r\n",
        b"0\r\n\n",
        b"\r\n5\r\nhello",
    ],
)
def test_malformed_chunks_are_refused(sent: bytes) -> None:
    body, received = ChunkedBody(), bytearray(sent)

    def read() -> None:
        while body.take(received):
            pass

    with pytest.raises(RequestRefused, match="malformed HTTP request"):
        read()

"""The proxy refuses requests with an ambiguous end, as the API does. Otherwise a reverse proxy
before either could take one client's request for another's."""

import pytest
from gunicorn.config import Config
from gunicorn.http import RequestParser
from gunicorn.http.errors import NoMoreData, ParseException

from tests.proxy.http_client import RawHttp, headers
from tests.proxy.running_proxy import RunningProxy
from tests.proxy.websocket_client import UPGRADE

ONE = b'{"query": "SELECT 1"}'
LENGTH, CHUNKED = b"Content-Length: %d" % len(ONE), b"Transfer-Encoding: chunked"
CHUNKS = b"%x\r\n%b\r\n0\r\n\r\n" % (len(ONE), ONE)


def head(*lines: bytes, first: bytes = b"POST /sql HTTP/1.1") -> bytes:
    named = [f"{name}: {value}".encode() for name, value in headers().items()]
    return b"\r\n".join([first, b"Host: api.localhost", *named, *lines, b"", b""])


AMBIGUOUS = {
    "length and coding": head(LENGTH, CHUNKED) + CHUNKS,
    "coding and length": head(CHUNKED, LENGTH) + CHUNKS,
    "one bare line feed": head(LENGTH).replace(b"api.localhost\r\n", b"api.localhost\n") + ONE,
    "bare line feeds": head(LENGTH).replace(b"\r\n", b"\n") + ONE,
    "a bare line feed at the end": head(LENGTH)[:-2] + b"\n" + ONE,
    "folded": head(LENGTH, b"X-Folded: one\r\n two") + ONE,
    "folded by a tab": head(LENGTH, b"X-Folded: one\r\n\ttwo") + ONE,
    "two lengths alike": head(LENGTH, LENGTH) + ONE,
    "a list of lengths": head(LENGTH + b", %d" % len(ONE)) + ONE,
    "coding in HTTP/1.0": head(CHUNKED, first=b"POST /sql HTTP/1.0") + CHUNKS,
    "another version": head(LENGTH, first=b"POST /sql HTTP/2.0") + ONE,
    "chunks that end bare": head(CHUNKED) + CHUNKS[:-2] + b"\n",
    "a bare line feed behind chunks": head(CHUNKED) + CHUNKS[:-2] + b"X: y\n\n",
    "folded behind chunks": head(CHUNKED) + CHUNKS[:-2] + b"X: y\r\n z\r\n\r\n",
}


@pytest.mark.parametrize("request_name", AMBIGUOUS)
def test_an_ambiguous_request_is_refused(proxy: RunningProxy, request_name: str) -> None:
    sent = AMBIGUOUS[request_name]
    with pytest.raises(ParseException) as refused:
        next(RequestParser(Config(), iter([sent]), ("127.0.0.1", 1))).body.read()
    assert not isinstance(refused.value, NoMoreData)
    with RawHttp(proxy) as http:
        http.send(sent + head(LENGTH) + ONE)
        status, named, body = http.answer()
        assert status == (505 if request_name == "another version" else 400)
        assert body["message"].startswith("malformed HTTP request")
        assert named["connection"] == "close"
        assert http.has_ended()


def test_an_ambiguous_request_in_single_bytes_is_refused(proxy: RunningProxy) -> None:
    for name in ("folded", "a bare line feed at the end", "chunks that end bare"):
        with RawHttp(proxy) as http:
            for position in range(len(AMBIGUOUS[name])):
                http.send(AMBIGUOUS[name][position : position + 1])
            assert http.answer()[0] == 400


def test_bytes_after_an_unambiguous_request_are_the_next_request(proxy: RunningProxy) -> None:
    with RawHttp(proxy) as http:
        http.send(head(CHUNKED) + CHUNKS + head(LENGTH) + ONE + head(LENGTH, b"X: y\n") + ONE)
        assert [http.answer()[0] for _ in range(3)] == [200, 200, 400]


WEBSOCKET = b"GET /v2 HTTP/1.1\r\nHost: a\r\n" + "\r\n".join([*UPGRADE, "", ""]).encode()


@pytest.mark.parametrize(
    ("instead_of", "sent"),
    [
        (b"\r\n", b"\n"),
        (b"Host: a", b"Host: a\r\n b"),
        (b"HTTP/1.1", b"HTTP/1.0"),
        (b"Host: a", b"Host: a\r\nContent-Length: 5"),
        (b"Host: a", b"Host: a\r\nTransfer-Encoding: chunked"),
        (b"Host: a", b"Host: a\r\nSec-WebSocket-Key: AGhlIHNhbXBsZSBub25jZQ=="),
        (b"dGhlIHNhbXBsZSBub25jZQ==", b"bm9wZQ=="),
        (b"dGhlIHNhbXBsZSBub25jZQ==", b"not base64, but twenty-four"),
    ],
    ids=["bare", "folded", "1.0", "length", "chunks", "two keys", "short key", "bad key"],
)
def test_an_ambiguous_websocket_request_is_refused(
    proxy: RunningProxy, instead_of: bytes, sent: bytes
) -> None:
    with RawHttp(proxy) as http:
        http.send(WEBSOCKET.replace(instead_of, sent) + b"hello0\r\n\r\n")
        assert http.answer()[0] == 400
        assert http.has_ended()
    with RawHttp(proxy) as http:
        http.send(WEBSOCKET)
        assert http.answer()[0] == 101

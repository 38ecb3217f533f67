"""Parses a request's head, and finds the end of its body. Pure functions on bytes.

What is not plainly HTTP/1.1 is refused, above all a request whose end is ambiguous. A reverse proxy
that saw the end elsewhere could mistake part of one client's request for another's. The API's
server refuses the same."""

import re

from controlplane.proxy.over_http.request import Request, RequestRefused

# A connection string may be long, and the driver sends other headers.
MAX_HEAD_BYTES = 32_768
# Each takes about a microsecond. Drivers and reverse proxies together send some dozens.
_MAX_HEADERS = 200
# Ends every head and every chunked body.
_END = b"\r\n\r\n"
_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_REQUEST_LINE = re.compile(rb"(%b) ([!-~]+) HTTP/([0-9]\.[0-9])" % _TOKEN)
# A value on one line. A carriage return or line feed within it would begin another line for others.
_FIELD = re.compile(rb"(%b):([^\0\n\v\f\r]*)" % _TOKEN)
_BARE_LINE_FEED = re.compile(rb"(?<!\r)\n")
_LENGTH = re.compile(r"[0-9]{1,20}")
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,16})(?:[ \t]*;[^\0\n\v\f\r]*)?")
_MAX_CHUNK_LINE_BYTES = 4096
# Headers with a single value each, beside Neon's own. Joined, two of them would mean something that
# neither says: the second connection string, with its password, would be the name of a database.
_SINGLE = {
    *("authorization", "content-length", "content-type", "host"),
    *("sec-websocket-key", "sec-websocket-version"),
}


class PlainBody:
    """Finds a request's body in the bytes that follow its head."""

    def __init__(self, declared: int) -> None:
        """`declared` is in bytes; 0 for a request without a body."""
        self.declared = self._left = declared

    @property
    def has_ended(self) -> bool:
        """True once the body's last byte, and what ends it, have been taken."""
        return not self._left

    def take(self, received: bytearray) -> bytearray:
        """Removes the body's next bytes from those received, and returns them; none if more must
        arrive first."""
        taken = _cut(received, self._left)
        self._left -= len(taken)
        return taken


class ChunkedBody:
    """See `PlainBody`. Its head does not tell its size."""

    declared = 0

    def __init__(self) -> None:
        self.has_ended = False
        # The bytes of the current chunk that are still to come, and what follows the last byte.
        self._left = 0
        self._separator = b""

    def take(self, received: bytearray) -> bytearray:
        """Returns bytes of one chunk. Raises RequestRefused."""
        if not self._left:
            self._begin_chunk(received)
        taken = _cut(received, self._left)
        self._left -= len(taken)
        return taken

    def _begin_chunk(self, received: bytearray) -> None:
        start = len(self._separator)
        if not self._separator.startswith(received[:start]):
            raise _malformed("a chunk is longer than its size")
        end = received.find(b"\r\n", start, start + _MAX_CHUNK_LINE_BYTES)
        if end < 0:
            if len(received) >= start + _MAX_CHUNK_LINE_BYTES or b"\n" in received[start:]:
                raise _malformed("a chunk has no size")
            return
        size = _CHUNK_SIZE.fullmatch(received, start, end)
        if size is None:
            raise _malformed("a chunk has no size")
        self._left = int(size[1], 16)
        if not self._left:
            behind = received[end : end + len(_END)]
            if not _END.startswith(behind):
                raise _malformed("trailers are not supported")
            if len(behind) < len(_END):
                return
            self.has_ended = True
            end += 2
        del received[: end + 2]
        self._separator = b"\r\n"


Body = PlainBody | ChunkedBody


def take_head(received: bytearray) -> bytearray | None:
    """Removes a request's head from the received bytes and returns it, without its end. Returns
    None if more must arrive first. Raises RequestRefused."""
    size = received.find(_END, 0, MAX_HEAD_BYTES)
    if size < 0 and len(received) >= MAX_HEAD_BYTES:
        problem = f"its head is longer than {MAX_HEAD_BYTES} bytes"
        raise RequestRefused(f"malformed HTTP request: {problem}", status=431)
    if received.count(b"\n", 0, size if size >= 0 else None) > _MAX_HEADERS:
        raise RequestRefused(f"too many headers (max is {_MAX_HEADERS})", status=431)
    if size >= 0:
        head = _cut(received, size)
        del received[: len(_END)]
        return head
    if _BARE_LINE_FEED.search(received):
        raise _malformed("a line ends without a carriage return")
    return None


def parse_head(head: bytes | bytearray) -> tuple[Request, Body]:
    """Parses a head that `take_head` has returned. Raises RequestRefused."""
    lines = bytes(head).split(b"\r\n")
    line = _REQUEST_LINE.fullmatch(lines[0])
    if line is None:
        raise _malformed("illegal request line")
    version = line[3].decode()
    if version not in ("1.0", "1.1"):
        raise RequestRefused("malformed HTTP request: only HTTP/1.1 is supported", status=505)
    headers: dict[str, str] = {}
    for number, text in enumerate(lines[1:], 1):
        field = _FIELD.fullmatch(text)
        if field is None:
            raise _malformed(f"line {number} of its head is no header")
        name, value = field[1].decode().lower(), field[2].strip(b" \t").decode(errors="replace")
        if name in headers:
            if name in _SINGLE or name.startswith(("neon-", "perch-")):
                raise _malformed(f"it has two headers {name}")
            value = f"{headers[name]}, {value}"
        headers[name] = value
    if version == "1.1" and "host" not in headers:
        raise _malformed("it has no header host")
    path, _, query = line[2].decode().partition("?")
    request = Request(line[1].decode(), path, query, headers, version)
    return request, _body(request)


def _body(request: Request) -> Body:
    coding, length = (request.headers.get(name) for name in ("transfer-encoding", "content-length"))
    if coding is None:
        if length is not None and not _LENGTH.fullmatch(length):
            raise _malformed("Content-Length must be a single number")
        return PlainBody(int(length or 0))
    if length is not None:
        raise _malformed("it has both Content-Length and Transfer-Encoding")
    if request.version == "1.0":
        raise _malformed("HTTP/1.0 does not allow Transfer-Encoding")
    if coding.lower() != "chunked":
        problem = "the only Transfer-Encoding is chunked"
        raise RequestRefused(f"malformed HTTP request: {problem}", status=501)
    return ChunkedBody()


def _cut(received: bytearray, size: int) -> bytearray:
    """Removes at most so many bytes from the beginning, and returns them."""
    taken = received[:size]
    del received[:size]
    return taken


def _malformed(problem: str) -> RequestRefused:
    return RequestRefused(f"malformed HTTP request: {problem}")

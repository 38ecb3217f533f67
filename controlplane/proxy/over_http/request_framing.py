"""Where a request ends must be beyond doubt: a reverse proxy in front that reads it otherwise would
take part of one client's request for another's. What could be read in two ways is refused, as the
API's server does; h11 alone takes some of it."""

import re

import h11

from controlplane.proxy.over_http.refusals import RequestRefused

# What every head and every body in chunks ends with.
END = b"\r\n\r\n"

_BARE_LINE_FEED = re.compile(rb"(?<!\r)\n")
_FOLDED = re.compile(rb"\n[ \t]")
_LENGTH = re.compile(rb"\ncontent-length:[ \t]*([^\r]*?)[ \t]*\r", re.IGNORECASE)
_CODING = re.compile(rb"\ntransfer-encoding:", re.IGNORECASE)
_VERSIONS = (b"1.0", b"1.1")


def check_head(head: bytes, version: bytes) -> None:
    """The head as it was sent, with the end of it. Raises RequestRefused."""
    if version not in _VERSIONS:
        raise RequestRefused("malformed HTTP request: HTTP/1.1 is spoken here", status=505)
    lengths, has_coding = _LENGTH.findall(head), _CODING.search(head) is not None
    if _BARE_LINE_FEED.search(head):
        problem = "a line ends without a carriage return"
    elif _FOLDED.search(head):
        problem = "a header is folded"
    elif len(lengths) > 1 or not all(length.isdigit() for length in lengths):
        problem = "one Content-Length must say the body's length"
    elif has_coding and lengths:
        problem = "it has both Content-Length and Transfer-Encoding"
    elif has_coding and version == b"1.0":
        problem = "HTTP/1.0 has no Transfer-Encoding"
    else:
        return
    raise RequestRefused(f"malformed HTTP request: {problem}")


def check_end_of_chunks(body: bytes, event: h11.EndOfMessage) -> None:
    """The body's last bytes as they were sent, and what they were read as. Raises
    RequestRefused."""
    if list(event.headers):
        raise RequestRefused("malformed HTTP request: headers behind the body are not read")
    if not body.endswith(END):
        raise RequestRefused("malformed HTTP request: a line ends without a carriage return")

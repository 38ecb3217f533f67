"""Refuses requests whose end is ambiguous. A reverse proxy that saw the end elsewhere could mistake
part of one client's request for another's. The API's server refuses the same; h11 alone accepts
some of it."""

import re

import h11

from controlplane.proxy.over_http.refusals import RequestRefused

# The end of every head, and of every chunked body.
END = b"\r\n\r\n"

_BARE_LINE_FEED = re.compile(rb"(?<!\r)\n")
_FOLDED = re.compile(rb"\n[ \t]")
_LENGTH = re.compile(rb"\ncontent-length:[ \t]*([^\r]*?)[ \t]*\r", re.IGNORECASE)
_CODING = re.compile(rb"\ntransfer-encoding:", re.IGNORECASE)
_VERSIONS = (b"1.0", b"1.1")


def check_head(head: bytes, version: bytes) -> None:
    """Checks the head, given as it was sent, with its end. Raises RequestRefused."""
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
    """Checks the end of a chunked body: its last bytes as they were sent, and the event that h11
    made of them. Raises RequestRefused."""
    if list(event.headers):
        raise RequestRefused("malformed HTTP request: headers behind the body are not read")
    if not body.endswith(END):
        raise RequestRefused("malformed HTTP request: a line ends without a carriage return")

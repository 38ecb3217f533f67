"""HTTP answers with bounds on time, length and decoded size.

`requests` bounds only the time between two bytes, and no length: a server that sends slowly could
hold its caller for as long as it likes. Decoded JSON takes many times the memory of its text."""

import http.client
import io
import ipaddress
import json
import re
import socket
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter
from requests.exceptions import ConnectTimeout, InvalidURL, ProxyError, SSLError
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import NewConnectionError, ReadTimeoutError

from console.memory import BYTES_PER_VALUE
from console.turns import in_turns, let_others

MAX_RESPONSE_BYTES = 32 << 20  # bytes, after decompression
READ_CHUNK_BYTES = 1 << 16
# Values in an answer. An empty object takes 3 bytes of text, and 64 bytes of memory.
MAX_JSON_VALUES = 1_000_000
# Bytes of JSON that are decoded without a pause.
MAX_PIECE_BYTES = 1 << 20
# An object with one member has three times the size of a value.
_BEFORE_VALUES = (b",", b"[", b"{", b"{")
# Escapes of surrogates. A lone surrogate is half a character, which no page, cookie or address can
# hold.
_MAY_HOLD_HALVES = re.compile(rb"\\u[dD][89a-fA-F]")
_HALVES = re.compile("[\ud800-\udfff]")


class TooLong(requests.RequestException):
    """The answer is longer than allowed."""


class TooManyValues(ValueError):
    """The JSON has more values than allowed."""


Reserve = Callable[[int], None]


def read_whole(
    answer: requests.Response, *, longest: int | None = None, reserve: Reserve = lambda size: None
) -> bytes:
    """Return the body of an answer that was requested with `stream=True`. `longest` is in bytes, by
    default MAX_RESPONSE_BYTES. `reserve` is called with the bytes of each piece. Raises TooLong if
    the body is longer, what `reserve` raises, and what `requests` raises: requests.Timeout when the
    time is over."""
    body = bytearray()
    most = longest or MAX_RESPONSE_BYTES
    try:
        for piece in answer.iter_content(READ_CHUNK_BYTES):
            body += piece
            if len(body) > most:
                raise TooLong(f"longer than {most >> 20} MiB")
            reserve(len(piece))
    except requests.ConnectionError as error:
        if isinstance(error.args[0], ReadTimeoutError):
            raise requests.ReadTimeout(str(error)) from error
        raise
    return bytes(body)


def read_json(
    content: bytes, *, most_values: int = MAX_JSON_VALUES, reserve: Reserve = lambda size: None
) -> Any:
    """Decode JSON, with a replacement character for each lone surrogate in its texts. `reserve` is
    called before with the bytes that this and the text that is made of it take up. Raises
    TooManyValues, ValueError if it is not JSON, RecursionError if it is nested too deeply, and what
    `reserve` raises."""
    values = _count_values(content)
    if values > most_values:
        raise TooManyValues("too many values")
    is_narrow = content.isascii() and b"\\u" not in content
    reserve(BYTES_PER_VALUE * values + len(content) * (2 if is_narrow else 8))
    data = json.loads(content) if len(content) <= MAX_PIECE_BYTES else _in_pieces(content)
    return _whole(data) if _MAY_HOLD_HALVES.search(content) else data


def _count_values(content: bytes) -> int:
    """Return how many values the JSON has at most, without what is within texts."""
    if not json.detect_encoding(content).startswith("utf-8"):
        # Half of a character can look like a quotation mark.
        return sum(map(content.count, _BEFORE_VALUES))
    bare = content.replace(b"\\\\", b"").replace(b'\\"', b"")
    values, is_within = 0, False
    for start in in_turns(range(0, len(bare), READ_CHUNK_BYTES)):
        parts = bare[start : start + READ_CHUNK_BYTES].split(b'"')
        outside = b"".join(parts[is_within::2])
        values += sum(map(outside.count, _BEFORE_VALUES))
        is_within ^= len(parts) % 2 == 0
    return values


def _in_pieces(content: bytes) -> Any:
    """Decode JSON. Others have their turn between the items of a list, and such a list may be in
    objects that are items: that is how rows arrive. What is in an item is decoded at once."""
    decoder: Any = json.JSONDecoder()
    at_once = decoder.scan_once

    def array(place: tuple[str, int], scan: Callable[..., Any]) -> Any:
        def item(text: str, at: int) -> Any:
            let_others()
            return (scan if text.startswith("{", at) else at_once)(text, at)

        return json.decoder.JSONArray(place, item)  # type: ignore[attr-defined]

    decoder.parse_array = array
    decoder.scan_once = json.scanner.py_make_scanner(decoder)  # type: ignore[attr-defined]
    return decoder.decode(content.decode(json.detect_encoding(content), "surrogatepass"))


def _whole(data: Any) -> Any:
    let_others()
    if isinstance(data, str):
        return _HALVES.sub("\ufffd", data)
    if isinstance(data, list):
        # In place: there is no memory for both.
        for n, one in enumerate(data):
            data[n] = _whole(one)
    if isinstance(data, dict):
        return {_whole(name): _whole(value) for name, value in data.items()}
    return data


def never_sent(error: requests.RequestException) -> bool:
    """Whether the request cannot have arrived, because no connection was made."""
    if isinstance(error, SSLError | ProxyError | InvalidURL | ConnectTimeout):
        return True
    reason = getattr(error.args[0] if error.args else None, "reason", None)
    return isinstance(reason, NewConnectionError)


def host_in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def proxies_for(url: str) -> dict[str, str] | None:
    """Return the `proxies` for `requests`: for loopback addresses, none of the environment's."""
    return {"http": "", "https": ""} if is_loopback(urlsplit(url).hostname or "") else None


@lru_cache(maxsize=64)
def environment_for(url: str) -> dict[str, Any]:
    """Return the arguments `proxies` and `verify` of `requests` for that server, from the process's
    environment, which `requests` itself would read again for each request."""
    with requests.Session() as session:
        found = session.merge_environment_settings(url, proxies_for(url) or {}, None, None, None)
    return {"proxies": found["proxies"], "verify": found["verify"]}


def is_loopback(host: str) -> bool:
    name = host.rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address):
        address = address.ipv4_mapped or address
    return address.is_loopback or address.is_unspecified


class BoundedAdapter(HTTPAdapter):
    """Makes a request's `timeout` also bound the time from sending it to the end of its answer."""

    def init_poolmanager(self, *args: Any, **named: Any) -> None:
        super().init_poolmanager(*args, **named)
        self.poolmanager.pool_classes_by_scheme = POOLS

    def proxy_manager_for(self, proxy: str, **named: Any) -> Any:
        found = super().proxy_manager_for(proxy, **named)
        found.pool_classes_by_scheme = POOLS
        return found


class _Before(io.RawIOBase):
    """Reads from a socket until `deadline`, a time of time.monotonic(), and then times out."""

    def __init__(self, source: io.RawIOBase, connection: socket.socket, deadline: float) -> None:
        self._source = source
        self._connection = connection
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        self._connection.settimeout(left)
        return self._source.readinto(buffer)

    def close(self) -> None:
        self._source.close()
        super().close()


class _Response(http.client.HTTPResponse):
    def __init__(self, sock: socket.socket, *args: Any, **named: Any) -> None:
        super().__init__(sock, *args, **named)
        seconds = sock.gettimeout()
        if seconds is not None:
            source = self.fp.detach()
            self.fp = io.BufferedReader(_Before(source, sock, time.monotonic() + seconds))


class _Connection(HTTPConnection):
    response_class = _Response

    @property
    def is_connected(self) -> bool:
        """Whether a kept connection can be used. urllib3 finds out by `poll`, which takes gevent
        longer than to send a request."""
        if self.sock is None:
            return False
        self.sock.settimeout(0)
        try:
            self.sock.recv(1, socket.MSG_PEEK)
        except OSError as error:
            return isinstance(error, BlockingIOError)
        # It was closed, or has sent what nobody asked for.
        return False


class _SecureConnection(HTTPSConnection):
    response_class = _Response


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _SecurePool(HTTPSConnectionPool):
    ConnectionCls = _SecureConnection


POOLS = {"http": _Pool, "https": _SecurePool}

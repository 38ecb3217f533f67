"""The few messages of the Postgres wire protocol that the proxy writes or parses itself, as pure
functions on bytes. After the start-up the relay passes bytes on without parsing them. For pooled
clients it only finds where messages begin (`MessageStream`).
"""

import codecs
import struct
from collections.abc import Iterator, Mapping
from typing import NamedTuple

PROTOCOL_3_0 = 0x0003_0000
PROTOCOL_3_2 = 0x0003_0002
CANCEL_REQUEST_CODE = 80877102

# The kinds of Authentication messages.
CLEARTEXT_PASSWORD, SASL, SASL_CONTINUE, SASL_FINAL = 3, 10, 11, 12

# The start of the message that ends every complete answer of the server.
READY_FOR_QUERY_PREFIX = b"Z\x00\x00\x00\x05"
READY_FOR_QUERY_SIZE = 6
# The most bytes of an ErrorResponse that are read for its words.
MAX_ERROR_BYTES = 8192
# The most bytes of an error's fields that `error_fields` keeps. Short fields are always whole.
MAX_FIELD_BYTES, _SHORT_BYTES = 65_536, 1024
# A genuine Postgres sends fewer.
_MAX_FIELDS = 32
_TEXT = ord("M")
# Postgres's own limit on a message's length field.
MAX_MESSAGE_BYTES = 0x3FFF_FFFF + 4
# The last message of a client that disconnects in an orderly way.
TERMINATE = b"X\x00\x00\x00\x04"

_HEADER = struct.Struct("!cI")
HEADER_SIZE = _HEADER.size
# The same, with the kind as a number.
_NUMBERED_HEADER = struct.Struct("!BI")
_INT = struct.Struct("!I")


class MalformedMessage(Exception):
    """A message that does not have the form that the protocol defines."""


def message(kind: bytes, payload: bytes) -> bytes:
    return _HEADER.pack(kind, len(payload) + 4) + payload


def error_response(*, severity: str, sqlstate: str, text: str, hint: str | None = None) -> bytes:
    fields = [("S", severity), ("V", severity), ("C", sqlstate), ("M", text)]
    if hint is not None:
        fields.append(("H", hint))
    payload = b"".join(
        code.encode() + value.replace("\0", " ").encode(errors="replace") + b"\0"
        for code, value in fields
    )
    return message(b"E", payload + b"\0")


def error_response_v2(text: str) -> bytes:
    """Returns an error in the form that clients of protocol versions before 3.0 can read."""
    return b"EFATAL:  " + text.encode(errors="replace") + b"\n\0"


def error_sqlstate(payload: bytes) -> str:
    """Returns the SQLSTATE in an ErrorResponse's payload, or an empty string."""
    for field in payload.split(b"\0"):
        if field[:1] == b"C":
            return field[1:].decode(errors="replace")
    return ""


def error_fields(payload: bytes | bytearray) -> dict[str, str]:
    """Returns the fields of an ErrorResponse's payload, by their codes. Of long ones, the message
    first, it keeps the beginnings that MAX_FIELD_BYTES have room for, each with an ellipsis."""
    spans: list[tuple[int, int]] = []
    start = 0
    while len(spans) < _MAX_FIELDS and (end := payload.find(b"\0", start)) > start:
        spans.append((start + 1, end))
        start = end + 1
    spans.sort(key=lambda span: (span[1] - span[0] > _SHORT_BYTES, payload[span[0] - 1] != _TEXT))
    fields: dict[str, str] = {}
    left = MAX_FIELD_BYTES
    for start, end in spans:
        stop = min(end, start + left)
        left -= stop - start
        text, _ = codecs.utf_8_decode(payload[start:stop], "replace", stop == end)
        code = payload[start - 1 : start].decode("ascii", errors="replace")
        fields[code] = text if stop == end else text + "…"
    return fields


def authentication(kind: int, data: bytes = b"") -> bytes:
    return message(b"R", _INT.pack(kind) + data)


def negotiate_protocol_version(version: int, unknown_options: list[bytes]) -> bytes:
    names = b"".join(name + b"\0" for name in unknown_options)
    return message(b"v", struct.pack("!II", version, len(unknown_options)) + names)


def backend_key_data(pid: int, secret: bytes) -> bytes:
    return message(b"K", _INT.pack(pid) + secret)


def startup_message(parameters: Mapping[bytes, bytes]) -> bytes:
    """Returns a start-up packet of protocol 3.0, which every compute understands. Protocol 3.2
    differs from it only in the length of the cancel key, and clients get the proxy's own key."""
    body = b"".join(name + b"\0" + value + b"\0" for name, value in parameters.items())
    return struct.pack("!II", len(body) + 9, PROTOCOL_3_0) + body + b"\0"


def cancel_request(pid: int, secret: bytes) -> bytes:
    return struct.pack("!III", 12 + len(secret), CANCEL_REQUEST_CODE, pid) + secret


def sasl_initial_response(payload: bytes) -> tuple[str, bytes]:
    """Returns the mechanism that a client chose and its first message, or b"" if it sent none.

    Raises MalformedMessage.
    """
    name, separator, rest = payload.partition(b"\0")
    if not separator or len(rest) < 4:
        raise MalformedMessage("malformed SASLInitialResponse")
    length = int.from_bytes(rest[:4], "big", signed=True)
    data = rest[4:]
    if length not in (len(data), -1) or (length == -1 and data):
        raise MalformedMessage("malformed SASLInitialResponse")
    return name.decode("ascii", errors="replace"), data


def complete_messages(
    buffer: bytes | bytearray, *, limit: int, position: int = 0
) -> Iterator[tuple[bytes, int, int]]:
    """Yields each whole message in the buffer from the position on: its kind, and where its payload
    starts and ends.

    Raises MalformedMessage if a length field is below 4 or above `limit` bytes.
    """
    while len(buffer) - position >= HEADER_SIZE:
        kind, length = _HEADER.unpack_from(buffer, position)
        if not 4 <= length <= limit:
            raise MalformedMessage(f"invalid message length {length}")
        end = position + 1 + length
        if end > len(buffer):
            return
        yield kind, position + HEADER_SIZE, end
        position = end


class Message(NamedTuple):
    kind: int
    # Only its beginning, if it is longer than the caller asked for.
    payload: bytes
    is_whole: bool


class MessageStream:
    """Splits a connection's bytes into messages, in whatever pieces they arrive. Only headers are
    parsed. Payloads are skipped, except those of the few kinds that the caller asks for: `wanted`
    maps each kind of message to be returned to the number of payload bytes to keep."""

    __slots__ = ("_head", "_is_whole", "_kept", "_kind", "_rest", "_wanted")

    def __init__(self, wanted: Mapping[int, int]) -> None:
        self._wanted = wanted
        # The beginning of an incomplete header.
        self._head = b""
        # Within a message: its kind, the number of bytes still to come, and the part kept so far.
        self._kind = 0
        self._rest = 0
        self._kept = bytearray()
        self._is_whole = False

    @property
    def is_between(self) -> bool:
        """True if the last message is complete and no other has begun."""
        return not self._rest and not self._head

    def feed(self, data: bytes) -> list[Message]:
        """Returns the wanted messages that end in these bytes.

        Raises MalformedMessage if a length field is out of range.
        """
        found: list[Message] = []
        if self._head:
            data, self._head = self._head + data, b""
        wanted, unpack, size = self._wanted, _NUMBERED_HEADER.unpack_from, len(data)
        position = self._go_on(data, found) if self._rest else 0
        while size - position >= HEADER_SIZE:
            kind, length = unpack(data, position)
            if not 4 <= length <= MAX_MESSAGE_BYTES:
                raise MalformedMessage(f"invalid message length {length}")
            end = position + 1 + length
            if end > size:
                self._begin(kind, length - 4, data[position + HEADER_SIZE :])
                return found
            if kind in wanted:
                start, most = position + HEADER_SIZE, wanted[kind]
                is_whole = end - start <= most
                payload = data[start : end if is_whole else start + most]
                found.append(Message(kind, payload, is_whole))
            position = end
        self._head = data[position:]
        return found

    def _begin(self, kind: int, length: int, beginning: bytes) -> None:
        self._kind = kind
        self._rest = length - len(beginning)
        most = self._wanted.get(kind, 0)
        self._kept = bytearray(beginning[:most])
        self._is_whole = length <= most

    def _go_on(self, data: bytes, found: list[Message]) -> int:
        """Continues a message that began in earlier bytes. Returns where it ends in `data`."""
        step = min(self._rest, len(data))
        self._rest -= step
        if missing := self._wanted.get(self._kind, 0) - len(self._kept):
            self._kept += data[: min(step, missing)]
        if not self._rest:
            if self._kind in self._wanted:
                found.append(Message(self._kind, bytes(self._kept), self._is_whole))
            self._kept.clear()
        return step

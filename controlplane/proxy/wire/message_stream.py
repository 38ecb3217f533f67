"""Splits a connection's bytes into messages, in whatever pieces they arrive. Only headers are
parsed. Payloads are skipped, except those of the few kinds that the caller asks for."""

import struct
from collections.abc import Mapping
from typing import NamedTuple

from controlplane.proxy.wire.messages import HEADER_SIZE, MalformedMessage

# Postgres's own limit on a message's length field.
MAX_MESSAGE_BYTES = 0x3FFF_FFFF + 4

_HEADER = struct.Struct("!BI")


class Message(NamedTuple):
    kind: int
    # Only its beginning, if it is longer than the caller asked for.
    payload: bytes
    is_whole: bool


class MessageStream:
    """`wanted` maps each kind of message to be returned to the number of payload bytes to keep."""

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
        wanted, unpack, size = self._wanted, _HEADER.unpack_from, len(data)
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

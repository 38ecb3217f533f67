"""Refuses what a pooler accepts and cannot do: LISTEN, whose notifications would not arrive, and,
if PgBouncer is older than 1.21, named prepared statements, which it loses at the end of the
transaction. Without this, a client would wait forever, or get another client's statement.

The statement is replaced by one that fails in Postgres, so that everything else follows the
protocol: what was sent before is answered before, what follows is skipped up to the Sync, and an
open transaction has failed.
"""

import re
from collections.abc import Iterator

from controlplane.proxy.wire import messages
from controlplane.proxy.wire.messages import HEADER_SIZE, MAX_MESSAGE_BYTES, MalformedMessage

_WORDS = b"perch_refuses_prepared_statements"
# Unnamed, with these words as the statement, and no parameters: a syntax error.
_REFUSED = messages.message(b"P", b"\0" + _WORDS + b"\0\0\0")
# A LISTEN that is at the beginning of the text, or follows other statements that contain nothing
# that could be quoted. The words are in a string or a comment otherwise, or rarely missed.
_LISTEN = re.compile(
    rb"(?:[^'\"$;/-]*+;)*(?:\s|--[^\n]*+|/\*(?:[^*]|\*(?!/))*+\*/)*+listen\b", re.IGNORECASE
)
_MAX_BEFORE_LISTEN_BYTES = 1024
# An error with our words, in place of a LISTEN. Neither has parameters or rows.
_LISTEN_REFUSED = (
    b"DO $$ BEGIN RAISE 'LISTEN does not work on a pooled connection: no notification would arrive'"
    b" USING ERRCODE = '0A000', HINT = 'Listen on a connection that is not pooled: without"
    b" -pooler in the host name, and while pooler_enabled is off.'; END $$\0"
)
_ANSWER = messages.error_response(
    severity="ERROR",
    sqlstate="0A000",
    text="prepared statements are not supported by this host's pooler (PgBouncer older than 1.21)",
    hint=(
        "Disable them in the driver (psycopg: prepare_threshold=None; JDBC: prepareThreshold=0; "
        "postgres.js: prepare: false), connect without -pooler, or have the operator install "
        "PgBouncer 1.21 or newer."
    ),
)


class StatementRefusal:
    """Filters everything that a client sends to its pooler, and all of the pooler's answers."""

    def __init__(self, *, refuses_names: bool) -> None:
        """`refuses_names` says that the pooler does not keep named prepared statements."""
        self._refuses_names = refuses_names
        self._sent = _Cutter(b"PQ", HEADER_SIZE + _MAX_BEFORE_LISTEN_BYTES)
        self._answered = _Cutter(b"E", messages.MAX_ERROR_BYTES)
        self._has_refused = False

    @property
    def is_within(self) -> bool:
        """True if the client is in the middle of a message."""
        return self._sent.is_within

    def sent(self, data: bytes) -> bytes:
        """Returns what to send to the pooler for these bytes. Raises MalformedMessage."""
        return b"".join(
            self._refuse(part) if is_begun else part for is_begun, part in self._sent.cut(data)
        )

    def _refuse(self, statement: bytes) -> bytes:
        """Returns what replaces the beginning of a Query or Parse message."""
        kind, text = statement[:1], statement[HEADER_SIZE:]
        name, separator, rest = text.partition(b"\0") if kind == b"P" else (b"", b"", text)
        if name and self._refuses_names:
            self._sent.drop()
            self._has_refused = True
            return _REFUSED
        if not _LISTEN.match(rest):
            return statement
        self._sent.drop()
        no_types = b"\0\0" if separator else b""
        return messages.message(kind, name + separator + _LISTEN_REFUSED + no_types)

    def answered(self, data: bytes) -> bytes:
        """Returns what to send to the client for these bytes. Raises MalformedMessage."""
        if not self._refuses_names:
            return data
        return b"".join(
            _ANSWER if is_begun and self._has_refused and _WORDS in part else part
            for is_begun, part in self._answered.cut(data)
        )


class _Cutter:
    """Splits a stream where messages of some kinds begin. Keeps the first `most` bytes of each such
    message, or all of a shorter one, together."""

    def __init__(self, kinds: bytes, most: int) -> None:
        self._kinds = kinds
        self._most = most
        # The incomplete beginning of a message of these kinds, or of a header.
        self._held = b""
        # Bytes of the current message that have not arrived yet; true if they are to be left out.
        self._rest = 0
        self._drops = False

    @property
    def is_within(self) -> bool:
        return bool(self._held or self._rest)

    def drop(self) -> None:
        """Leaves out the rest of the message whose beginning `cut` has just yielded."""
        self._drops = bool(self._rest)

    def cut(self, data: bytes) -> Iterator[tuple[bool, bytes]]:
        """Yields the parts, each with whether it begins a message of these kinds. Raises
        MalformedMessage."""
        if self._held:
            data, self._held = self._held + data, b""
        position, size = 0, len(data)
        # Where the bytes that are passed on unchanged begin.
        start = 0
        while position < size:
            if self._rest:
                step = min(self._rest, size - position)
                self._rest -= step
                position += step
                if self._drops:
                    start = position
                    self._drops = bool(self._rest)
                continue
            if size - position < HEADER_SIZE:
                break
            length = int.from_bytes(data[position + 1 : position + HEADER_SIZE], "big")
            if not 4 <= length <= MAX_MESSAGE_BYTES:
                raise MalformedMessage(f"invalid message length {length}")
            if data[position] not in self._kinds:
                self._rest = length + 1
                continue
            needed = min(length + 1, self._most)
            if size - position < needed:
                break
            if start < position:
                yield False, data[start:position]
            self._rest = length + 1 - needed
            start = position = position + needed
            yield True, data[start - needed : start]
        self._held = data[position:]
        if start < position:
            yield False, data[start:position]

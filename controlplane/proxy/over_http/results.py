"""Writes Postgres's answers to statements as JSON while they arrive. Rows are held as Python
objects only until the chunk that they arrived in is written."""

import json
import struct
from collections.abc import Iterator

from controlplane.proxy.over_http.request import (
    MAX_RESPONSE_BYTES,
    ResponseTooLarge,
    named_fields,
)
from controlplane.proxy.over_http.statements import Batch, Statement
from controlplane.proxy.over_http.values import (
    CHUNK_LENGTH,
    UnreadableArray,
    decoded,
    encoder,
    in_pieces,
    string,
)
from controlplane.proxy.wire import messages
from controlplane.proxy.wire.messages import MalformedMessage

_COUNT = struct.Struct("!H")
_LENGTH = struct.Struct("!i")
# A column's description after its name: table, column number, type, type size, modifier, format.
_COLUMN = struct.Struct("!IhIhih")

# `json.dumps` would make an encoder for each call.
_json = json.JSONEncoder(ensure_ascii=False).encode

Row = list[str | None]

# The most notices of a statement that are passed on, and their bytes. A loop may raise any number.
MAX_NOTICES, MAX_NOTICE_BYTES = 100, 65_536
# A genuine Postgres's are shorter: at most 1,664 columns, and a command with its counts.
_MAX_DESCRIPTION_BYTES, _MAX_TAG_BYTES = 262_144, 64


def row_of(buffer: bytearray, start: int) -> Row:
    """Returns a DataRow's columns as text; `start` is where its payload begins. Raises
    struct.error."""
    (count,) = _COUNT.unpack_from(buffer, start)
    position = start + _COUNT.size
    row: Row = []
    for _ in range(count):
        (length,) = _LENGTH.unpack_from(buffer, position)
        position += _LENGTH.size
        if length < 0:
            row.append(None)
        else:
            row.append(buffer[position : position + length].decode(errors="replace"))
            position += length
    return row


class Results:
    """The answer to a batch. It is given each message in turn, and is complete after the last one.

    `written` is the answer's size in bytes so far.
    """

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        # False for one statement on its own.
        self.is_batch = batch.begin is not None
        self._statements = iter(batch.statements)
        self._parts: list[bytes] = [b'{"results":['] if self.is_batch else []
        # In a transaction, BEGIN is answered before the statements, and COMMIT after them.
        self._statement: Statement | None = None if self.is_batch else next(self._statements)
        self._fields: list[dict[str, object]] = []
        # Set once the current statement's answer has begun.
        self._writer: _RowWriter | None = None
        self._rows: list[Row] = []
        self._has_rows = False
        self._has_results = False
        # Those of the current statement, each by the names of its fields; their bytes, and how many
        # more there were.
        self.notices: list[dict[str, object]] = []
        self._notice_bytes = self.notices_left_out = 0
        self.written = 0
        # How many statements have completed.
        self.ended = 0

    def describe(self, buffer: bytearray, start: int, end: int) -> None:
        """Takes a RowDescription. Raises MalformedMessage."""
        if end - start > _MAX_DESCRIPTION_BYTES:
            raise MalformedMessage("RowDescription is too long")
        try:
            self._fields = _fields(buffer, start)
        except (struct.error, ValueError) as error:
            raise MalformedMessage("invalid RowDescription") from error

    def add(self, buffer: bytearray, start: int, end: int) -> None:
        """Takes a DataRow. Writes a long one at once. Raises MalformedMessage, ResponseTooLarge."""
        try:
            if end - start <= CHUNK_LENGTH:
                self._rows.append(row_of(buffer, start))
            else:
                self.write()
                self._write(self._open().long_row(buffer, start, end))
        except struct.error as error:
            raise MalformedMessage("invalid DataRow") from error

    def add_notice(self, payload: bytes) -> None:
        """Takes a NoticeResponse; keeps it if the client has asked for notices."""
        # In a transaction, those of BEGIN and COMMIT belong to no statement.
        if not self._batch.with_notices or self._statement is None:
            return
        size = self._notice_bytes + len(payload)
        if len(self.notices) == MAX_NOTICES or size > MAX_NOTICE_BYTES:
            self.notices_left_out += 1
        else:
            self._notice_bytes = size
            self.notices.append(named_fields(messages.error_fields(payload)))

    def write(self) -> None:
        """Writes the rows taken since the last call. Raises MalformedMessage, ResponseTooLarge."""
        if self._rows:
            rows, self._rows = self._rows, []
            self._write(self._open().rows(rows))

    def _write(self, pieces: Iterator[str]) -> None:
        if self._has_rows:
            self._add(",")
        self._has_rows = True
        try:
            for piece in pieces:
                self._add(piece)
        except (UnreadableArray, ValueError, IndexError) as error:
            raise MalformedMessage("invalid value in a DataRow") from error

    def complete(self, tag: bytes) -> None:
        """Takes the tag that ends the current statement. Raises MalformedMessage,
        ResponseTooLarge."""
        if len(tag) > _MAX_TAG_BYTES:
            raise MalformedMessage("CommandComplete is too long")
        if self._statement is not None:
            self.ended += 1
            self.write()
            self._open()
            command, count = _parse_tag(tag.rstrip(b"\0").decode(errors="replace"))
            end: dict[str, object] = {"command": command, "rowCount": count}
            if self.notices:
                end["perch:notices"] = self.notices
            if self.notices_left_out:
                end["perch:notices_left_out"] = self.notices_left_out
            self._add("]," + _json(end)[1:])
        self._statement = next(self._statements, None)
        self._fields, self._has_rows, self._writer = [], False, None
        self.notices = []
        self._notice_bytes = self.notices_left_out = 0

    def body(self) -> bytes:
        """Returns the whole answer."""
        return b"".join([*self._parts, b"]}"] if self.is_batch else self._parts)

    def _open(self) -> "_RowWriter":
        """Begins the current statement's answer, if that has not begun. Returns what writes its
        rows. Raises MalformedMessage."""
        if self._statement is None:
            raise MalformedMessage("rows of no statement")
        if self._writer is None:
            as_arrays = self._statement.as_arrays
            self._writer = _RowWriter(
                self._fields, as_text=self._batch.as_text, as_arrays=as_arrays
            )
            head = _json({"rowAsArray": as_arrays, "fields": self._fields})
            separator = "," if self._has_results else ""
            self._has_results = True
            self._add(f'{separator}{head[:-1]}, "rows":[')
        return self._writer

    def _add(self, text: str) -> None:
        part = text.encode(errors="replace")
        self.written += len(part)
        if self.written > MAX_RESPONSE_BYTES:
            raise ResponseTooLarge(MAX_RESPONSE_BYTES)
        self._parts.append(part)


class _RowWriter:
    """Writes rows of these fields as JSON. Its functions raise ValueError, IndexError,
    UnreadableArray."""

    def __init__(self, fields: list[dict[str, object]], *, as_text: bool, as_arrays: bool) -> None:
        self._names = [string(str(field["name"])) for field in fields]
        self._encoders = [
            string if as_text else encoder(int(str(field["dataTypeID"]))) for field in fields
        ]
        self._as_arrays = as_arrays

    def rows(self, rows: list[Row]) -> Iterator[str]:
        """Yields the rows, separated by commas."""
        yield ",".join(map(self._row, rows))

    def _row(self, row: Row) -> str:
        columns = [
            "null" if text is None else encode(text)
            for encode, text in zip(self._encoders, row, strict=True)
        ]
        if self._as_arrays:
            return "[" + ",".join(columns) + "]"
        return "{" + ",".join(map("{}:{}".format, self._names, columns)) + "}"

    def long_row(self, buffer: bytearray, start: int, end: int) -> Iterator[str]:
        """Yields a DataRow in pieces. Raises struct.error as well."""
        names = ["" if self._as_arrays else name + ":" for name in self._names]
        yield "[" if self._as_arrays else "{"
        separator = ""
        spans = _spans(buffer, start, end)
        for name, encode, (at, until) in zip(names, self._encoders, spans, strict=True):
            yield separator + name
            separator = ","
            if until < at:
                yield "null"
            elif until - at <= CHUNK_LENGTH:
                yield encode(buffer[at:until].decode(errors="replace"))
            else:
                yield from in_pieces(decoded(buffer, at, until), encode)
        yield "]" if self._as_arrays else "}"


def _spans(buffer: bytearray, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yields where each column of a DataRow begins and ends. A null ends before it begins."""
    (count,) = _COUNT.unpack_from(buffer, start)
    at = start + _COUNT.size
    for _ in range(count):
        (length,) = _LENGTH.unpack_from(buffer, at)
        at += _LENGTH.size
        if at + length > end:
            raise ValueError("a column is longer than its row")
        yield at, at + length
        at += max(length, 0)


def _fields(buffer: bytearray, start: int) -> list[dict[str, object]]:
    (count,) = _COUNT.unpack_from(buffer, start)
    position = start + _COUNT.size
    fields: list[dict[str, object]] = []
    for _ in range(count):
        end = buffer.index(0, position)
        name = buffer[position:end].decode(errors="replace")
        table, column, type_oid, size, modifier, _format = _COLUMN.unpack_from(buffer, end + 1)
        position = end + 1 + _COLUMN.size
        fields.append(
            {
                "name": name,
                "dataTypeID": type_oid,
                "tableID": table,
                "columnID": column,
                "dataTypeSize": size,
                "dataTypeModifier": modifier,
                "format": "text",
            }
        )
    return fields


def _parse_tag(tag: str) -> tuple[str, int | None]:
    """`INSERT 0 3` → INSERT and 3; `CREATE TABLE` → CREATE and None."""
    command, _, rest = tag.partition(" ")
    count = rest.rpartition(" ")[2] if command == "INSERT" else rest
    return command, int(count) if count.isdecimal() else None

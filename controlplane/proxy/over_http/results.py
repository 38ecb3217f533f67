"""Writes Postgres's answers to statements as JSON while they arrive. Rows are held as Python
objects only until the chunk that they arrived in is written."""

import io
import json
import math
import re
import struct
from collections.abc import Callable
from json.encoder import encode_basestring

from controlplane.proxy.over_http.request import named_fields
from controlplane.proxy.over_http.statements import Batch, Statement
from controlplane.proxy.wire import messages
from controlplane.proxy.wire.messages import MalformedMessage

_COUNT = struct.Struct("!H")
_LENGTH = struct.Struct("!i")
# A column's description after its name: table, column number, type, type size, modifier, format.
_COLUMN = struct.Struct("!IhIhih")

Row = list[str | None]

# The most notices of a statement that are passed on, and their bytes. A loop may raise any number.
MAX_NOTICES, MAX_NOTICE_BYTES = 100, 65_536


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
        self._write_rows: Callable[[list[Row]], str] = _write_nothing
        self._rows: list[Row] = []
        self._has_rows = False
        self._has_results = False
        self._is_open = False
        # Those of the current statement, each by the names of its fields; their bytes, and how many
        # more there were.
        self.notices: list[dict[str, object]] = []
        self._notice_bytes = self.notices_left_out = 0
        self.written = 0
        # How many statements have completed.
        self.ended = 0

    def describe(self, buffer: bytearray, start: int) -> None:
        """Takes a RowDescription. Raises MalformedMessage."""
        try:
            self._fields = _fields(buffer, start)
        except (struct.error, ValueError) as error:
            raise MalformedMessage("invalid RowDescription") from error

    def add(self, buffer: bytearray, start: int) -> None:
        """Takes a DataRow. Raises MalformedMessage."""
        try:
            self._rows.append(row_of(buffer, start))
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
        """Writes the rows taken since the last call. Raises MalformedMessage."""
        if not self._rows:
            return
        rows, self._rows = self._rows, []
        self._open()
        try:
            written = self._write_rows(rows)
        except (UnreadableArray, ValueError, IndexError) as error:
            raise MalformedMessage("invalid value in a DataRow") from error
        self._add("," + written if self._has_rows else written)
        self._has_rows = True

    def complete(self, tag: str) -> None:
        """Takes the tag that ends the current statement. Raises MalformedMessage."""
        if self._statement is not None:
            self.ended += 1
            self.write()
            self._open()
            command, count = _parse_tag(tag)
            end: dict[str, object] = {"command": command, "rowCount": count}
            if self.notices:
                end["perch:notices"] = self.notices
            if self.notices_left_out:
                end["perch:notices_left_out"] = self.notices_left_out
            self._add("]," + json.dumps(end, ensure_ascii=False)[1:])
        self._statement = next(self._statements, None)
        self._fields, self._has_rows, self._is_open = [], False, False
        self.notices = []
        self._notice_bytes = self.notices_left_out = 0

    def body(self) -> bytes:
        """Returns the whole answer."""
        return b"".join([*self._parts, b"]}"] if self.is_batch else self._parts)

    def _open(self) -> None:
        if self._is_open or self._statement is None:
            return
        self._is_open = True
        as_arrays = self._statement.as_arrays
        self._write_rows = _writer(self._fields, as_text=self._batch.as_text, as_arrays=as_arrays)
        head = json.dumps({"rowAsArray": as_arrays, "fields": self._fields}, ensure_ascii=False)
        separator = "," if self._has_results else ""
        self._has_results = True
        self._add(f'{separator}{head[:-1]}, "rows":[')

    def _add(self, text: str) -> None:
        part = text.encode(errors="replace")
        self.written += len(part)
        self._parts.append(part)


def _write_nothing(rows: list[Row]) -> str:
    raise MalformedMessage(f"{len(rows)} rows without a RowDescription")


def _writer(
    fields: list[dict[str, object]], *, as_text: bool, as_arrays: bool
) -> Callable[[list[Row]], str]:
    """Returns a function that writes rows of these fields as JSON, separated by commas."""
    names = [string(str(field["name"])) for field in fields]
    encoders = [string if as_text else encoder(int(str(one["dataTypeID"]))) for one in fields]

    def write(row: Row) -> str:
        columns = [
            "null" if text is None else encode(text)
            for encode, text in zip(encoders, row, strict=True)
        ]
        if as_arrays:
            return "[" + ",".join(columns) + "]"
        return "{" + ",".join(map("{}:{}".format, names, columns)) + "}"

    return lambda rows: ",".join(map(write, rows))


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


_BOOL, _INT2, _INT4, _FLOAT4, _FLOAT8, _JSON, _JSONB = 16, 21, 23, 700, 701, 114, 3802
# By OID: Postgres's own array types whose elements are not written as strings, with the elements'.
_ARRAYS = {
    1000: _BOOL,
    1005: _INT2,
    1007: _INT4,
    1021: _FLOAT4,
    1022: _FLOAT8,
    199: _JSON,
    3807: _JSONB,
}
# Postgres's own array types whose elements are written as strings: bytea, char, name, int8, text,
# oid, tid, xid, cid, bpchar, varchar, dates and times, bit, numeric, uuid, addresses, ranges, and
# the others. box[] is not among them, because it alone is separated by semicolons.
_ARRAYS_OF_STRINGS = frozenset(
    map(
        int,
        "143 210 271 629 651 719 775 791 1001 1002 1003 1006 1008 1009 1010 1011 1012 1013 1014"
        " 1015 1016 1017 1018 1019 1027 1028 1034 1040 1041 1115 1182 1183 1185 1187 1231 1263"
        " 1270 1561 1563 2201 2207 2208 2209 2210 2211 2949 2951 3221 3643 3644 3645 3735 3770"
        " 3905 3907 3909 3911 3913 3927 4073 4090 4097 4192 5039 6150 6151 6152 6153 6155"
        " 6157".split(),
    )
)

# A brace or comma, an element in quotes, one without, or a quote that no other ends. Possessive, so
# that the time is linear, because computes choose the text.
_TOKEN = re.compile(r'[{},]|"((?:[^"\\]++|\\.)*+)"|([^{},"]++)|"', re.DOTALL)
# Their JSON, and by how much they change the depth.
_MARKS = {"{": ("[", 1), "}": ("]", -1), ",": (",", 0)}

# No other thread goes on within one call of C. So long strings are written in pieces of this many
# characters.
_CHUNK_LENGTH = 65_536

Encoder = Callable[[str], str]


class UnreadableArray(Exception):
    """The text of an array type's value is not an array."""


def encoder(type_oid: int) -> Encoder:
    """Returns a function that converts a column of this type from Postgres's text to JSON.

    The function raises UnreadableArray or ValueError if the text is not such a column's.
    """
    if type_oid in _ARRAYS:
        of_element = _SCALARS[_ARRAYS[type_oid]]
        return lambda text: _json_array(text, of_element)
    if type_oid in _ARRAYS_OF_STRINGS:
        return lambda text: _json_array(text, string)
    return _SCALARS.get(type_oid, string)


def string(text: str) -> str:
    if len(text) <= _CHUNK_LENGTH:
        return encode_basestring(text)
    pieces = (text[at : at + _CHUNK_LENGTH] for at in range(0, len(text), _CHUNK_LENGTH))
    return '"' + "".join(encode_basestring(piece)[1:-1] for piece in pieces) + '"'


def _bool(text: str) -> str:
    return "true" if text == "t" else "false"


def _float(text: str) -> str:
    # JSON has neither infinity nor NaN.
    return text if math.isfinite(float(text)) else string(text)


_SCALARS: dict[int, Encoder] = {
    _BOOL: _bool,
    _INT2: str,
    _INT4: str,
    _FLOAT4: _float,
    _FLOAT8: _float,
    _JSON: str,
    _JSONB: str,
}


def _json_array(text: str, of_element: Encoder) -> str:
    """Converts an array to JSON, without the bounds that Postgres may write before it. Raises
    UnreadableArray."""
    if text.startswith("["):
        _, _, text = text.partition("=")
    # A list of as many small strings would take twenty times the memory.
    written = io.StringIO()
    depth = 0
    for token in _TOKEN.finditer(text):
        quoted, plain = token.groups()
        if token[0] == '"' or (token.lastindex and depth <= 0):
            raise UnreadableArray
        if not token.lastindex:
            mark, change = _MARKS[token[0]]
            depth += change
        elif plain == "NULL":
            mark = "null"
        else:
            mark = of_element(_unescaped(quoted) if plain is None else plain)
        written.write(mark)
    if depth or not text:
        raise UnreadableArray
    return written.getvalue()


def _unescaped(text: str) -> str:
    return "\\".join(part.replace("\\", "") for part in text.split("\\\\"))

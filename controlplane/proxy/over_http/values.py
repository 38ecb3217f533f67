"""Converts between JSON values and Postgres's text format: parameters into text, and columns into
JSON for clients that do not ask for raw text. Pure functions."""

import io
import json
import math
import re
from collections.abc import Callable
from json.encoder import encode_basestring

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
# characters, and `iterencode` writes JSON value by value.
_CHUNK_LENGTH = 65_536
_JSON_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))

Encoder = Callable[[str], str]


class UnreadableArray(Exception):
    """The text of an array type's value is not an array."""


def parameter(value: object) -> str | None:
    """Returns a JSON value as a parameter's text. Lists become arrays, objects JSON."""
    if value is None:
        return None
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return _array(value)
    if type(value) is int:
        return str(value)
    return "".join(_JSON_ENCODER.iterencode(value))


def _array(values: list[object]) -> str:
    return "{" + ",".join(map(_element, values)) + "}"


def _element(value: object) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, list):
        return _array(value)
    if isinstance(value, (str, dict)):
        escaped = (parameter(value) or "").replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    return parameter(value) or ""


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

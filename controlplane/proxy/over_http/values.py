"""Converts between JSON values and Postgres's text format: parameters into text, and columns into
JSON for clients that do not ask for raw text. Pure functions."""

import json
import math
from collections.abc import Callable, Iterator

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
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


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
        return lambda text: _json_array(text, _string)
    return _SCALARS.get(type_oid, _string)


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _bool(text: str) -> str:
    return "true" if text == "t" else "false"


def _as_it_is(text: str) -> str:
    return text


def _float(text: str) -> str:
    # JSON has neither infinity nor NaN.
    return text if math.isfinite(float(text)) else _string(text)


_SCALARS: dict[int, Encoder] = {
    _BOOL: _bool,
    _INT2: _as_it_is,
    _INT4: _as_it_is,
    _FLOAT4: _float,
    _FLOAT8: _float,
    _JSON: _as_it_is,
    _JSONB: _as_it_is,
}


def _json_array(text: str, of_element: Encoder) -> str:
    """Converts an array to JSON, without the bounds that Postgres may write before it. Raises
    UnreadableArray."""
    if text.startswith("["):
        _, _, text = text.partition("=")
    written: list[str] = []
    depth = 0
    for kind, token in _tokens(text):
        if kind == "text":
            if not depth:
                raise UnreadableArray
            written.append("null" if token is None else of_element(token))
        else:
            depth += {"{": 1, "}": -1}.get(kind, 0)
            written.append({"{": "[", "}": "]"}.get(kind, ","))
    if depth or not written:
        raise UnreadableArray
    return "".join(written)


def _tokens(text: str) -> Iterator[tuple[str, str | None]]:
    """Yields braces and commas as they are, and each element as `text`, with None for NULL."""
    position = 0
    while position < len(text):
        character = text[position]
        if character in "{},":
            yield character, character
            position += 1
        elif character == '"':
            element, position = _quoted(text, position + 1)
            yield "text", element
        else:
            end = position
            while end < len(text) and text[end] not in "{},":
                end += 1
            element = text[position:end]
            yield "text", None if element == "NULL" else element
            position = end


def _quoted(text: str, position: int) -> tuple[str, int]:
    """Returns the element whose opening quote is before the position, and the position after its
    closing quote."""
    element: list[str] = []
    while position < len(text):
        character = text[position]
        if character == '"':
            return "".join(element), position + 1
        if character == "\\":
            position += 1
        element.append(text[position : position + 1])
        position += 1
    raise UnreadableArray

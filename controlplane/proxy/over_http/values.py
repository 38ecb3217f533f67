"""Converts a column's text, as Postgres writes it, to JSON. No other thread goes on within one call
of C, so long values are converted in pieces."""

import codecs
import io
import math
import re
from collections.abc import Callable, Generator, Iterable, Iterator
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

# The most characters or bytes of a piece.
CHUNK_LENGTH = 65_536

_QUOTED = r'(?:[^"\\]{1,256}+|\\.)'
_PLAIN = rf'[^{{}},"]{{1,{CHUNK_LENGTH}}}+'
# A brace or comma, an element in quotes, one without, or the beginning of a longer element.
# Possessive, so that the time is linear, because computes choose the text.
_TOKEN = re.compile(rf'([{{}},])|"({_QUOTED}{{0,256}}+)"|({_PLAIN})(?![^{{}},"])|.', re.DOTALL)
_QUOTED_PIECE, _PLAIN_PIECE = re.compile(rf"{_QUOTED}{{1,256}}+", re.DOTALL), re.compile(_PLAIN)
# Their JSON, and by how much they change the depth.
_MARKS = {"{": ("[", 1), "}": ("]", -1), ",": (",", 0)}

Encoder = Callable[[str], str]


class UnreadableArray(Exception):
    """The text of an array type's value is not an array."""


def encoder(type_oid: int) -> Encoder:
    """Returns a function that converts a column of this type from Postgres's text to JSON. A column
    of more than CHUNK_LENGTH must be given to `in_pieces` with the function instead.

    The function raises UnreadableArray or ValueError if the text is not such a column's.
    """
    if type_oid in _ARRAYS:
        return _ArrayEncoder(_SCALARS[_ARRAYS[type_oid]])
    if type_oid in _ARRAYS_OF_STRINGS:
        return _ArrayEncoder(string)
    return _SCALARS.get(type_oid, string)


def decoded(buffer: bytearray, start: int, end: int) -> Iterator[str]:
    """Yields the text from `start` to `end` in pieces."""
    while start < end:
        stop = min(start + CHUNK_LENGTH, end)
        # A character that goes on in the next piece is left to that.
        text, size = codecs.utf_8_decode(buffer[start:stop], "replace", stop == end)
        start += size
        yield text


def in_pieces(texts: Iterable[str], encode: Encoder) -> Iterator[str]:
    """Yields the JSON of a long value, whose text is given in pieces. `encode` is its `encoder`.
    Raises what that raises."""
    if isinstance(encode, _ArrayEncoder):
        yield from encode.pieces("".join(texts))
    elif encode is str:
        yield from texts
    elif encode is string:
        yield '"'
        for text in texts:
            yield string(text)[1:-1]
        yield '"'
    else:
        raise ValueError("too long")


string: Encoder = encode_basestring


def _float(text: str) -> str:
    # JSON has neither infinity nor NaN.
    return text if math.isfinite(float(text)) else string(text)


_SCALARS: dict[int, Encoder] = {
    _BOOL: lambda text: "true" if text == "t" else "false",
    _INT2: str,
    _INT4: str,
    _FLOAT4: _float,
    _FLOAT8: _float,
    _JSON: str,
    _JSONB: str,
}


class _ArrayEncoder:
    def __init__(self, of_element: Encoder) -> None:
        self._of_element = of_element

    def __call__(self, text: str) -> str:
        return "".join(self.pieces(text))

    def pieces(self, text: str) -> Iterator[str]:
        """Yields an array as JSON, without the bounds that Postgres may write before it. Raises
        UnreadableArray."""
        of_element = self._of_element
        position = text.find("=") + 1 if text.startswith("[") else 0
        if position == len(text):
            raise UnreadableArray
        # A list of as many small strings would take twenty times the memory.
        written, size, depth = io.StringIO(), 0, 0
        while position < len(text):
            for token in _TOKEN.finditer(text, position):
                kind = token.lastindex
                if kind == 1:
                    mark, change = _MARKS[token[1]]
                    depth += change
                elif depth <= 0:
                    raise UnreadableArray
                elif kind == 2:
                    mark = of_element(_unescaped(token[2]))
                elif kind == 3:
                    plain = token[3]
                    mark = "null" if plain == "NULL" else of_element(plain)
                else:
                    break
                size += written.write(mark)
                if size > CHUNK_LENGTH:
                    yield written.getvalue()
                    written, size = io.StringIO(), 0
            else:
                break
            yield written.getvalue()
            written, size = io.StringIO(), 0
            position = yield from _long_element(text, token.start(), of_element)
        if depth:
            raise UnreadableArray
        yield written.getvalue()


def _long_element(text: str, start: int, of_element: Encoder) -> Generator[str, None, int]:
    """Yields the JSON of the element that begins at `start`, in pieces. Returns where it ends.
    Raises UnreadableArray."""
    is_quoted = text[start] == '"'
    position = start + is_quoted

    def texts() -> Iterator[str]:
        nonlocal position
        while found := (_QUOTED_PIECE if is_quoted else _PLAIN_PIECE).match(text, position):
            position = found.end()
            yield _unescaped(found[0]) if is_quoted else found[0]

    yield from in_pieces(texts(), of_element)
    if is_quoted and not text.startswith('"', position):
        raise UnreadableArray
    return position + is_quoted


def _unescaped(text: str) -> str:
    return "\\".join(part.replace("\\", "") for part in text.split("\\\\"))

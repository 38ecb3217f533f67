"""Parses a `POST /sql`: the endpoint, the role, the statements, and the format of the answer. Pure
functions on headers and bytes."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from controlplane.proxy.over_http.request import (
    ConnectionStringRefused,
    RequestRefused,
    read_json,
    unparsable,
)
from controlplane.proxy.wire.destination import Destination, find_destination
from controlplane.proxy.wire.errors import ForeignServerName

CONNECTION_STRING = "neon-connection-string"
RAW_TEXT_OUTPUT = "neon-raw-text-output"
ARRAY_MODE = "neon-array-mode"
POOL_OPT_IN = "neon-pool-opt-in"
ISOLATION_LEVEL = "neon-batch-isolation-level"
READ_ONLY = "neon-batch-read-only"
DEFERRABLE = "neon-batch-deferrable"
# Perch's own: the answer has the notices of each statement.
NOTICES = "perch-notices"

_ISOLATION_LEVELS = {
    "ReadUncommitted": "READ UNCOMMITTED",
    "ReadCommitted": "READ COMMITTED",
    "RepeatableRead": "REPEATABLE READ",
    "Serializable": "SERIALIZABLE",
}
# The most parameters that a Bind message can have.
_MAX_PARAMETERS = 65_535
_PASSED_ON = ("application_name", "options")
_SECOND = re.compile(r",\s*postgres(?:ql)?://", re.IGNORECASE)

# A list of EXPLAIN's options: names, each with one word or number or none. A list that contains
# anything else, such as a query in parentheses, is left unchanged.
_OPTION = r"\s*(?!SELECT\b)\w++(?:\s+\w++)?\s*"
_EXPLAIN = re.compile(rf"\s*EXPLAIN\s*\(({_OPTION}(?:,{_OPTION})*)\)", re.ASCII | re.IGNORECASE)
# In characters. Matching takes memory of some hundred times the list's size.
_MAX_EXPLAIN_LENGTH = 4096
_NEONS = re.compile(r"\s*(?:FILECACHE|PREFETCH)\b.*", re.ASCII | re.IGNORECASE | re.DOTALL)

_ASCII = "".join(map(chr, range(128)))
# No other thread goes on within one call of C. So `iterencode` writes JSON value by value.
_JSON_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))

Headers = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Sender:
    """Who sends a request, and where to, by the connection string in its header."""

    connection_string: str
    role: str
    password: bytes
    destination: Destination


@dataclass(frozen=True, slots=True)
class Statement:
    query: bytes
    parameters: list[bytes | None]
    # True for rows as lists, False for rows as objects.
    as_arrays: bool


@dataclass(frozen=True, slots=True)
class Batch:
    """The statements to execute, and the format of their answer."""

    statements: list[Statement]
    # The statement that begins a transaction around all; None for one statement on its own.
    begin: bytes | None
    # True for columns as the text that Postgres gives, False for JSON's own types.
    as_text: bool
    # True if the answer is to have the notices.
    with_notices: bool = False


def read_sender(headers: Headers, domains: Sequence[str], last: Sender | None) -> Sender:
    """Parses the connection string, of an endpoint below one of the domains. Returns `last`, the
    sender of an earlier request, if that had the same string. Raises ConnectionStringRefused, what
    `find_destination` raises, or RequestRefused if the request uses another way to authenticate."""
    if "authorization" in headers:
        raise RequestRefused(
            "JWT authorization is not offered by this server: "
            "send the password in Neon-Connection-String and no Authorization header",
            sqlstate="28000",
        )
    given = headers.get(CONNECTION_STRING)
    if given is None:
        raise ConnectionStringRefused(f"invalid header: {CONNECTION_STRING}")
    if last is not None and last.connection_string == given:
        return last
    # A reverse proxy may have joined two headers.
    if _SECOND.search(given):
        raise ConnectionStringRefused("invalid connection string: there are two")
    try:
        # urlsplit would normalize other characters, which takes time by the square of the length.
        url = urlsplit(quote(given, safe=_ASCII, errors="surrogateescape"))
        host, database = url.hostname, unquote(url.path[1:], errors="strict")
        role = unquote(url.username or "", errors="strict")
        password = unquote(url.password or "", errors="surrogateescape")
    except ValueError as error:
        raise ConnectionStringRefused(f"invalid connection string: {error}") from error
    if url.scheme not in ("postgres", "postgresql"):
        raise ConnectionStringRefused("incorrect scheme")
    for is_missing, what in (
        (not database, "missing database name"),
        (not role, "missing username"),
        (not password, "missing authentication credentials: required password"),
        (not host, "missing hostname"),
    ):
        if is_missing:
            raise ConnectionStringRefused(what)
    if "\0" in role + password + database:
        raise ConnectionStringRefused("invalid connection string: null character")
    parameters = {
        b"user": role.encode(),
        b"database": database.encode(),
        b"client_encoding": b"UTF8",
        **_passed_on(url.query),
    }
    try:
        destination = find_destination(parameters, server_name=host, domains=domains)
    except ForeignServerName as error:
        raise ConnectionStringRefused(f"invalid hostname: {host}") from error
    return Sender(given, role, password.encode(errors="surrogateescape"), destination)


def _passed_on(query: str) -> dict[bytes, bytes]:
    given = dict(parse_qsl(query, errors="replace"))
    return {
        name.encode(): given[name].encode(errors="replace")
        for name in _PASSED_ON
        if name in given and "\0" not in given[name]
    }


def read_batch(headers: Headers, body: bytes) -> Batch:
    """Parses the request's body. Raises RequestRefused."""
    document = read_json(body)
    as_arrays = _is_on(headers, ARRAY_MODE)
    is_batch = isinstance(document, dict) and "query" not in document
    several = document.get("queries") if is_batch else [document]
    if not isinstance(several, list):
        raise unparsable("`query`, or a list `queries`, is missing")
    return Batch(
        statements=[_statement(one, as_arrays=as_arrays) for one in several],
        begin=_begin(headers) if is_batch else None,
        as_text=_is_on(headers, RAW_TEXT_OUTPUT),
        with_notices=_is_on(headers, NOTICES),
    )


def echoed(headers: Headers) -> list[tuple[str, str]]:
    """Returns the headers about its transaction that the answer to a batch repeats."""
    echoed = [(name, "true") for name in (READ_ONLY, DEFERRABLE) if _is_on(headers, name)]
    if ISOLATION_LEVEL in headers:
        echoed.append((ISOLATION_LEVEL, headers[ISOLATION_LEVEL]))
    return echoed


def _begin(headers: Headers) -> bytes:
    words = ["BEGIN"]
    if ISOLATION_LEVEL in headers:
        level = _ISOLATION_LEVELS.get(headers[ISOLATION_LEVEL])
        if level is None:
            raise RequestRefused("invalid isolation level")
        words.append(f"ISOLATION LEVEL {level}")
    for name, mode in ((READ_ONLY, "READ ONLY"), (DEFERRABLE, "DEFERRABLE")):
        # A client that asks for a read-only batch in other words must not get one that writes.
        if headers.get(name, "false").lower() not in ("true", "false"):
            raise RequestRefused(f"invalid value of {name}: use true or false")
        if _is_on(headers, name):
            words.append(mode)
    return " ".join(words).encode()


def _statement(sent: Any, *, as_arrays: bool) -> Statement:
    if not isinstance(sent, dict) or not isinstance(sent.get("query"), str):
        raise unparsable("`query` must be a string")
    params = sent.get("params")
    if params is None:
        params = []
    if not isinstance(params, list):
        raise unparsable("`params` must be a list")
    if len(params) > _MAX_PARAMETERS:
        raise RequestRefused(
            f"too many parameters in a statement: {len(params)} (max is {_MAX_PARAMETERS})",
            sqlstate="54023",
        )
    own_mode = sent.get("arrayMode")
    try:
        texts = [parameter(value) for value in params]
    except RecursionError as error:
        raise unparsable("nested too deeply") from error
    return Statement(
        query=_encoded(without_neons_options(sent["query"])),
        parameters=[None if text is None else _encoded(text) for text in texts],
        as_arrays=own_mode if isinstance(own_mode, bool) else as_arrays,
    )


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


def _encoded(text: str) -> bytes:
    try:
        encoded = text.encode()
    except UnicodeEncodeError as error:
        raise _unfit(ord(text[error.start])) from error
    if b"\0" in encoded:
        raise _unfit(0)
    return encoded


def _unfit(character: int) -> RequestRefused:
    return RequestRefused(
        f'invalid byte sequence for encoding "UTF8": 0x{character:02x}', sqlstate="22021"
    )


def _is_on(headers: Headers, name: str) -> bool:
    return headers.get(name, "").lower() == "true"


def without_neons_options(query: str) -> str:
    """Returns the statement with `FILECACHE` and `PREFETCH` blanked out in the list of EXPLAIN's
    options that it begins with. Only Neon's own Postgres has these options, which Neon's MCP server
    sends; any other Postgres refuses the whole statement because of them. The statement's length
    stays the same, so that positions in errors are those of the original. A very long list is left
    unchanged.
    """
    found = _EXPLAIN.match(query, 0, _MAX_EXPLAIN_LENGTH)
    if found is None:
        return query
    options = found[1].split(",")
    kept = [one for one in options if not _NEONS.fullmatch(one)]
    if len(kept) == len(options):
        return query
    start, end = found.span(1)
    if not kept:
        # Postgres does not accept an empty list.
        start, end = start - 1, end + 1
    return query[:start] + ",".join(kept).ljust(end - start) + query[end:]

"""SQL on a branch by `POST /sql` at the HTTP address of Perch's proxy (docs/how-to/serverless.md).

So the console needs no database driver, and a query wakes an idle endpoint. The address is that of
the API's connection string, which is untrusted: the console uses only TLS, and connects to
loopback addresses only if the API is at one as well.
"""

import logging
import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import requests

from console.api.bounded_http import (
    BoundedAdapter,
    TooLong,
    host_in_url,
    is_loopback,
    never_sent,
    proxies_for,
    read_json,
    read_whole,
)
from console.api.fields import number, text
from console.api.servers import Server

TYPES = {
    16: "boolean", 17: "bytea", 18: "char", 19: "name", 20: "bigint", 21: "smallint",
    23: "integer", 24: "regproc", 25: "text", 26: "oid", 27: "tid", 28: "xid", 114: "json",
    142: "xml", 600: "point", 601: "lseg", 602: "path", 603: "box", 604: "polygon", 628: "line",
    650: "cidr", 700: "real", 701: "double precision", 705: "unknown", 718: "circle",
    790: "money", 829: "macaddr", 869: "inet", 1042: "character", 1043: "character varying",
    1082: "date", 1083: "time", 1114: "timestamp", 1184: "timestamptz", 1186: "interval",
    1266: "timetz", 1560: "bit", 1562: "bit varying", 1700: "numeric", 2205: "regclass",
    2206: "regtype", 2249: "record", 2278: "void", 2950: "uuid", 3220: "pg_lsn",
    3614: "tsvector", 3615: "tsquery", 3802: "jsonb", 3904: "int4range", 3906: "numrange",
    3908: "tsrange", 3910: "tstzrange", 3912: "daterange", 3926: "int8range", 4072: "jsonpath",
    1000: "boolean[]", 1001: "bytea[]", 1003: "name[]", 1005: "smallint[]", 1007: "integer[]",
    1009: "text[]", 1015: "character varying[]", 1016: "bigint[]", 1021: "real[]",
    1022: "double precision[]", 1028: "oid[]", 1034: "aclitem[]", 1115: "timestamp[]",
    1182: "date[]", 1185: "timestamptz[]", 1231: "numeric[]", 199: "json[]", 2951: "uuid[]",
    3807: "jsonb[]",
}  # fmt: skip
# Values of these types are aligned to the right.
NUMBERS = frozenset(
    {"bigint", "smallint", "integer", "real", "double precision", "numeric", "money", "oid"}
)


def type_name(oid: object) -> str:
    """Return the name of a type; "" for a user-defined one, whose name the answer lacks."""
    return TYPES.get(oid, "") if isinstance(oid, int) else ""


log = logging.getLogger(__name__)

# Seconds to connect, and seconds beyond the time of the statements: for waking and transport.
CONNECT_WITHIN, BESIDES = 5, 40
# The most seconds that all statements together may take.
LONGEST_WAIT = 600
# Bytes of an answer. Much less of it is shown.
LONGEST_ANSWER = 8 << 20
# Seconds for which the service's certificate authority is cached.
AUTHORITY_KEPT = 300
# The path of the management API. The service's certificate authority is beside it.
API_PATH = "/api/v2"


# Sent before each statement if it may only read. Postgres does not let a transaction become
# read-write once it has run a query, and a single statement cannot end the block and then do more.
# If a statement ends the block, as COMMIT does, the next one is in a new block. A BEGIN inside a
# block causes only a warning.
READ_ONLY = ("BEGIN READ ONLY", "SELECT 1")


class SqlFailed(Exception):
    """The statements were refused or could not be sent. The message is for the user who wrote
    them. Unless it says otherwise, no statement took effect."""

    def __init__(
        self,
        message: str,
        *,
        code: str = "",
        detail: str = "",
        hint: str = "",
        position: int = 0,
        statement: int = 0,
    ) -> None:
        super().__init__(message)
        self.message = message
        # The SQLSTATE; "" if Postgres was not reached.
        self.code = code
        self.detail = detail
        self.hint = hint
        # Characters into the statement, from 1; 0 if Postgres does not say.
        self.position = position
        # Index of the statement that failed; the number of statements if the commit failed.
        self.statement = statement


@dataclass(frozen=True)
class Query:
    text: str
    parameters: Sequence[str] = ()


@dataclass(frozen=True)
class Column:
    name: str
    # "" if it is not one of Postgres's built-in types.
    type: str

    @property
    def is_number(self) -> bool:
        return self.type in NUMBERS


@dataclass(frozen=True)
class Result:
    """The result of one statement. Values are text as Postgres writes it, None for NULL."""

    command: str
    row_count: int | None
    columns: Sequence[Column]
    rows: Sequence[Sequence[str | None]]


def run(
    server: Server, uri: str, queries: Sequence[Query], *, seconds: int, read_only: bool
) -> list[Result]:
    """Run the queries at the database of `uri`, a connection string from `server`.

    Several queries run in one transaction. Each may take `seconds`. With `read_only`, they can
    change nothing, and nothing in their text can circumvent that. Raises SqlFailed.
    """
    url = _address(server, uri)
    before = [Query(text) for text in READ_ONLY] if read_only else []
    # Each query is the last of `step` statements sent.
    step = len(before) + 1
    statements = [
        {"query": one.text, "params": list(one.parameters)}
        for query in queries
        for one in (*before, query)
    ]
    headers = {
        "Neon-Connection-String": _with_options(uri, seconds=seconds, read_only=read_only),
        "Neon-Raw-Text-Output": "true",
        "Neon-Array-Mode": "true",
    }
    body = {"queries": statements} if len(statements) != 1 else statements[0]
    try:
        with _session(server) as session:
            answer = session.post(
                url,
                json=body,
                headers=headers,
                timeout=(CONNECT_WITHIN, min(seconds * len(queries), LONGEST_WAIT) + BESIDES),
                allow_redirects=False,
                proxies=proxies_for(url),
                stream=True,
            )
            with answer:
                data = read_json(
                    read_whole(answer, longest=LONGEST_ANSWER), most_values=LONGEST_ANSWER
                )
    except TooLong as error:
        raise SqlFailed(
            f"The statements have run, but the result is larger than {LONGEST_ANSWER >> 20} "
            "MiB. Select fewer rows, with LIMIT, or fewer columns."
        ) from error
    except (ValueError, RecursionError) as error:
        raise SqlFailed(f"{url} does not respond like a Perch proxy.") from error
    except requests.RequestException as error:
        raise _unreachable(url, error) from error
    if not isinstance(data, Mapping):
        raise SqlFailed(f"{url} does not respond like a Perch proxy.")
    if not answer.ok:
        raise _refused(data, step=step)
    found = data.get("results") if len(statements) != 1 else [data]
    if not isinstance(found, list) or len(found) != len(statements):
        raise SqlFailed(f"{url} does not respond like a Perch proxy.")
    return [_result(one if isinstance(one, Mapping) else {}) for one in found[step - 1 :: step]]


def _address(server: Server, uri: str) -> str:
    try:
        parts = urlsplit(uri)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise SqlFailed("The server's connection string cannot be read.") from error
    if not host:
        raise SqlFailed("The server's connection string names no host.")
    if is_loopback(host) and not is_loopback(urlsplit(server.url).hostname or ""):
        raise SqlFailed(f"The server is elsewhere, but its connection string leads to {host}.")
    return f"https://{host_in_url(host)}:{port or 5432}/sql"


def _with_options(uri: str, *, seconds: int, read_only: bool) -> str:
    parts = urlsplit(uri)
    query = dict(parse_qsl(parts.query))
    options = [query.get("options", ""), f"-c statement_timeout={seconds * 1000}"]
    if read_only:
        options.append("-c default_transaction_read_only=on")
    query |= {"options": " ".join(options).strip(), "application_name": "perch-console"}
    return parts._replace(query=urlencode(query)).geturl()


class _Trusting(BoundedAdapter):
    """Trusts the service's own certificate authority besides the system's."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context
        super().__init__()

    def init_poolmanager(self, *args: Any, **named: Any) -> None:
        super().init_poolmanager(*args, ssl_context=self._context, **named)


def _session(server: Server) -> requests.Session:
    context = ssl.create_default_context()
    if pem := _authority(server):
        try:
            context.load_verify_locations(cadata=pem)
        except ssl.SSLError:
            log.warning("the service's authority cannot be read", extra={"url": server.url})
    session = requests.Session()
    session.mount("https://", _Trusting(context))
    return session


# By server's address: the PEM found there, and when, a time of time.monotonic().
_authorities: dict[str, tuple[str, float]] = {}


def _authority(server: Server) -> str:
    """Return the service's certificate authority in PEM.

    It is "" if the operator uses other certificates.
    """
    pem, found_at = _authorities.get(server.url, ("", float("-inf")))
    if time.monotonic() - found_at < AUTHORITY_KEPT:
        return pem
    url = f"{server.url.removesuffix(API_PATH)}/certificate-authority.pem"
    with requests.Session() as session:
        session.mount("http://", BoundedAdapter())
        session.mount("https://", BoundedAdapter())
        try:
            answer = session.get(
                url,
                timeout=CONNECT_WITHIN,
                stream=True,
                proxies=proxies_for(url),
                allow_redirects=False,
            )
            with answer:
                pem = (
                    read_whole(answer, longest=1 << 20).decode("ascii")
                    if answer.status_code == 200
                    else ""
                )
        except (requests.RequestException, ValueError) as error:
            log.warning("no authority", extra={"url": url, "error": type(error).__name__})
            return pem
    _authorities[server.url] = pem, time.monotonic()
    return pem


def _unreachable(url: str, error: requests.RequestException) -> SqlFailed:
    log.warning("proxy not reached", extra={"url": url, "kind": type(error).__name__})
    where = urlsplit(url).netloc
    if isinstance(error, requests.exceptions.SSLError):
        return SqlFailed(f"The console does not trust the certificate of {where}.")
    if isinstance(error, requests.Timeout):
        return SqlFailed(f"{where} did not respond in time. The statements may still take effect.")
    if never_sent(error):
        return SqlFailed(f"The console cannot reach {where}.")
    return SqlFailed(f"Lost the connection to {where}. The statements may have taken effect.")


def _refused(data: Mapping[str, Any], *, step: int) -> SqlFailed:
    position = text(data, "position")
    return SqlFailed(
        text(data, "message") or "The proxy refused.",
        code=text(data, "code"),
        detail=text(data, "detail"),
        hint=text(data, "hint"),
        position=int(position) if position.isdecimal() and len(position) < 9 else 0,
        statement=int(number(data, "perch:statement")) // step,
    )


def _result(data: Mapping[str, Any]) -> Result:
    fields, rows = data.get("fields"), data.get("rows")
    count = number(data, "rowCount", -1)
    columns = (
        [one for one in fields if isinstance(one, Mapping)] if isinstance(fields, list) else []
    )
    return Result(
        command=text(data, "command"),
        row_count=int(count) if count >= 0 else None,
        columns=[Column(text(one, "name"), type_name(one.get("dataTypeID"))) for one in columns],
        rows=[row for row in rows if isinstance(row, list)] if isinstance(rows, list) else [],
    )

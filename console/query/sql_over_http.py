"""SQL on a branch by `POST /sql` at the HTTP address of Perch's proxy (docs/how-to/serverless.md).

So the console needs no database driver, and a query wakes an idle endpoint. The address is that of
the API's connection string, which is untrusted: the console uses only TLS, and connects to
loopback addresses only if the API is at one as well."""

import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import requests

from console.api.bounded_http import (
    MAX_JSON_VALUES,
    TooLong,
    TooManyValues,
    host_in_url,
    is_loopback,
    never_sent,
    proxies_for,
    read_json,
    read_whole,
)
from console.api.fields import count, text, whole
from console.api.transport import Server
from console.memory import MemoryExhausted, Reservation, TooManyRuns, budget
from console.query.authority import CONNECT_TIMEOUT, session_for
from console.query.pg_types import NUMBERS, type_name
from console.turns import in_turns

log = logging.getLogger(__name__)

# Seconds beyond the time of the statements, for the wake and the transport.
EXTRA_TIMEOUT = 40
# The most seconds that all statements together may take.
MAX_TIMEOUT = 600
# Bytes of an answer. Much less of it is shown.
MAX_RESULT_BYTES = 8 << 20
# Notices of a result, and characters of each of their texts and of those of a failure.
MAX_NOTICES, MAX_WORDS_LENGTH = 100, 10_000
# The sessions' `application_name`. That of a run that can be cancelled ends with the run's marker.
APPLICATION = "perch-console"
# Settings with which Postgres reads each value as it has written it.
EXACT_OPTIONS = (
    "-c datestyle=ISO -c intervalstyle=postgres -c extra_float_digits=1 -c bytea_output=hex "
    "-c array_nulls=on -c timezone=UTC"
)


@dataclass(frozen=True)
class Query:
    text: str
    # Texts, None for NULL, and lists of them for arrays.
    parameters: Sequence[object] = ()


# Sent before each statement of a read-only run. After its first query, Postgres lets no transaction
# become read-write, and a single statement cannot end the block and then do more. If a statement
# ends the block, the next one is in a new block. A BEGIN inside a block only warns.
READ_ONLY = ("BEGIN READ ONLY", "SELECT 1")
# Some statements write in such a block nevertheless, as EXPLAIN ANALYZE CREATE TABLE AS does. So
# nothing is committed: this is sent at the end, and in the place of each statement that commits.
# Functions and procedures cannot commit within a block.
ROLLBACK = Query("ROLLBACK")
COMMITS = re.compile(r"commit\b|end\b|prepare\b(?!\s+\w+\s+as\b)", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True)
class Notice:
    """A message of a statement beside its result, as by RAISE NOTICE."""

    severity: str
    message: str
    detail: str = ""
    hint: str = ""


@dataclass(eq=False)
class SqlFailed(Exception):
    """The statements were refused or could not be sent. The message is for the user who wrote
    them. Unless it says otherwise, no statement took effect."""

    message: str
    _: KW_ONLY
    # The SQLSTATE; "" if Postgres was not reached.
    code: str = ""
    detail: str = ""
    hint: str = ""
    # Characters into the statement, from 1; 0 if Postgres does not say.
    position: int = 0
    # Index of the statement that failed; the number of statements if the commit failed.
    statement: int = 0
    # Those of that statement, and how many more there were.
    notices: Sequence[Notice] = ()
    notices_left_out: int = 0

    @property
    def is_cancel(self) -> bool:
        """Whether somebody cancelled the statement; Postgres has the same code for a timeout."""
        return self.code == "57014" and "timeout" not in self.message

    @property
    def is_of_the_server(self) -> bool:
        """Whether Postgres was not reached or broke, so that the statement is not at fault."""
        return self.code[:2] in ("", "08", "53", "57", "58", "XX")


class TooLarge(SqlFailed):
    """The statements have run, but their answer is larger than the console reads."""


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
    notices: Sequence[Notice] = ()
    # How many more notices there were.
    notices_left_out: int = 0


def cancel(server: Server, uri: str, marker: str, *, account: str) -> bool:
    """Cancel what runs with this marker, as the role of `uri`. Return False if nothing does. This
    sends SQL, because another process of the console may have sent the run, and servers other than
    Perch offer no other way. The account's runs leave room for it. Raises SqlFailed."""
    queries = [Query(CANCEL, (_application(marker),))]
    with Reservation(f"{account}, to cancel") as memory:
        (result,) = run(server, uri, queries, seconds=10, read_only=False, memory=memory)
    return any(row == ["t"] for row in result.rows)


CANCEL = """\
SELECT pg_catalog.pg_cancel_backend(pid) FROM pg_catalog.pg_stat_activity
WHERE application_name = $1 AND state = 'active' AND usename = CURRENT_USER"""


def run(
    server: Server,
    uri: str,
    queries: Sequence[Query],
    *,
    seconds: int,
    read_only: bool,
    memory: Reservation,
    marker: str = "",
    exact: bool = False,
) -> list[Result]:
    """Run the queries at the database of `uri`, a connection string from `server`. Several queries
    run in one transaction. Each may take `seconds`. With `read_only`, they can change nothing, and
    nothing in their text can circumvent that. `memory` grows by what the results take up. `marker`
    names this run to `cancel`. With `exact`, values are written and read as texts that lose
    nothing, whatever the role's settings are. Raises SqlFailed."""
    url = _address(server, uri)
    sent = list(queries)
    if read_only:
        before = [Query(text) for text in READ_ONLY]
        kept = [ROLLBACK if COMMITS.match(query.text) else query for query in queries]
        sent = [one for query in kept for one in (*before, query)] + [ROLLBACK]
    # Each query is the last of `step` statements sent.
    step = len(READ_ONLY) + 1 if read_only else 1
    statements = [
        json.dumps({"query": one.text, "params": list(one.parameters)}) for one in in_turns(sent)
    ]
    headers = {
        "Content-Type": "application/json",
        "Neon-Connection-String": _with_options(
            uri, seconds=seconds, read_only=read_only, marker=marker, exact=exact
        ),
        # Only Perch knows this header.
        "Perch-Notices": "true",
        "Neon-Raw-Text-Output": "true",
        "Neon-Array-Mode": "true",
    }
    body = ", ".join(statements)
    if len(statements) != 1:
        body = f'{{"queries": [{body}]}}'
    try:
        with budget.run(memory.account), session_for(server) as session:
            answer = session.post(
                url,
                data=body.encode(),
                headers=headers,
                timeout=(
                    CONNECT_TIMEOUT,
                    min(seconds * len(queries), MAX_TIMEOUT) + EXTRA_TIMEOUT,
                ),
                allow_redirects=False,
                proxies=proxies_for(url),
                stream=True,
            )
            with answer:
                content = read_whole(answer, longest=MAX_RESULT_BYTES, reserve=memory.grow)
                data = read_json(content, reserve=memory.grow)
    except TooManyRuns as error:
        raise SqlFailed(str(error)) from error
    except (TooLong, TooManyValues, MemoryExhausted) as error:
        raise TooLarge(
            f"The statements have run, but {_too_large(error)}. "
            "Select fewer rows, with LIMIT, or fewer columns."
        ) from error
    except (ValueError, RecursionError) as error:
        raise SqlFailed(f"{url} does not respond like a Perch proxy.") from error
    except requests.RequestException as error:
        raise _unreachable(url, error, read_only=read_only) from error
    if not isinstance(data, Mapping):
        raise SqlFailed(f"{url} does not respond like a Perch proxy.")
    if not answer.ok:
        raise _refused(data, step=step)
    found = data.get("results") if len(statements) != 1 else [data]
    if not isinstance(found, list) or len(found) != len(statements):
        raise SqlFailed(f"{url} does not respond like a Perch proxy.")
    return [_result(one if isinstance(one, Mapping) else {}) for one in found[step - 1 :: step]]


def _too_large(error: Exception) -> str:
    if isinstance(error, MemoryExhausted):
        return "the console has no memory for their result now"
    if isinstance(error, TooManyValues):
        return f"their result has more than {MAX_JSON_VALUES:,} rows and values"
    return f"the result is larger than {MAX_RESULT_BYTES >> 20} MiB"


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


def _application(marker: str) -> str:
    return f"{APPLICATION} {marker}".strip()


def _with_options(
    uri: str, *, seconds: int, read_only: bool, marker: str = "", exact: bool = False
) -> str:
    parts = urlsplit(uri)
    query = dict(parse_qsl(parts.query))
    options = [query.get("options", ""), f"-c statement_timeout={seconds * 1000}"]
    # What is typed has been split into statements by this rule.
    options.append("-c standard_conforming_strings=on")
    if exact:
        options.append(EXACT_OPTIONS)
    if read_only:
        options.append("-c default_transaction_read_only=on")
    query |= {"options": " ".join(options).strip(), "application_name": _application(marker)}
    return parts._replace(query=urlencode(query)).geturl()


def _unreachable(url: str, error: requests.RequestException, *, read_only: bool) -> SqlFailed:
    log.warning("proxy not reached", extra={"url": url, "kind": type(error).__name__})
    where = urlsplit(url).netloc
    if isinstance(error, requests.exceptions.SSLError):
        return SqlFailed(f"The console does not trust the certificate of {where}.")
    if never_sent(error):
        return SqlFailed(f"The console cannot reach {where}.")
    may = "" if read_only else " The statements may still take effect."
    if isinstance(error, requests.Timeout):
        return SqlFailed(f"{where} did not respond in time.{may}")
    return SqlFailed(f"Lost the connection to {where}.{may}")


def _refused(data: Mapping[str, Any], *, step: int) -> SqlFailed:
    position = text(data, "position")
    return SqlFailed(
        _words(data, "message") or "The proxy refused.",
        code=_words(data, "code"),
        detail=_words(data, "detail"),
        hint=_words(data, "hint"),
        position=int(position) if position.isdecimal() and len(position) < 9 else 0,
        statement=count(data, "perch:statement") // step,
        notices=_notices(data),
        notices_left_out=count(data, "perch:notices_left_out"),
    )


def _result(data: Mapping[str, Any]) -> Result:
    return Result(
        command=text(data, "command"),
        row_count=whole(data, "rowCount"),
        columns=[
            Column(text(one, "name"), type_name(one.get("dataTypeID")))
            for one in in_turns(_items(data, "fields"))
            if isinstance(one, Mapping)
        ],
        rows=[row for row in in_turns(_items(data, "rows")) if isinstance(row, list)],
        notices=_notices(data),
        notices_left_out=count(data, "perch:notices_left_out"),
    )


def _notices(data: Mapping[str, Any]) -> list[Notice]:
    return [
        Notice(*(_words(one, name) for name in ("severity", "message", "detail", "hint")))
        for one in _items(data, "perch:notices")[:MAX_NOTICES]
        if isinstance(one, Mapping)
    ]


def _items(data: Mapping[str, Any], name: str) -> list[Any]:
    found = data.get(name)
    return found if isinstance(found, list) else []


def _words(data: Mapping[str, Any], name: str) -> str:
    words = text(data, name)
    return words if len(words) <= MAX_WORDS_LENGTH else words[: MAX_WORDS_LENGTH - 1] + "…"

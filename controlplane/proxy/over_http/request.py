"""One HTTP request: its head, its response, the errors that it can end with, its JSON, and the
memory that it may take. The texts of errors are those that Neon's clients know."""

import json
import json.scanner
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from controlplane.proxy.wire import messages
from controlplane.proxy.wire.errors import ComputeRefused, ProxyError

# In bytes. Parsing as many takes some milliseconds, whatever the body contains.
SMALL_BODY_BYTES = 16_384
MAX_VALUES = 1_000_000
# The same as Neon's.
MAX_RESPONSE_BYTES = 64 * 1024 * 1024
# The bytes that all requests and responses in a process may take up.
MAX_HELD_BYTES = 256 * 1024 * 1024

# The names that node-postgres gives to the fields of an ErrorResponse, by their codes.
FIELDS = {
    "S": "severity",
    "C": "code",
    "M": "message",
    "D": "detail",
    "H": "hint",
    "P": "position",
    "p": "internalPosition",
    "q": "internalQuery",
    "W": "where",
    "s": "schema",
    "t": "table",
    "c": "column",
    "d": "dataType",
    "n": "constraint",
    "F": "file",
    "L": "line",
    "R": "routine",
}
# Temporary errors: the same request may succeed later.
_TEMPORARY_STATES = {"57P01", "57P03", "53300", "53400"}
# Those of them that are reported before anything was executed.
_RETRYABLE_STATES = {"57P03", "53300"}
_INTERNAL_STATE = "XX000"


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    query: str
    # By name in lower case; the values of a repeated header are joined by commas.
    headers: Mapping[str, str]
    # "1.0" or "1.1".
    version: str

    def tokens(self, header: str) -> list[str]:
        """Returns the header's comma-separated values in lower case."""
        return [token.strip().lower() for token in self.headers.get(header, "").split(",")]


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    # JSON, or empty.
    body: bytes = b""
    headers: Sequence[tuple[str, str]] = ()


class RequestRefused(ProxyError):
    """A request that cannot be served as it is."""

    sqlstate = "08P01"

    def __init__(self, text: str, *, status: int = 400, sqlstate: str | None = None) -> None:
        super().__init__(text)
        self.status = status
        if sqlstate is not None:
            self.sqlstate = sqlstate


class ConnectionStringRefused(RequestRefused):
    sqlstate = "28000"


class RequestTooLarge(RequestRefused):
    def __init__(self, limit: int) -> None:
        super().__init__(
            f"request is too large (max is {limit} bytes)", status=413, sqlstate="54000"
        )


class ResponseTooLarge(RequestRefused):
    def __init__(self, limit: int) -> None:
        super().__init__(
            f"response is too large (max is {limit} bytes)", status=507, sqlstate="54000"
        )


class MemoryExhausted(ProxyError):
    sqlstate = "53400"
    words = "the proxy has too many large requests and responses in memory; try again"


class UnreadableAnswer(ProxyError):
    """The compute's answer violates the protocol. It is not known what the compute has executed."""

    words = "the compute sent an invalid response"


class StatementFailed(ProxyError):
    """Postgres's own error, as the fields of its ErrorResponse by their codes.

    `statement` is the index in the batch of the statement that failed, from 0. The index after the
    last statement's is the commit's.
    """

    def __init__(
        self,
        fields: Mapping[str, str],
        *,
        statement: int | None = None,
        notices: Sequence[Mapping[str, object]] = (),
        notices_left_out: int = 0,
    ) -> None:
        super().__init__(fields.get("M", ""))
        self.fields = fields
        self.statement = statement
        # Those that came before the error, as `named_fields` returns them, if they were asked for;
        # and how many more there were.
        self.notices = notices
        self.notices_left_out = notices_left_out


def error_response(error: ProxyError) -> Response:
    """Returns the error as the answer for clients."""
    if isinstance(error, StatementFailed):
        status, body = 400, named_fields(error.fields)
        if error.statement is not None:
            body["perch:statement"] = error.statement
        if error.notices:
            body["perch:notices"] = error.notices
        if error.notices_left_out:
            body["perch:notices_left_out"] = error.notices_left_out
    elif isinstance(error, ComputeRefused):
        payload = error.packet()[messages.HEADER_SIZE :]
        status, body = 400, named_fields(messages.error_fields(payload))
    else:
        fields = {"S": "FATAL", "C": error.sqlstate, "M": str(error)}
        if error.hint is not None:
            fields["H"] = error.hint
        status, body = _status(error), named_fields(fields)
        if error.sqlstate in _RETRYABLE_STATES:
            body["neon:retryable"] = True
    return Response(status, json.dumps(body, ensure_ascii=False).encode(errors="replace"))


def _status(error: ProxyError) -> int:
    if isinstance(error, RequestRefused):
        return error.status
    if error.sqlstate in _TEMPORARY_STATES:
        return 503
    return 500 if error.sqlstate == _INTERNAL_STATE else 400


def named_fields(fields: Mapping[str, str]) -> dict[str, object]:
    """Returns the fields of an ErrorResponse or NoticeResponse by their names, None for those that
    it lacks."""
    return {name: fields.get(code) for code, name in FIELDS.items()}


class _TooManyValues(Exception):
    pass


def unparsable(reason: str) -> RequestRefused:
    return RequestRefused(f"could not parse the HTTP request body: {reason}")


def read_json(body: bytes) -> Any:
    """Parses the body. A body larger than SMALL_BODY_BYTES must not be parsed on the event loop.
    Raises RequestRefused.

    Python's decoder in C lets no other thread run until it is finished, and a large body of small
    values takes it seconds, and memory of twenty times the body's size. So it gets only small
    bodies. A large body is parsed by the decoder in Python, in a thread, which counts the values.
    """
    decoder = _SMALL if len(body) <= SMALL_BODY_BYTES else _CountingDecoder()
    try:
        return decoder.decode(body.decode())
    except _TooManyValues:
        raise RequestRefused(
            f"too many values in the request (max is {MAX_VALUES})", status=413, sqlstate="54000"
        ) from None
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        if "set_int_max_str_digits" in reason:  # in Python's words, which no client can follow
            reason = "an integer has too many digits"
        raise unparsable(reason) from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not valid JSON")


_SMALL = json.JSONDecoder(parse_constant=_refuse_constant)


class _CountingDecoder(json.JSONDecoder):
    """Raises _TooManyValues."""

    def __init__(self) -> None:
        super().__init__(
            parse_constant=_refuse_constant,
            parse_int=self._counted(int),
            parse_float=self._counted(float),
        )
        self._left = MAX_VALUES
        for kind in ("array", "object", "string"):
            parse = getattr(self, f"parse_{kind}")
            setattr(self, f"parse_{kind}", self._counted(parse))
        # The decoder in Python. The one in C was made before the functions were replaced.
        self.scan_once = json.scanner.py_make_scanner(self)  # type: ignore[attr-defined]

    def _counted(self, parse: Callable[..., Any]) -> Callable[..., Any]:
        def parse_one(*given: Any) -> Any:
            self._left -= 1
            if self._left < 0:
                raise _TooManyValues
            return parse(*given)

        return parse_one


class MemoryBudget:
    """Limits the memory that all requests and responses over HTTP take up together in a proxy
    process. Each of them may be large, and there may be many at once.

    An account may take more while it then holds no more than what is left. So the first account
    gets at most half of the memory, and the next one half of the rest.
    """

    def __init__(self, most: int = MAX_HELD_BYTES) -> None:
        self._left = most
        # Bytes, by account.
        self._held: Counter[int | None] = Counter()

    @contextmanager
    def reserve(self) -> Iterator["MemoryReservation"]:
        """Yields an empty reservation. At the end of the block, its memory is released."""
        reservation = MemoryReservation(self)
        try:
            yield reservation
        finally:
            if reservation.taken:
                self._left += reservation.taken
                self._held[reservation.account_id] -= reservation.taken
                self._held = +self._held  # without those that hold nothing

    def take(self, account_id: int | None, size: int) -> None:
        """Takes `size` bytes for the account from what is left. Raises MemoryExhausted."""
        if self._held[account_id] + size > self._left - size:
            raise MemoryExhausted
        self._left -= size
        self._held[account_id] += size


class MemoryReservation:
    """The memory that one request and its response take up."""

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        # Must be set before the first `grow`.
        self.account_id: int | None = None
        self.taken = 0

    def grow(self, size: int) -> None:
        """Adds `size` bytes to the reservation. Raises MemoryExhausted."""
        self._budget.take(self.account_id, size)
        self.taken += size

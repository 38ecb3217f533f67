"""The errors of requests over HTTP, and the JSON form of all errors. The texts
are those that Neon's clients know."""

import json
from collections.abc import Mapping, Sequence

from controlplane.proxy.over_http.request import Response
from controlplane.proxy.wire import messages
from controlplane.proxy.wire.errors import ComputeRefused, ProxyError

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

    def __init__(self) -> None:
        super().__init__("the proxy has too many large requests and responses in memory; try again")


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
    ) -> None:
        super().__init__(fields.get("M", ""))
        self.fields = fields
        self.statement = statement
        # Those that came before the error, as `named_fields` returns them, if they were asked for.
        self.notices = notices


def error_response(error: ProxyError) -> Response:
    """Returns the error as the answer for clients."""
    if isinstance(error, StatementFailed):
        return Response(400, _body(error.fields, statement=error.statement, notices=error.notices))
    if isinstance(error, ComputeRefused):
        return Response(400, _body(messages.error_fields(error.packet()[messages.HEADER_SIZE :])))
    fields = {"S": "FATAL", "C": error.sqlstate, "M": str(error)}
    if error.hint is not None:
        fields["H"] = error.hint
    is_retryable = error.sqlstate in _RETRYABLE_STATES
    return Response(_status(error), _body(fields, retryable=is_retryable))


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


def _body(
    fields: Mapping[str, str],
    *,
    retryable: bool = False,
    statement: int | None = None,
    notices: Sequence[Mapping[str, object]] = (),
) -> bytes:
    body = named_fields(fields)
    if statement is not None:
        body["perch:statement"] = statement
    if notices:
        body["perch:notices"] = notices
    if retryable:
        body["neon:retryable"] = True
    return json.dumps(body, ensure_ascii=False).encode(errors="replace")

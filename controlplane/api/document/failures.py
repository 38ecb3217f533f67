"""The errors that a call can return, by its method and path: those of the layers in front of it,
and those of the services. `api/http/errors.py` sets their statuses."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from controlplane.api.http.auth import BESIDE_THE_PROJECT
from controlplane.api.http.field_errors import CODES, INVALID, REQUIRED
from controlplane.api.http.idempotency import METHODS

ERROR = {
    "title": "Error",
    "type": "object",
    "description": "The response to every refused request.",
    "required": ["request_id", "code", "message"],
    "properties": {
        "request_id": {
            "type": "string",
            "description": "The request's id in the log; the caller's `X-Request-ID`, if sent.",
        },
        "code": {
            "type": "string",
            "description": 'For programs, such as "PROJECTS_LIMIT_EXCEEDED"; often empty.',
        },
        "message": {"type": "string", "description": "For people: what is wrong and what to do."},
        "errors": {
            "type": "array",
            "description": "What is wrong with each field; empty if no field is the cause.",
            "items": {"$ref": "#/components/schemas/FieldError"},
        },
    },
}
FIELD_ERROR = {
    "title": "FieldError",
    "type": "object",
    "description": "What is wrong with one field of the request.",
    "required": ["field", "code", "message"],
    "properties": {
        "field": {
            "type": "string",
            "description": "A parameter's name, or the path of a value in the body, such as "
            "`endpoint.settings.pg_settings.work_mem`. Items of a list are "
            "numbered from 0.",
        },
        "code": {"type": "string", "enum": list(CODES), "description": "The kind of error."},
        "message": {"type": "string", "description": "For people: what is wrong."},
    },
}
RETRY_AFTER = {
    "Retry-After": {
        "description": "The number of seconds after which to try again.",
        "schema": {"type": "integer", "minimum": 1},
    }
}
EXAMPLE_REQUEST_ID = "3f1c9c1e-6f4a-4a53-9d0e-5a1c1f1f8d11"
PROJECT = "/projects/{project_id}"
# The message if the resource that a path parameter names is missing. The last parameter of a path
# decides which message applies.
MISSING = {
    "project_id": "project not found",
    "branch_id": "branch not found",
    "endpoint_id": "endpoint not found",
    "operation_id": "operation not found",
    "chain_id": "chain not found",
    "role_name": "role not found",
    "database_name": "database not found",
    "snapshot_id": "snapshot not found",
    "org_id": "organization not found",
    "host_id": 'unknown host "moon"; use one of: local',
    "key_id": "API key not found",
    "webhook_id": "webhook not found",
    "delivery_id": "delivery not found",
}
# Calls that name a project, or an organization, in their body or query.
NAMING_A_PROJECT = frozenset(
    {"POST /api_keys", "POST /webhooks", "GET /webhooks", "PATCH /webhooks/{webhook_id}"}
)
NAMING_AN_ORGANIZATION = frozenset(
    {
        *("GET /projects", "POST /projects", "GET /regions"),
        *("GET /consumption_history/account", "GET /consumption_history/projects"),
        "GET /consumption_history/v2/projects",
    }
)
OUTSIDE_HISTORY = (
    "timestamp is outside of the branch's history, which goes from 2026-01-30T12:00:00Z to "
    "2026-01-31T12:00:00Z"
)
STARTING = ("/start", "/restart", "/retry")
BUSY = "project already has running conflicting operations, scheduling of new ones is prohibited"


@dataclass(frozen=True)
class Failure:
    status: int
    description: str
    message: str
    code: str = ""
    retry_after: bool = False
    # The field that is at fault, the code of its error, and the message about it.
    field_error: tuple[str, str, str] | None = None

    def described(self) -> dict[str, Any]:
        example = {
            "request_id": EXAMPLE_REQUEST_ID,
            "code": self.code,
            "message": self.message,
            "errors": [dict(zip(("field", "code", "message"), self.field_error, strict=True))]
            if self.field_error
            else [],
        }
        answer: dict[str, Any] = {
            "description": self.description,
            "content": {
                "application/json": {
                    "schema": {"$ref": "#/components/schemas/Error"},
                    "example": example,
                }
            },
        }
        if self.retry_after:
            answer["headers"] = RETRY_AFTER
        return answer


# Errors that every call can return.
ANYWHERE = (
    Failure(
        401,
        "The key is missing, wrong, revoked or expired.",
        "supplied credentials do not pass authentication",
    ),
    Failure(408, "The request was not sent in time.", "invalid request: it was not sent in time"),
    Failure(
        411,
        "The request has `Transfer-Encoding`.",
        "a body must be sent with its Content-Length",
    ),
    Failure(
        429,
        "The account or the key sent too many requests; nothing was done.",
        "rate limit exceeded: 700 requests per minute for an account; try again in 1 s",
        "RATE_LIMIT_EXCEEDED",
        retry_after=True,
    ),
    Failure(500, "An internal error of the service.", "internal error"),
    Failure(
        503,
        "The service cannot handle the request now; nothing was done, and it is safe to try again.",
        "the database does not answer; try again",
        retry_after=True,
    ),
)
UNREADABLE = "invalid request: decode application/json: invalid: {wrapper} (field required)"


def failures(method: str, path: str, *, wrapper: str | None) -> Iterator[Failure]:
    """The errors of a call. `wrapper` is the first field of its body; None if it takes no body."""
    yield from ANYWHERE
    yield _unreadable(wrapper)
    if path.startswith("/status/hosts") or path.endswith("/move"):
        yield Failure(
            403,
            "The account does not operate the service, or the key is limited.",
            "only the accounts named in PERCH_OPERATORS may see the hosts of this service",
        )
    elif path.startswith("/accounts"):
        yield Failure(
            403,
            "The account does not operate the service, or the key is limited.",
            "only the accounts named in PERCH_OPERATORS may manage other accounts",
        )
    elif method != "GET" or path.replace("{", "<").replace("}", ">") not in BESIDE_THE_PROJECT:
        yield Failure(
            403,
            "The key is limited and does not permit this.",
            f"this API key is read-only: {method} is not permitted"
            if method != "GET"
            else 'this API key is limited to the project "quiet-cell-12345678"',
        )
    if message := _missing(method, path):
        yield Failure(404, "It does not exist, or belongs to another account.", message)
    if path.endswith(STARTING):
        yield Failure(406, "The endpoint is disabled.", "endpoint is disabled")
    if path.startswith("/consumption"):
        yield Failure(
            406,
            "Consumption at this granularity does not reach back so far.",
            "the specified date-time range is outside the boundaries of the specified granularity",
        )
    if path.endswith(("schema", "/history/resolve")):
        yield Failure(
            422,
            "The moment is outside of the history, or the schema is too long or takes too long to "
            "read.",
            OUTSIDE_HISTORY,
        )
        yield Failure(423, "Too many readings are under way; try again.", BUSY, retry_after=True)
    if path.endswith("{endpoint_id}/metrics"):
        old = "from is more than 14 days ago: older metrics are not kept"
        yield Failure(422, "The time is too long ago, or has too many steps.", old)
    if path.endswith(("/logs", "{endpoint_id}/sessions")):
        unreadable = "the log cannot be read: this host says: Input/output error"
        yield Failure(422, "The log, or the list of sessions, cannot be read.", unreadable)
        late = "the log was not read in time, as the branch is busy; try again"
        yield Failure(423, "The region's worker is busy; try again.", late, retry_after=True)
    if path.endswith(("/reveal_password", "/connection_uri")):
        yield Failure(
            412,
            "The project does not store passwords (`store_passwords`).",
            "Storing passwords is disabled",
        )
    if method in METHODS:
        yield from _of_changes(method, path)


def _unreadable(wrapper: str | None) -> Failure:
    if wrapper is None:
        words = "must be a whole number"
        message = f"invalid request: decode query: invalid: limit ({words})"
        at_fault = ("limit", INVALID, words)
    else:
        message = UNREADABLE.format(wrapper=wrapper)
        at_fault = (wrapper, REQUIRED, "field required")
    meaning = "The request cannot be read; `errors` names each field."
    return Failure(400, meaning, message, field_error=at_fault)


def _missing(method: str, path: str) -> str | None:
    named = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    if named:
        return MISSING.get(named[-1], f"{named[-1].rpartition('_')[0]} not found")
    if f"{method} {path}" in NAMING_A_PROJECT:
        return "project not found"
    names_an_organization = f"{method} {path}" in NAMING_AN_ORGANIZATION
    return "organization not found" if names_an_organization else None


def _of_changes(method: str, path: str) -> Iterator[Failure]:
    yield Failure(
        409,
        "It conflicts with existing resources, or a request with this `Idempotency-Key` is in "
        "progress.",
        'branch already exists; branch_name:"preview/x"'
        if path.endswith("/branches")
        else "read_write endpoint already exists"
        if path.endswith("/endpoints")
        else "a request with this Idempotency-Key is being served",
    )
    yield Failure(413, "The body is too long.", "a body may have at most 1048576 bytes")
    yield Failure(
        422,
        "A rule or a limit forbids it, a value is not available here, or the `Idempotency-Key` "
        "was sent with another request.",
        "projects limit exceeded"
        if path == "/projects"
        else "this Idempotency-Key was sent with another request",
        "PROJECTS_LIMIT_EXCEEDED" if path == "/projects" else "",
    )
    if path.startswith(PROJECT) or path == "/projects":
        yield Failure(
            423,
            "The project is busy; nothing was done, and it is safe to try again.",
            BUSY,
            retry_after=True,
        )

"""What this server does not have of Neon's API: fields and calls, each with what to use instead.

A request that sends such a field is refused, because accepting it without effect would be worse:

    hipaa: Annotated[bool | None, NotOffered("…", unless=(False,))] = None

A request for such a call is answered with "not offered" instead of "not found", which would mean
that the resource is missing. `looked_for` has the lists that are empty here. The table is used only
for requests that no route serves. So a pattern may match routes too.
"""

import re
from collections.abc import Callable
from typing import Any

from django.http import HttpRequest
from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

# The type of the pydantic error for such a field.
NOT_OFFERED = "not_offered"


class NotOffered:
    """Annotates a field that is refused.

    `instead` is the end of a sentence that says what the server offers in its place. Values in
    `unless` are accepted, because they describe what is the case anyway. If `only` is given, only
    the values in it are refused. Null counts as absent (see `Attributes`).
    """

    def __init__(
        self, instead: str, *, unless: tuple[Any, ...] = (), only: tuple[Any, ...] | None = None
    ) -> None:
        self._instead = instead
        self._unless = unless
        self._only = only

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        schema = handler(source)
        return core_schema.no_info_wrap_validator_function(self._judge, schema)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        described = handler(schema)
        if self._only is None:
            # Only these values and null are accepted, whatever else the field's type allows.
            taken = [_schema_of(one) for one in self._unless]
            described = {"anyOf": [*taken, {"type": "null"}]} if taken else {"type": "null"}
        but = ""
        if self._only is not None:
            but = f" as {_listed(self._only)}"
        elif self._unless:
            but = f" except {_listed(self._unless)}"
        described["description"] = f"Not offered by this server{but}: {self._instead}."
        return described

    def _judge(self, value: Any, validate: Callable[[Any], Any]) -> Any:
        # `_is_among` compares the types too, because in Python 0 equals False.
        refused = self._only is None or _is_among(value, self._only)
        if refused and not _is_among(value, self._unless):
            raise PydanticCustomError(
                NOT_OFFERED, "not offered by this server: {instead}", {"instead": self._instead}
            )
        return validate(value)


def _schema_of(value: Any) -> JsonSchemaValue:
    """The JSON schema of a single value, in a form that client generators know."""
    if value == {}:
        return {"type": "object", "maxProperties": 0}
    return {"type": "boolean" if isinstance(value, bool) else "string", "const": value}


def _is_among(value: Any, values: tuple[Any, ...]) -> bool:
    return any(type(value) is type(one) and value == one for one in values)


def _listed(values: tuple[Any, ...]) -> str:
    words = {True: "true", False: "false"}
    return ", ".join(f"`{words[one] if isinstance(one, bool) else one}`" for one in values)


PREFIX = "/api/v2"
# Characters of a path that an error message contains at most.
MAX_PATH_LENGTH = 200
NO_RECOVERY = "a deleted branch cannot be recovered; take a snapshot before you delete one"
_AUTH = (
    "this server runs no Neon Auth; run an authentication service that keeps its users in a branch"
)
_SHARING = (
    "a project belongs to one account; create an API key that is limited to the project with "
    "POST /api_keys"
)
_TRANSFER = (
    "a project stays with its account; copy its data with pg_dump into a project of the other one"
)
_VPC = (
    "this server has no VPC endpoints; limit the addresses of clients with the project's settings "
    "allowed_ips and block_public_connections"
)
_FUNCTIONS = "this server runs no functions; run the program elsewhere and connect to the endpoint"
_BILLING = "this server bills nothing; limit what a project uses with its settings.quota"
_ACCOUNTS = "an account is one organization with one member; operators manage accounts at /accounts"
_SQL = "POST /sql at the endpoint's host runs SQL over HTTP"
# Patterns of a path, after the methods if not all are meant. PROJECT, BRANCH and ORGANIZATION stand
# for the path of one.
CALLS = {
    "/projects/auth/(create|keys|transfer_ownership|user)": _AUTH,
    "PROJECT/auth/.+": _AUTH,
    "BRANCH/auth(/.+)?": _AUTH,
    "BRANCH/data-api/.+": f"this server has no Data API; {_SQL}, or run PostgREST on the branch",
    "PROJECT/query": f"statements go to an endpoint; {_SQL}",
    "PROJECT/advisors": "this server analyses no databases; read pg_stat_statements and GET "
    "/projects/{project_id}/endpoints/{endpoint_id}/metrics",
    "BRANCH/(functions|triggers|custom-domains)(/.+)?": _FUNCTIONS,
    "BRANCH/(buckets(/.+)?|storage)": "this server stores no objects; use another object store",
    "BRANCH/ai_gateway": "this server has no AI gateway; call the provider of the model directly",
    "BRANCH/credentials(/.+)?": "a branch has no credentials of its own; create a role with "
    "POST /projects/{project_id}/branches/{branch_id}/roles, or an API key with POST /api_keys",
    "BRANCH/logs/.+": "logs are read by endpoint; GET "
    "/projects/{project_id}/endpoints/{endpoint_id}/logs has the last lines",
    "BRANCH/anonymized": "the call has another name; GET "
    "/projects/{project_id}/branches/{branch_id}/anonymized_status has the state",
    "BRANCH/backup_schedule": "this server takes no snapshots by a schedule; take them with POST "
    "/projects/{project_id}/branches/{branch_id}/snapshot, or rely on the branch's history",
    "BRANCH/recover": NO_RECOVERY,
    "BRANCH/reset": "POST /projects/{project_id}/branches/{branch_id}/restore with the parent as "
    "source_branch_id resets a branch",
    "PROJECT/(permissions|members)(/.+)?": _SHARING,
    "PROJECT/(transfer|transfer_requests(/.+)?)": _TRANSFER,
    "(ORGANIZATION|/users/me)/projects/transfer": _TRANSFER,
    "PROJECT/vpc_endpoints(/.+)?": _VPC,
    "ORGANIZATION/vpc/.+": _VPC,
    "PROJECT/jwks(/.+)?": "clients sign in with the password of a role, not with tokens; verify "
    "tokens in a service between them and the endpoint",
    "PROJECT/endpoints/[^/]+/passwordless_auth": "clients need a password; GET "
    "/projects/{project_id}/connection_uri returns it",
    "(ORGANIZATION)?/billing(/.+)?": _BILLING,
    "/organizations": _ACCOUNTS,
    "PATCH,DELETE ORGANIZATION": _ACCOUNTS,
    "ORGANIZATION/(invitations|members)(/.+)?": _ACCOUNTS,
    "PATCH,DELETE /users/me": _ACCOUNTS,
    "/consumption_history/v2/branches": "consumption is kept by project; use GET "
    "/consumption_history/v2/projects, or the fields of GET /projects/{project_id}/branches",
    "/branches": "branches are listed by project; use GET /projects/{project_id}/branches",
}


def _pattern(template: str) -> re.Pattern[str]:
    """The pattern of a method and a path, separated by a space."""
    methods, _, path = template.rpartition(" ")
    for name, meaning in (
        ("BRANCH", "PROJECT/branches/[^/]+"),
        ("PROJECT", "/projects/[^/]+"),
        ("ORGANIZATION", "/organizations/[^/]+"),
    ):
        path = path.replace(name, meaning)
    return re.compile(f"(?:{methods.replace(',', '|') or '[A-Z]+'}) {path}")


_KNOWN = [(_pattern(template), reason) for template, reason in CALLS.items()]


def why_not_offered(method: str, path: str) -> str | None:
    """Why this server does not have the call of Neon's API, and what to use instead. The path is
    without PREFIX. None if Neon's API has no such call, or this server has it."""
    call = f"{method} {path}"
    return next((reason for pattern, reason in _KNOWN if pattern.fullmatch(call)), None)


def words_of_missing(request: HttpRequest) -> tuple[str, str]:
    """The code and the message for a request that no route serves."""
    method, path = str(request.method), request.path
    if not path.startswith(PREFIX):
        return "", f"not found: {path[:MAX_PATH_LENGTH]}"
    below = path.removeprefix(PREFIX)
    call = f"{method[:16]} {below[:MAX_PATH_LENGTH] or '/'}"
    if reason := why_not_offered(method, below):
        # neonctl recognizes the words "is not available", and continues without the feature.
        return "NOT_OFFERED", f"not offered by this server: {call} is not available here: {reason}"
    return "", f"not found: there is no {call} in this API"

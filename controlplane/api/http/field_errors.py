"""Parses the JSON bodies of requests, and has the `errors` of a refusal: what is wrong with each
field of the request, for programs.

A body of a megabyte can have half a million values, and validating these would take seconds of the
one thread that serves all requests. So bodies with too many values are refused before they are
validated.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from django.http import HttpRequest
from ninja.errors import ValidationError
from ninja.parser import Parser

from controlplane.api.http.not_offered import NOT_OFFERED
from controlplane.services.errors import (
    Conflict,
    FieldError,
    Forbidden,
    Invalid,
    NotFound,
    OutsideBounds,
    ServiceError,
    Unprocessable,
)

# Values of a body on all levels together, several times as many as any request needs.
MAX_VALUES = 10_000


class TooManyValues(ValueError):
    """The body has more than MAX_VALUES values."""


class BoundedParser(Parser):
    def parse_body(self, request: HttpRequest) -> Any:
        return parsed(request.body)


def parsed(body: bytes) -> Any:
    """The value of the JSON text. Raises TooManyValues; ValueError or RecursionError if it is not
    JSON."""
    value = json.loads(body)
    level, count = [value], 0
    while level:
        count += len(level)
        if count > MAX_VALUES:
            raise TooManyValues
        inner: list[Any] = []
        for part in level:
            if isinstance(part, dict | list):
                inner += part.values() if isinstance(part, dict) else part
        level = inner
    return value


# An entry of `errors`: {"field": …, "code": …, "message": …}.
Entry = dict[str, str]

REQUIRED, INVALID, OUT_OF_RANGE = "REQUIRED", "INVALID", "OUT_OF_RANGE"
# The code of the fields that a service refuses, by the exception's class.
CODE_OF: Mapping[type[ServiceError], str] = {
    Invalid: INVALID,
    Forbidden: "NOT_ALLOWED",
    NotFound: "NOT_FOUND",
    OutsideBounds: OUT_OF_RANGE,
    Conflict: "TAKEN",
    Unprocessable: "NOT_ALLOWED",
}
NOT_OFFERED_HERE = "NOT_OFFERED"
CODES = (*dict.fromkeys((REQUIRED, *CODE_OF.values())), NOT_OFFERED_HERE)
# The words for pydantic's error types whose own words are about Python.
MESSAGES: Mapping[str, str] = {
    "missing": "field required",
    "string_type": "must be text",
    "string_unicode": "not valid UTF-8",
    "list_type": "must be a list",
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "must be a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "must be a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "must be true or false"),
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "must be an object"),
    **dict.fromkeys(
        ("datetime_type", "datetime_parsing", "datetime_from_date_parsing"),
        "must be a time such as 2027-01-31T12:00:00Z",
    ),
}
# How the others begin: "Input should be …", and "Value error, " before a validator's own words.
MESSAGE_PREFIX = re.compile(r"^(?:(\w+ should)|Value error,) ")
# Pydantic's error types for values that are too large, too small, too long or too short end so.
LIMIT_SUFFIXES = ("_than", "_than_equal", "_too_long", "_too_short")
# Limits of a response to a request with many errors: the number of fields that are reported, the
# number of those in `message`, and the characters of each field's name.
MAX_FIELD_ERRORS, MAX_ERRORS_IN_MESSAGE, MAX_FIELD_LENGTH = 100, 10, 200
# Levels of a body, and values on each of them, in which a field is searched.
MAX_DEPTH, MAX_PER_LEVEL = 5, 1000


def of_validation(error: ValidationError) -> list[Entry]:
    """The fields that the request's schema does not accept, and those that are missing."""
    return [
        {"field": field_of(one), "code": _code_of(one), "message": _problem_message(one)}
        for one in error.errors[:MAX_FIELD_ERRORS]
    ]


def of_refusal(request: HttpRequest, error: ServiceError) -> list[Entry]:
    """The fields for which a service refuses the request, with their paths in the body. A field
    that the request does not have is left out: its value was stored earlier."""
    if not error.errors:
        return []
    kinds = [kind for kind in type(error).__mro__ if kind in CODE_OF]
    code = NOT_OFFERED_HERE if error.code == NOT_OFFERED_HERE else CODE_OF[kinds[0]]
    return [
        {"field": field[:MAX_FIELD_LENGTH], "code": code, "message": one.message}
        for one in error.errors[:MAX_FIELD_ERRORS]
        if (field := _place_in(request, one))
    ]


def not_offered(error: ValidationError) -> str | None:
    """The message about fields that this server does not offer; None if the request has any other
    error."""
    if any(problem["type"] != NOT_OFFERED for problem in error.errors):
        return None
    named = error.errors[:MAX_ERRORS_IN_MESSAGE]
    return "; ".join(f"{field_of(problem)} is {problem['msg']}" for problem in named)


def message_of(error: ValidationError) -> str:
    """The error of each field, worded as clients of this API know it."""
    complaints = []
    source = "decode application/json"
    for problem in error.errors[:MAX_ERRORS_IN_MESSAGE]:
        kind = str(problem["loc"][0])
        if kind != "body":
            source = f"decode {kind}"
        complaints.append(f"{field_of(problem)} ({_problem_message(problem)})")
    if more := len(error.errors) - len(complaints):
        complaints.append(f"and {more} more")
    return f"{source}: invalid: {'; '.join(complaints)}"


def field_of(problem: Mapping[str, Any]) -> str:
    """The dotted name of the field that a validation error is about: `project.settings.hipaa`."""
    place = [str(part) for part in problem["loc"]]
    # For a body, ninja puts the name of the view's parameter after "body". The caller does not
    # know that name, so it is left out.
    return (".".join(place[2:] if place[0] == "body" else place[1:]) or "body")[:MAX_FIELD_LENGTH]


def _code_of(problem: Mapping[str, Any]) -> str:
    kind = problem["type"]
    if kind == "missing":
        return REQUIRED
    if kind == NOT_OFFERED:
        return NOT_OFFERED_HERE
    return OUT_OF_RANGE if kind.endswith(LIMIT_SUFFIXES) else INVALID


def _problem_message(problem: Mapping[str, Any]) -> str:
    words = MESSAGES.get(problem["type"], str(problem["msg"]))
    return MESSAGE_PREFIX.sub(lambda found: "must " if found[1] else "", words)


def _place_in(request: HttpRequest, error: FieldError) -> str | None:
    """Where the request has the field: the name of a parameter, or a path in the body. Services
    know the path within the resource only: `settings.pg_settings.work_mem`."""
    match = request.resolver_match
    named = (request.GET, request.headers, match.kwargs if match else {})
    if any(error.field in one for one in named):
        return error.field
    try:
        body = parsed(request.body or b"null")
    except (ValueError, RecursionError):
        return None
    # The defaults for a project's endpoints have an endpoint's settings without `settings`.
    shorter = error.field.removeprefix("settings.")
    return _path_in(body, error.field) or _path_in(body, shorter)


def _path_in(body: Any, field: str) -> str | None:
    """The path of the uppermost value in the body that `field` leads to from some object."""
    level = [("", body)]
    for _ in range(MAX_DEPTH):
        below: list[tuple[str, Any]] = []
        for path, part in level:
            if _leads(part, field):
                return f"{path}{field}"
            inner = part.items() if isinstance(part, dict) else _enumerated(part)
            below += [(f"{path}{name}.", one) for name, one in inner]
        level = below[:MAX_PER_LEVEL]
    return None


def _leads(part: Any, field: str) -> bool:
    """Whether `field` leads from the object to a value. The names of settings contain dots."""
    return isinstance(part, dict) and (
        field in part
        or any(
            field.startswith(f"{name}.") and _leads(inner, field[len(name) + 1 :])
            for name, inner in part.items()
        )
    )


def _enumerated(part: Any) -> Sequence[tuple[int, Any]]:
    return list(enumerate(part)) if isinstance(part, list) else []

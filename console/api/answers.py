"""Turns what the management API answers into decoded JSON, or into the exception that says what was
refused."""

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any

import requests

from console.api.bounded_http import read_json
from console.api.errors import (
    QUOTA_EXCEEDED,
    APIError,
    FieldError,
    NonsenseAnswer,
    QuotaUsedUp,
    error_class,
)
from console.api.fields import text

log = logging.getLogger(__name__)

# What read_json raises; RecursionError if the JSON is nested too deeply.
NOT_JSON = (ValueError, RecursionError)
# Characters of an error message. Messages are searched, shown, and kept in a cookie until then.
MAX_MESSAGE_LENGTH = 1000
MAX_REQUEST_ID_LENGTH = 200
# The most fields at fault that are read from one refusal.
MAX_FIELD_ERRORS = 100


def decoded(answer: requests.Response, content: bytes, *, is_needed: bool) -> object:
    """Decode the answer. Returns None for one without content and, unless it `is_needed`, for one
    that is not JSON. Raises NonsenseAnswer."""
    if answer.status_code == 204:
        # Newer servers answer like this if what is to be deleted was deleted before.
        return None
    try:
        data: object = read_json(content)
    except NOT_JSON as error:
        if not is_needed:
            return None
        url = answer.url.partition("?")[0]
        log.warning("API response not JSON", extra={"url": url, "status": answer.status_code})
        raise NonsenseAnswer("The response is not JSON.", status=answer.status_code) from error
    return data


def result_of(status: int, reason: str, body: object) -> object:
    """Return the decoded answer of a request that succeeded, or raise an APIError."""
    if status < 300:
        return body
    raise _refusal(status, reason, body)


def _refusal(status: int, reason: str, body: object) -> APIError:
    data: Mapping[str, Any] = body if isinstance(body, Mapping) else {}
    message = text(data, "message") or f"The answer was {status} {reason}."
    refused_as = error_class(status, code := text(data, "code"))
    if refused_as is QuotaUsedUp:
        # The message is about plans, which the settings of a project are not.
        quota = code.removesuffix(QUOTA_EXCEEDED).lower().replace("_", " ")
        message = f"The {quota} quota is used up."
    refusal = refused_as(
        message[:MAX_MESSAGE_LENGTH],
        status=status,
        request_id=text(data, "request_id")[:MAX_REQUEST_ID_LENGTH],
        fields=_field_errors(data, message[:MAX_MESSAGE_LENGTH]),
    )
    refusal.is_told = isinstance(body, Mapping)
    return refusal


def _field_errors(data: Mapping[str, Any], message: str) -> Sequence[FieldError]:
    found = data.get("errors")
    if not isinstance(found, list):
        return field_errors(message)
    return [
        FieldError(text(one, "field"), text(one, "message")[:MAX_MESSAGE_LENGTH])
        for one in found[:MAX_FIELD_ERRORS]
        if isinstance(one, Mapping)
    ]


# “… invalid: endpoint.branch_id (field required); endpoint.name (…)”.
INVALID = re.compile(r"(?P<path>[\w.]+) \((?P<why>.*?)\)(?:; |$)", re.DOTALL)
# “branch already exists; branch_name:"dev"”.
TAKEN = re.compile(r'(?P<kind>\w+) already exists; \w+_name:(?P<name>"[^"]*")', re.IGNORECASE)
# “settings.pg_settings.work_mem: must be …”.
NAMED = re.compile(r"(?P<path>\w+(?:\.[\w$]+)+): (?P<why>.*)", re.DOTALL)
# The name of an attribute: words in lower case, joined by underscores.
ATTRIBUTE = re.compile(r"\b[A-Za-z]+(?:_[a-z]+)+\b")


def field_errors(message: str) -> list[FieldError]:
    _, invalid, complaints = message.partition("invalid: ")
    if invalid and (found := [FieldError(*one) for one in INVALID.findall(complaints)]):
        return found
    if taken := TAKEN.search(message):
        kind, name = taken["kind"].lower(), taken["name"]
        return [FieldError("name", f"there is a {kind} called {name} already")]
    if named := NAMED.fullmatch(message):
        return [FieldError(named["path"], named["why"])]
    return [FieldError(name.lower(), message) for name in ATTRIBUTE.findall(message)]

"""The OpenAPI document of the API. ninja generates it, and the rules of `controlplane.api.document`
complete it."""

import copy
import json
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from ninja import NinjaAPI
from ninja.openapi.schema import OpenAPISchema
from ninja.operation import Operation

from controlplane.api.document.examples import REFERENCE, Call, example_of, links
from controlplane.api.document.failures import ERROR, FIELD_ERROR, failures
from controlplane.api.document.glossary import REQUESTS, entry_of
from controlplane.api.http.idempotency import METHODS

# A placeholder for the API's address in the document and its page. Each request replaces it.
ADDRESS = "https://address-of-the-api.invalid"
METHOD_NAMES = ("get", "post", "put", "patch", "delete")
JSON = "application/json"
# The schema of ids in a path, for ids that Perch generates.
ID = {"type": "string", "minLength": 1, "maxLength": 60, "pattern": "^[a-z0-9-]{1,60}$"}
IDS = frozenset({"project_id", "branch_id", "endpoint_id", "snapshot_id"})
NAME = {"type": "string", "minLength": 1}
TAGS = {
    "projects": "A project contains branches. Create one first.",
    "branches": "A branch is a copy of its parent's data, with roles and databases of its own.",
    "endpoints": "Clients connect to a branch through its endpoint: a host name, and a compute "
    "that is suspended while no client is connected.",
    "operations": "Work that takes time is an operation. To wait for its end, poll it or use "
    "`wait`.",
    "events": "Who changed what, as pages or as a stream.",
    "roles": "The roles that may connect to a branch.",
    "databases": "The databases of a branch.",
    "API keys": "Keys for programs. A key can be limited to a project, or to reading.",
    "snapshots": "The data of a branch at one moment, stored until the snapshot is deleted or "
    "expires.",
    "consumption": "What projects have consumed, by hour, day, month and consumption period.",
    "organizations": "Every account has exactly one organization, which represents the account "
    "itself.",
    "users": "The account of the key, and the regions for projects.",
    "status": "The status of the service.",
    "accounts": "All accounts of the service, for those that operate it.",
    "webhooks": "Addresses that events are posted to.",
}
DESCRIPTION = """\
Postgres endpoints and operations, with the calls of Neon's management API.

Every request needs `Authorization: Bearer <key>`. Bodies and responses are JSON; unknown fields of
a body are ignored. Times are UTC. The response to a change that takes time contains its
`operations`; the change is done when the last of them has finished. The response to a refused
request has a `message` for people, `errors` that name the fields at fault, and the request's id in
the log.
"""
IDEMPOTENCY_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[ -~]+$"},
    "description": (
        "Printable ASCII that the caller chooses, new for each request. If a request with the "
        "same API key and the same value follows within a day, it is not executed again: it gets "
        "the first request's response, with the header `Idempotent-Replayed: true`. If it has "
        "another method, address or body, it is refused with 422. While the first request is in "
        "progress, the second one waits or gets 409. Responses that say to try again (401, 408, "
        "423, 429, 5xx) are not stored."
    ),
}
REPLAYED = {
    "Idempotent-Replayed": {
        "description": "Present if this is the stored response to an earlier request.",
        "schema": {"type": "boolean"},
    }
}
BEARER = {
    "type": "http",
    "scheme": "bearer",
    "description": "An API key: `manage.py create_api_key`, or `POST /api_keys`.",
}


class DescribedApi(NinjaAPI):
    def get_openapi_operation_id(self, operation: Operation) -> str:
        """The function's name in camel case, as the SDKs use it: `list_projects` becomes
        `listProjects`."""
        first, *others = operation.view_func.__name__.split("_")
        return first + "".join(part.capitalize() for part in others)

    def get_openapi_schema(self, **options: Any) -> OpenAPISchema:
        """A new copy of the document, which the caller may change. Paths are relative to
        `/api/v2`."""
        return copy.deepcopy(self._document)

    @cached_property
    def _document(self) -> OpenAPISchema:
        document = super().get_openapi_schema(path_prefix="")
        document["info"] |= {"description": DESCRIPTION}
        document["servers"] = [
            {"url": ADDRESS, "description": "The address that this document was requested from"},
            {"url": "/api/v2", "description": "Relative to the address of this document"},
        ]
        schemas = document["components"]["schemas"]
        schemas |= {"Error": ERROR, "FieldError": FIELD_ERROR}
        document["components"]["securitySchemes"] = {"BearerAuth": BEARER}
        document["security"] = [{"BearerAuth": []}]
        for name, schema in schemas.items():
            _describe_fields(name, schema)
        for name in _names_in_requests(document):
            _describe_defaults(schemas[name])
        calls = _calls(document)
        for operation_id, method, path in calls:
            methods = document["paths"][path]
            # Copy it: for a view with two methods, ninja uses the same object for both.
            methods[method] = _completed(copy.deepcopy(methods[method]), method, path)
            _add_links(methods[method], (operation_id, method, path), calls, schemas)
        used = {tag for _, method, path in calls for tag in document["paths"][path][method]["tags"]}
        document["tags"] = [
            {"name": tag, "description": TAGS.get(tag, "")}
            for tag in [*filter(used.__contains__, TAGS), *sorted(used - TAGS.keys())]
        ]
        _add_examples(document)
        return document


def _calls(document: Any) -> list[Call]:
    return [
        (operation["operationId"], method, path)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if method in METHOD_NAMES
    ]


def _describe_fields(name: str, schema: Any) -> None:
    for field, part in schema.get("properties", {}).items():
        part.pop("title", None)
        known = entry_of(name, field)
        if known is not None and not part.get("description"):
            part["description"] = known[0]


def _names_in_requests(document: Any) -> set[str]:
    """The names of the schemas that request bodies use, directly or indirectly."""
    found: set[str] = set()
    new = set(
        _references(
            [
                document["paths"][path][method].get("requestBody", {})
                for _, method, path in _calls(document)
            ]
        )
    )
    while new:
        found |= new
        new = {one for name in new for one in _references(document["components"]["schemas"][name])}
        new -= found
    return found


def _references(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        if "$ref" in part:
            yield part["$ref"].removeprefix(REFERENCE)
        part = list(part.values())
    if isinstance(part, list):
        for one in part:
            yield from _references(one)


def _describe_defaults(schema: Any) -> None:
    """Move the defaults of a request's fields into their descriptions. Client generators treat a
    field with a `default` as always present, and therefore require it in requests."""
    for part in schema.get("properties", {}).values():
        default = part.pop("default", None)
        if default not in (None, "", {}):
            meaning = part.get("description", "").removesuffix(".")
            words = default if isinstance(default, str) else json.dumps(default)
            part["description"] = f"{meaning}; `{words}` if absent"


def _completed(operation: dict[str, Any], method: str, path: str) -> dict[str, Any]:
    operation["summary"] = _summary(operation)
    operation["security"] = [{"BearerAuth": []}]
    parameters = [_described(one) for one in operation.get("parameters", ())]
    answers = {str(status): answer for status, answer in operation["responses"].items()}
    for answer in answers.values():
        answer["description"] = "Done" if method != "get" else "The requested data"
    if method.upper() in METHODS:
        parameters.append(IDEMPOTENCY_KEY)
        for answer in answers.values():
            answer["headers"] = {**answer.get("headers", {}), **REPLAYED}
    possible = failures(method.upper(), path, wrapper=_wrapper(operation, path))
    refusals = {str(one.status): one.described() for one in possible}
    operation["responses"] = {**answers, **dict(sorted(refusals.items()))}
    operation["parameters"] = parameters
    return operation


def _summary(operation: dict[str, Any]) -> str:
    """The route's own summary, or the function's name as a sentence. ninja derives a summary from
    the name, but capitalizes every word."""
    words = operation["summary"].split()
    if len(words) > 1 and all(word[:1].isupper() for word in words):
        return " ".join([words[0], *(word.lower() for word in words[1:])])
    return str(operation["summary"])


def _described(parameter: dict[str, Any]) -> dict[str, Any]:
    name, schema = parameter["name"], dict(parameter["schema"])
    schema.pop("title", None)
    # ninja copies the schema's list of examples to the parameter, where OpenAPI expects a map.
    parameter.pop("examples", None)
    meaning = schema.pop("description", None) or parameter.get("description")
    known = entry_of("", name)
    if known is not None:
        meaning = meaning or known[0]
        if parameter["in"] == "path" or parameter.get("required"):
            parameter["example"] = known[1]
    if parameter["in"] == "path" and schema.get("type") == "string":
        schema = ID if name in IDS else NAME
    return {**parameter, "schema": schema, **({"description": meaning} if meaning else {})}


def _wrapper(operation: dict[str, Any], path: str) -> str | None:
    """The first field of the example body; None if the call takes no body."""
    example = REQUESTS.get(operation["operationId"])
    return next(iter(example)) if example and "requestBody" in operation else None


def _add_links(operation: Any, call: Call, calls: list[Call], schemas: Any) -> None:
    for status, answer in operation["responses"].items():
        if status.startswith("2"):
            fields = _fields_of(answer, schemas)
            if found := links(call, fields, calls):
                answer["links"] = found


def _fields_of(answer: Any, schemas: Any) -> dict[str, Any]:
    schema = answer.get("content", {}).get(JSON, {}).get("schema", {})
    named = schemas.get(schema.get("$ref", "").removeprefix(REFERENCE), schema)
    return dict(named.get("properties", {}))


def _add_examples(document: Any) -> None:
    schemas = document["components"]["schemas"]
    for _, method, path in _calls(document):
        operation = document["paths"][path][method]
        body = operation.get("requestBody", {}).get("content", {}).get(JSON)
        if body is not None and operation["operationId"] in REQUESTS:
            body["example"] = REQUESTS[operation["operationId"]]
        for status, answer in operation["responses"].items():
            content = answer.get("content", {}).get(JSON)
            if status.startswith("2") and content is not None:
                content["example"] = example_of(content["schema"], schemas)

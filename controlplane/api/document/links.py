"""The OpenAPI links of responses: from a created resource to the calls that concern it, and from a
change to the operation that carries it out."""

from collections.abc import Iterator, Mapping
from typing import Any

# An operation's id, method and path.
Call = tuple[str, str, str]
# The field of a resource that paths identify it by, if it is not `id`.
NAMED = {"role": "name", "database": "name"}


def links(call: Call, fields: Mapping[str, Any], calls: list[Call]) -> dict[str, Any]:
    """The links of the successful response to a call. `fields` are the fields on its top level."""
    _, method, path = call
    if method == "get":
        return {}
    found = dict(_links_to_created(call, fields, calls)) if method == "post" else {}
    if "operations" in fields:
        project = (
            "$request.path.project_id" if "{project_id}" in path else "$response.body#/project/id"
        )
        found["getProjectOperation"] = {
            "operationId": "getProjectOperation",
            "description": "The first of the operations; all have ended once the last one has.",
            "parameters": {
                "project_id": project,
                "operation_id": "$response.body#/operations/0/id",
            },
        }
    return found


def _links_to_created(
    call: Call, fields: Mapping[str, Any], calls: list[Call]
) -> Iterator[tuple[str, Any]]:
    _, _, path = call
    for operation_id, _, other in calls:
        rest = other.removeprefix(f"{path}/")
        if rest == other or not rest.startswith("{") or rest.count("{") > 1:
            continue
        named = rest[1 : rest.index("}")]
        place = _place(path, named, fields)
        if place is None:
            continue
        above = {
            part[1:-1]: f"$request.path.{part[1:-1]}" for part in path.split("/") if "{" in part
        }
        yield (
            operation_id,
            {
                "operationId": operation_id,
                "description": f"`{named}` is the id or name of the new resource.",
                "parameters": {**above, named: place},
            },
        )


def _place(path: str, named: str, fields: Mapping[str, Any]) -> str | None:
    wrapper = named.rpartition("_")[0]
    if wrapper in fields:
        return f"$response.body#/{wrapper}/{NAMED.get(wrapper, 'id')}"
    if path == "/api_keys" and "id" in fields:
        return "$response.body#/id"
    return None

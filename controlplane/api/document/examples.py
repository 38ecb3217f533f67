"""Builds the examples of responses from the examples of their fields; and their OpenAPI links, from
a created resource to the calls that concern it, and from a change to the operation that carries it
out."""

from collections.abc import Iterator, Mapping
from typing import Any

from controlplane.api.document.glossary import NOT_THERE, entry_of

Schemas = dict[str, Any]
REFERENCE = "#/components/schemas/"


class NoExample(LookupError):
    """A field has no example. Add one with `Field(examples=[…])` or in `document.glossary`."""


def example_of(schema: Any, schemas: Schemas, *, whose: str = "", field: str = "") -> Any:
    """An example of a value of this JSON schema, which belongs to the field `field` of the schema
    `whose`. Raises NoExample."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix(REFERENCE)
        return example_of(schemas[name], schemas, whose=name)
    if "examples" in schema:
        return schema["examples"][0]
    if "properties" in schema:
        return _object(schema, schemas, whose)
    for options in ("anyOf", "oneOf", "allOf"):
        if options in schema:
            return _of_options(schema[options], schemas, whose, field)
    if schema.get("type") == "array" and _is_composite(schema["items"]):
        return [example_of(schema["items"], schemas, whose=whose, field=field)]
    if "const" in schema:
        return schema["const"]
    known = entry_of(whose, field)
    if known is not None:
        return known[1]
    if "enum" in schema:
        return schema["enum"][0]
    if "default" in schema:
        return schema["default"]
    raise NoExample(f"{whose}.{field}")


def _object(schema: Any, schemas: Schemas, whose: str) -> dict[str, Any]:
    found = {}
    for name, part in schema["properties"].items():
        value = example_of(part, schemas, whose=whose, field=name)
        if value is not NOT_THERE:
            found[name] = value
    return found


def _of_options(options: list[Any], schemas: Schemas, whose: str, field: str) -> Any:
    known = entry_of(whose, field)
    real = [one for one in options if one.get("type") != "null"]
    if known is not None and not any(map(_is_composite, real)):
        return known[1]
    if known is not None and known[1] in (NOT_THERE, None):
        return known[1]
    return example_of(real[0], schemas, whose=whose, field=field)


def _is_composite(schema: Any) -> bool:
    return "$ref" in schema or "properties" in schema or "$ref" in schema.get("items", ())


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

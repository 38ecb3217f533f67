"""Every field that a request may contain, in its body or query, read from the API's document."""

import re
from collections.abc import Iterator
from typing import Any

METHODS = ("get", "post", "put", "patch", "delete")


def request_fields(document: Any) -> list[str]:
    """Return names such as "PATCH /projects/{project_id}
    project.settings.quota.active_time_seconds" for a body, with "[]" for a list's items, and "GET
    /projects ?limit" for a query. An object with fixed fields is represented by its fields, a map
    with free keys by its own name."""
    found = []
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if method not in METHODS:
                continue
            route = f"{method.upper()} {path}"
            parameters = operation.get("parameters", ())
            found += [f"{route} ?{one['name']}" for one in parameters if one["in"] == "query"]
            content = operation.get("requestBody", {}).get("content", {})
            for body in content.values():
                found += [f"{route} {name}" for name in _leaves(document, body["schema"], "")]
    return sorted(set(found))


def _leaves(document: Any, schema: Any, name: str) -> Iterator[str]:
    shapes = list(_shapes(document, schema))
    inner = [shape for shape in shapes if shape.get("properties")]
    lists = [shape for shape in shapes if shape.get("type") == "array"]
    for shape in inner:
        for part, one in shape["properties"].items():
            yield from _leaves(document, one, f"{name}.{part}" if name else part)
    for shape in lists:
        yield from _leaves(document, shape.get("items", {}), f"{name}[]")
    if not inner and not lists:
        yield name.removesuffix("[]")


def _shapes(document: Any, schema: Any) -> Iterator[Any]:
    """Yield what the schema may be, with references and alternatives resolved."""
    if "$ref" in schema:
        named = schema["$ref"].rsplit("/", 1)[1]
        yield from _shapes(document, document["components"]["schemas"][named])
        return
    alternatives = [one for kind in ("anyOf", "oneOf", "allOf") for one in schema.get(kind, ())]
    for one in alternatives:
        yield from _shapes(document, one)
    if not alternatives:
        yield schema


def schema_of(document: Any, route: str, name: str) -> Any:
    """Return the document's schema of one of those fields."""
    method, path = route.split(" ")
    operation = document["paths"][path][method.lower()]
    if name.startswith("?"):
        return next(one for one in operation["parameters"] if one["name"] == name[1:])
    content = operation["requestBody"]["content"]
    schema = next(iter(content.values()))["schema"]
    for part in re.findall(r"\w+|\[\]", name):
        for shape in _shapes(document, schema):
            if part == "[]" and shape.get("type") == "array":
                schema = shape["items"]
            elif part in shape.get("properties", {}):
                schema = shape["properties"][part]
    return _described(document, schema)


def _described(document: Any, schema: Any) -> Any:
    if "description" in schema:
        return schema
    shapes = [one for one in _shapes(document, schema) if "description" in one]
    return shapes[0] if shapes else schema

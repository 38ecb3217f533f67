"""Builds the examples of responses from the examples of their fields."""

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

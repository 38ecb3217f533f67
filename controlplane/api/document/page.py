"""Renders the OpenAPI document as a single HTML page, without scripts and without resources from
elsewhere."""

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from django.template import Context, Engine
from django.utils.html import escape, format_html_join
from django.utils.safestring import SafeString, mark_safe

from controlplane.api.document.examples import REFERENCE
from controlplane.api.openapi import ADDRESS, IDEMPOTENCY_KEY, JSON, METHOD_NAMES
from controlplane.api.router import api

HERE = Path(__file__).parent
# Levels of nesting down to which the page lists the fields of a field.
DEEPEST = 4


@cache
def policy() -> str:
    """The page's Content-Security-Policy, which allows the page's own style and nothing else."""
    digest = base64.b64encode(hashlib.sha256(_style().encode()).digest()).decode()
    return (
        f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )


@cache
def _style() -> str:
    return (HERE / "docs.css").read_text()


@cache
def page() -> str:
    """The page, with the placeholder ADDRESS in place of the API's address."""
    document = api.get_openapi_schema()
    template = Engine(dirs=[str(HERE)], autoescape=True).get_template("docs.html")
    groups = [
        {**tag, "slug": _slug(tag["name"]), "calls": list(_calls(document, tag["name"]))}
        for tag in document["tags"]
    ]
    described = {
        "title": document["info"]["title"],
        "description": prose(document["info"]["description"]),
        "style": mark_safe(_style()),  # noqa: S308 # our own file
        "idempotency_key": marked(str(IDEMPOTENCY_KEY["description"])),
        "groups": groups,
        "address": ADDRESS,
    }
    return str(template.render(Context(described)))


def prose(text: str) -> SafeString:
    """HTML of a text with paragraphs and `code`; the text is escaped."""
    paragraphs = [part.strip() for part in re.split(r"\n\s*\n", text) if part.strip()]
    return format_html_join("", "<p>{}</p>", ((marked(one),) for one in paragraphs))


def marked(text: str) -> SafeString:
    return mark_safe(re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text)))  # noqa: S308 # escaped


def _slug(name: str) -> str:
    return name.lower().replace(" ", "-")


def _calls(document: Any, tag: str) -> Iterator[dict[str, Any]]:
    for path, methods in document["paths"].items():
        for method in methods:
            if method in METHOD_NAMES and tag in methods[method]["tags"]:
                yield _call(document, path, method)


def _call(document: Any, path: str, method: str) -> dict[str, Any]:
    operation, schemas = document["paths"][path][method], document["components"]["schemas"]
    body = operation.get("requestBody", {}).get("content", {}).get(JSON)
    answers = {s: a for s, a in operation["responses"].items() if s.startswith("2")}
    errors = {s: a for s, a in operation["responses"].items() if not s.startswith("2")}
    status, answer = next(iter(answers.items()))
    content = answer.get("content", {}).get(JSON, {})
    return {
        "id": operation["operationId"],
        "method": method.upper(),
        "path": path,
        "summary": operation["summary"],
        "description": prose(operation.get("description", "")),
        "parameters": [
            _parameter(one) for one in operation["parameters"] if one != IDEMPOTENCY_KEY
        ],
        "is_change": IDEMPOTENCY_KEY in operation["parameters"],
        "body": list(_fields(body["schema"], schemas)) if body else [],
        "body_required": operation.get("requestBody", {}).get("required", False),
        "status": status,
        "answer": list(_fields(content["schema"], schemas)) if content else [],
        "example": _pretty(content.get("example")) if content else "",
        "errors": [_error(s, a) for s, a in errors.items()],
        "curl": _curl(method, path, operation, body),
    }


def _parameter(parameter: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": parameter["name"],
        "where": parameter["in"],
        "required": parameter.get("required", False),
        "type": type_of(parameter["schema"]),
        "description": prose(parameter.get("description", "")),
    }


def _error(status: str, answer: dict[str, Any]) -> dict[str, Any]:
    example = answer["content"][JSON]["example"]
    return {
        "status": status,
        "description": prose(answer["description"]),
        "code": example["code"],
        "message": example["message"],
    }


def _fields(
    schema: Any, schemas: Any, prefix: str = "", depth: int = 0
) -> Iterator[dict[str, Any]]:
    """The fields of an object and, down to DEEPEST, the fields of those, with dotted names."""
    inner = _resolved(schema, schemas)
    if inner.get("type") == "array":
        prefix, inner = f"{prefix}[]", _resolved(inner["items"], schemas)
    for name, part in inner.get("properties", {}).items():
        full = f"{prefix}.{name}" if prefix else name
        yield {
            "name": full,
            "depth": depth,
            "required": name in inner.get("required", ()),
            "type": type_of(part),
            "description": prose(part.get("description", "")),
        }
        if depth < DEEPEST:
            yield from _fields(part, schemas, full, depth + 1)


def _resolved(schema: Any, schemas: Any) -> Any:
    for options in ("anyOf", "oneOf", "allOf"):
        if options in schema:
            real = [one for one in schema[options] if one.get("type") != "null"]
            return _resolved(real[0], schemas) if real else {}
    if "$ref" in schema:
        return _resolved(schemas[schema["$ref"].removeprefix(REFERENCE)], schemas)
    return schema


def type_of(schema: Any) -> str:
    """A schema's type in words, such as "integer, 1 to 400 or null"."""
    for options in ("anyOf", "oneOf"):
        if options in schema:
            return " or ".join(dict.fromkeys(type_of(one) for one in schema[options]))
    if "$ref" in schema:
        return "object"
    if "const" in schema:
        return f'always "{schema["const"]}"'
    if "enum" in schema:
        return "one of " + ", ".join(map(str, schema["enum"]))
    words = str(schema.get("type", "anything"))
    if words == "array":
        words = f"list of {type_of(schema.get('items', {}))}"
    if "format" in schema:
        words += f" ({schema['format']})"
    return words + _limits(schema)


def _limits(schema: Any) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    words = ""
    if low is not None and high is not None:
        words += f", {low} to {high}"
    elif low is not None:
        words += f", {low} or more"
    if "maxLength" in schema:
        words += f", at most {schema['maxLength']} characters"
    if schema.get("default") not in (None, "", {}):
        words += f", {json.dumps(schema['default'])} if absent"
    return words


def _curl(method: str, path: str, operation: dict[str, Any], body: Any) -> str:
    examples = {one["name"]: one.get("example") for one in operation["parameters"]}
    filled = re.sub(r"\{(\w+)\}", lambda found: str(examples[found[1]]), path)
    needed = [
        one for one in operation["parameters"] if one["in"] == "query" and one.get("required")
    ]
    query = urlencode({one["name"]: one["example"] for one in needed}, doseq=True, safe="/:")
    lines = [f'curl "$API{filled}{"?" + query if query else ""}"']
    if method != "get":
        lines[0] = lines[0].replace("curl ", f"curl -X {method.upper()} ", 1)
    lines.append('  -H "Authorization: Bearer $KEY"')
    if body and "example" in body:
        lines.append("  -H 'Content-Type: application/json'")
        lines.append(f"  -d '{json.dumps(body['example'])}'")
    return " \\\n".join(lines)


def _pretty(example: Any) -> str:
    return json.dumps(example, indent=2, ensure_ascii=False)

"""Answers that are generated from the OpenAPI document of a server of this API."""

import re
from typing import Any

DEEPEST = 8


class DocumentAnswers:
    """The answers of a server of the document: each field has a value of its schema.

    With `required`, only the required fields are present.
    """

    def __init__(self, document: Any, *, required: bool) -> None:
        self._document = document
        self._required = required
        self._calls = []
        for path, methods in document["paths"].items():
            pattern = re.sub(r"\\{\w+\\}", "[^/]+", re.escape(path.removeprefix("/api/v2")))
            for method, call in methods.items():
                good = [code for code in call.get("responses", {}) if code.startswith("20")]
                if good:
                    found = re.compile(f"{method.upper()} {pattern}")
                    self._calls.append((found, int(good[0]), call["responses"][good[0]]))

    def answer(self, method: str, path: str) -> tuple[int, Any]:
        """Return the status and the body; 404 for a call that the document does not have."""
        for call, status, answer in self._calls:
            if call.fullmatch(f"{method} {path}"):
                content = self._found(answer).get("content", {})
                schema = content.get("application/json", {}).get("schema")
                # A stream has no end, so no answer can be generated.
                return (status, self._of(schema, "", 0)) if schema else (404, {})
        return 404, {"request_id": "r", "code": "", "message": "not found"}

    def _found(self, schema: Any) -> Any:
        while "$ref" in schema:
            found = self._document
            for part in schema["$ref"].removeprefix("#/").split("/"):
                found = found[part]
            schema = found
        return schema

    def _of(self, schema: Any, name: str, depth: int) -> Any:
        schema = self._found(schema)
        if parts := schema.get("allOf"):
            made: dict[str, Any] = {}
            for part in parts:
                made |= self._of(part, name, depth)
            return made
        for either in ("anyOf", "oneOf"):
            if schema.get(either):
                return self._of(schema[either][0], name, depth)
        if "const" in schema or schema.get("enum"):
            return schema.get("const", (schema.get("enum") or [None])[0])
        kinds = schema.get("type", "object")
        kind = kinds[0] if isinstance(kinds, list) else kinds
        if kind == "array":
            return [] if depth > DEEPEST else [self._of(schema.get("items", {}), name, depth + 1)]
        if kind == "object":
            fields = schema.get("properties", {})
            chosen = schema.get("required", []) if self._required else fields
            if depth > DEEPEST:
                return {}
            return {one: self._of(fields[one], one, depth + 1) for one in chosen if one in fields}
        return self._plain(schema, kind, name)

    def _plain(self, schema: Any, kind: str, name: str) -> Any:
        if kind in ("integer", "number"):
            return schema.get("minimum", 3)
        if kind == "boolean":
            return False
        if kind == "null":
            return None
        if name.endswith("uri"):
            return "postgresql://reader:secret@localhost:5432/neondb"
        if schema.get("format") == "date-time":
            return "2026-01-31T12:00:00Z"
        return "quiet-heron-12345678" if name.endswith("id") else f"a {name or 'text'}"

"""Neon's public OpenAPI document, whose schemas and calls of 2023 are in `neon-fields.txt` and
`neon-paths.txt`, and whose newest calls are all in `neon-operations.txt`; and answers generated
from it, for tests that need a server of that API."""

import contextlib
import http.server
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from tests.support.stack import ROOT

FIELDS = ROOT / "tests" / "fixtures" / "neon-fields.txt"
CALLS = ROOT / "tests" / "fixtures" / "neon-paths.txt"
OPERATIONS = ROOT / "tests" / "fixtures" / "neon-operations.txt"


@dataclass(frozen=True)
class Operation:
    """A call of the newest document."""

    method: str
    path: str
    id: str
    # The names of the query's parameters.
    parameters: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


def read_operations() -> list[Operation]:
    rows = [line.split() for line in OPERATIONS.read_text().splitlines() if line[0] != "#"]
    return [
        Operation(method, path, name, tuple(re.split("[!:]", one)[0] for one in parameters))
        for method, path, name, *parameters in rows
    ]


@dataclass
class Known:
    """A schema in the file: its parts, its fields, or another type."""

    of: str = ""
    fields: dict[str, tuple[bool, str]] = field(default_factory=dict)


def read_fields() -> dict[str, Known]:
    schemas: dict[str, Known] = {}
    for line in FIELDS.read_text().splitlines():
        if found := re.match(r"## (\w+)\s*(.*)", line):
            schemas[found[1]] = now = Known(of=found[2].strip())
        elif found := re.match(r"\s+(\*?)([\w ]+?) : (.+)", line):
            now.fields[found[2]] = bool(found[1]), found[3].strip()
    return schemas


def read_calls() -> dict[str, tuple[int, str]]:
    """Return the calls by keys such as "GET /projects", with the status and schema of a successful
    answer."""
    calls = {}
    for line in CALLS.read_text().splitlines():
        if line.startswith("#"):
            continue
        head, _, rest = line.partition(" | ")
        answer = re.search(r"'(20\d)': '([^']+)'", rest)
        assert answer, line
        schema = re.search(r"schemas/(\w+)", answer[2])
        name = f"{schema[1]}[]" if schema else answer[2]
        calls[" ".join(head.split()[:2])] = int(answer[1]), name.replace("Ite[]", "Item[]")
    return calls


# The kinds of answers: all fields of a schema, only the required ones, unforeseen values, or empty
# lists.
KINDS = ("whole", "required", "unforeseen", "empty")
DEEPEST = 6
# Answers that the document does not name among its schemas.
ANSWERS = {"ListOperations": "OperationsResponse&PaginationResponse"}
MOMENTS = {"unforeseen": "0001-01-01T00:00:00Z"}


class Answers:
    """The answers of a server of the document, of one of KINDS."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._schemas = read_fields()
        self._calls = [
            (
                re.compile(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(call))),
                status,
                ANSWERS.get(schema, schema),
            )
            for call, (status, schema) in read_calls().items()
        ]

    def answer(self, method: str, path: str) -> tuple[int, Any]:
        """Return the status and the body; 404 for a call that the document does not have."""
        for call, status, schema in self._calls:
            if call.fullmatch(f"{method} {path}"):
                return status, self._of(schema, "", 0)
        return 404, {"request_id": "r", "code": "", "message": "not found"}

    def _of(self, name: str, field_name: str, depth: int) -> Any:
        name = name.strip()
        if "&" in name:
            parts = [self._of(part, field_name, depth) for part in name.split("&")]
            return {
                key: value
                for part in parts
                if isinstance(part, dict)
                for key, value in part.items()
            }
        if name.endswith("[]"):
            is_empty = self.kind == "empty" or depth > DEEPEST
            return [] if is_empty else [self._of(name[:-2], field_name, depth + 1)]
        word = name.split()[0] if name else ""
        if word in self._schemas:
            return self._schema(self._schemas[word], field_name, depth)
        return self._plain(name, word, field_name)

    def _schema(self, known: Known, field_name: str, depth: int) -> Any:
        if not known.fields:
            return self._of(known.of, field_name, depth + 1)
        if depth > DEEPEST:
            return {}
        made = {
            name: self._of(kind, name, depth + 1)
            for name, (is_required, kind) in known.fields.items()
            if is_required or self.kind != "required"
        }
        if "&" in known.of:
            made = {**self._of(known.of.split()[0], field_name, depth + 1), **made}
        return made | ({"of_tomorrow": [{}]} if self.kind == "unforeseen" else {})

    def _plain(self, name: str, word: str, field_name: str) -> Any:
        is_strange = self.kind == "unforeseen"
        if enum := re.search(r"enum=\[(.*?)\]", name):
            return "never_seen" if is_strange else enum[1].split(",")[0].strip(" '")
        if word in ("integer", "number"):
            return 2**62 if is_strange else 3
        if word == "boolean":
            return is_strange
        if word != "string":
            return {}
        if "date-time" in name:
            return MOMENTS.get(self.kind, "2026-01-31T12:00:00Z")
        if field_name.endswith("id"):
            return "quiet-heron-12345678"
        return "<Žluť & “x”>" if is_strange else f"a {field_name or 'text'}"


class Answering(Protocol):
    def answer(self, method: str, path: str) -> tuple[int, Any]:
        """Return the status and the body."""


@contextlib.contextmanager
def serving(answers: Answering) -> Iterator[str]:
    """Run a server with these answers. Yields its address, including /api/v2."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def __getattr__(self, name: str) -> Any:
            # The server looks for do_GET, do_POST and so on.
            return self.reply if name.startswith("do_") else super().__getattribute__(name)

        def reply(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            path = self.path.partition("?")[0].removeprefix("/api/v2")
            status, body = answers.answer(self.command, path)
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *args: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=[0.01])
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/api/v2"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

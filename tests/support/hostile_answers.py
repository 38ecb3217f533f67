"""The answers of a server that attacks the console: those in the API's own document, with wrong
values in every field."""

import zlib
from typing import Any

from tests.support.neon_document import Answering

VALUES: list[Any] = [
    "</script></textarea></title><img src=x onerror=alert(1)>\"'><svg/onload=alert(1)>",
    "javascript:alert(1)//",
    "//evil.example/../x",
    "a\r\nSet-Cookie: x=y\r\n\r\n\x1b[2J\0\u202e\ud800\u2028\udfff",
    "9999-12-31T23:59:59.999999-23:59",
    "x" * 50_000,
    [["x"]],
    {"id": {"id": []}},
    10**400,
    float("nan"),
]
# Without these fields, there is no resource with which the others could be shown.
KEPT = frozenset({"id", "project_id", "branch_id", "endpoint_id"})


class HostileAnswers:
    """Each field has one of VALUES, and a different one for each value of `turn`."""

    def __init__(self, whole: Answering) -> None:
        self._whole = whole
        self.turn: int | None = None

    def answer(self, method: str, path: str) -> tuple[int, Any]:
        status, body = self._whole.answer(method, path)
        return status, body if self.turn is None else self._changed("", body)

    def _changed(self, name: str, value: Any) -> Any:
        if isinstance(value, dict):
            return {one: self._changed(one, inner) for one, inner in value.items()}
        if isinstance(value, list):
            return [self._changed(name, one) for one in value]
        if name in KEPT or self.turn is None:
            return value
        return VALUES[(zlib.crc32(name.encode()) + self.turn) % len(VALUES)]

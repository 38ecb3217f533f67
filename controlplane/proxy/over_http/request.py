"""One HTTP request, without its body, and its response."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    query: str
    # By name in lower case; the values of a repeated header are joined by commas.
    headers: Mapping[str, str]
    # "1.0" or "1.1".
    version: str

    def tokens(self, header: str) -> list[str]:
        """Returns the header's comma-separated values in lower case."""
        return [token.strip().lower() for token in self.headers.get(header, "").split(",")]


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    # JSON, or empty.
    body: bytes = b""
    headers: Sequence[tuple[str, str]] = ()

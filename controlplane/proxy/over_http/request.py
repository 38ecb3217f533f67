"""The head of one HTTP request."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    query: str
    # By their names in lower case.
    headers: Mapping[str, str]

    def tokens(self, header: str) -> list[str]:
        """What the header lists, in lower case."""
        return [token.strip().lower() for token in self.headers.get(header, "").split(",")]

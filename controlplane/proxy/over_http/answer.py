"""The answer to one HTTP request."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    # JSON, or empty.
    body: bytes = b""
    headers: Sequence[tuple[str, str]] = ()

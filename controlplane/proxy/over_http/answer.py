"""What is said to one HTTP request."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    # JSON, or nothing.
    body: bytes = b""
    headers: Sequence[tuple[str, str]] = ()

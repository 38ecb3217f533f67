"""Whether this process itself stood still, stopped or without a core, while it waited: then what it
waited for may be there, unread, and that a bound has passed says nothing of anybody else."""

import asyncio
from types import TracebackType
from typing import Self

# Seconds. What is later than this is noticed; a busy loop is not.
_EVERY = 0.25
_LATE = 0.5


class Standstill:
    """Watches the running loop while it is entered."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._lost = 0.0

    def __enter__(self) -> Self:
        self._expect()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._next.cancel()

    def has_been(self) -> bool:
        return self._lost + self._lateness() > _LATE

    def _expect(self) -> None:
        self._due = self._loop.time() + _EVERY
        self._next = self._loop.call_at(self._due, self._note)

    def _note(self) -> None:
        self._lost += self._lateness()
        self._expect()

    def _lateness(self) -> float:
        return max(0.0, self._loop.time() - self._due)

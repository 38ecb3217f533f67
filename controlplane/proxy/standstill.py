"""Detects that this process itself stood still while it waited, because it was stopped or had no
core. Then the answer it waited for may have arrived unread, and a passed deadline does not show
that anybody else was slow."""

import asyncio
from types import TracebackType
from typing import Self

# Seconds between two timers, and their total lateness that counts as a standstill. The timers of a
# busy loop are less late.
_EVERY = 0.25
_LATE = 0.5


class Standstill:
    """Watches the running loop while the context is entered."""

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

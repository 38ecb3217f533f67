"""How long a client that was woken for waits for its compute's first answer: from its first request
to that answer. A client that has not asked anything yet is not kept waiting."""

import time
from collections.abc import Callable


class FirstAnswer:
    """Calls `answered` once, with the seconds between the calls of its two methods."""

    __slots__ = ("_answered", "_asked_at")

    def __init__(self, answered: Callable[[float], None]) -> None:
        self._answered: Callable[[float], None] | None = answered
        self._asked_at: float | None = None

    def asked(self) -> None:
        """Must be called when the client has sent something; may be called again."""
        if self._asked_at is None:
            self._asked_at = time.monotonic()

    def came(self) -> None:
        """Must be called when the compute has sent something; may be called again."""
        if self._asked_at is not None and self._answered is not None:
            answered, self._answered = self._answered, None
            answered(time.monotonic() - self._asked_at)

"""Limits what large answers and files take up of this process's memory, and how many runs of SQL an
account has at once. All users share the process.

An account may take more memory while it then holds no more than what is left. So the first account
gets at most half of the memory, and the next one half of the rest."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

# Bytes. The largest answer to SQL is estimated at 150 MiB, and the largest import at 240.
MAX_HELD_BYTES = 512 << 20
MAX_RUNS = 8
# Seconds for which a request waits for others of its account, or for memory.
PATIENCE = 10.0
# At most, for a value in decoded JSON, beside the characters of texts.
BYTES_PER_VALUE = 80


class MemoryExhausted(Exception):
    """There is no memory left for the account."""


class TooManyRuns(Exception):
    """The account has as many runs in progress as it may have. The message is for the user."""


class Budget:
    def __init__(self, most: int = MAX_HELD_BYTES) -> None:
        self._left = most
        # By account: bytes, and runs.
        self._held: Counter[str] = Counter()
        self._runs: Counter[str] = Counter()
        self._changed = threading.Condition()

    def take(self, account: str, size: int) -> None:
        """Take `size` bytes for the account from what is left. Raises MemoryExhausted."""
        with self._changed:
            if not self._changed.wait_for(
                lambda: self._held[account] + size <= self._left - size, PATIENCE
            ):
                raise MemoryExhausted
            self._left -= size
            self._held[account] += size

    def give_back(self, account: str, size: int) -> None:
        with self._changed:
            self._left += size
            self._held[account] -= size
            self._held = +self._held  # without those that hold nothing
            self._changed.notify_all()

    @contextmanager
    def run(self, account: str) -> Iterator[None]:
        """Count a run of SQL within the block. Raises TooManyRuns."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._runs[account] < MAX_RUNS, PATIENCE):
                raise TooManyRuns(
                    f"This account has {MAX_RUNS} runs in progress at this console. Wait until one "
                    "of them ends."
                )
            self._runs[account] += 1
        try:
            yield
        finally:
            with self._changed:
                self._runs[account] -= 1
                self._runs = +self._runs
                self._changed.notify_all()


budget = Budget()


class Reservation:
    """The memory that one request and its answer take up."""

    def __init__(self, account: str = "") -> None:
        # Must be set before the first `grow`.
        self.account = account
        self._taken = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.release()

    def grow(self, size: int) -> None:
        """Add `size` bytes. Raises MemoryExhausted."""
        budget.take(self.account, size)
        self._taken += size

    def shrink(self, size: int) -> None:
        """Keep at most `size` bytes."""
        if (more := self._taken - size) > 0:
            self._taken = size
            budget.give_back(self.account, more)

    def release(self) -> None:
        self.shrink(0)

"""Limits the memory that all requests and responses over HTTP take up together in a proxy process.
Each of them may be large, and there may be many at once.

An account may take more while it then holds no more than what is left. So the first account gets at
most half of the memory, and the next one half of the rest."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from controlplane.proxy.over_http.request import MemoryExhausted

# Bytes, in each process.
MAX_HELD_BYTES = 256 * 1024 * 1024


class MemoryBudget:
    def __init__(self, most: int = MAX_HELD_BYTES) -> None:
        self._left = most
        # Bytes, by account.
        self._held: Counter[int | None] = Counter()

    @contextmanager
    def reserve(self) -> Iterator["MemoryReservation"]:
        """Yields an empty reservation. At the end of the block, its memory is released."""
        reservation = MemoryReservation(self)
        try:
            yield reservation
        finally:
            self._left += reservation.taken
            self._held[reservation.account_id] -= reservation.taken
            self._held = +self._held  # without those that hold nothing

    def take(self, account_id: int | None, size: int) -> None:
        """Takes `size` bytes for the account from what is left. Raises MemoryExhausted."""
        if self._held[account_id] + size > self._left - size:
            raise MemoryExhausted
        self._left -= size
        self._held[account_id] += size


class MemoryReservation:
    """The memory that one request and its response take up."""

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        # Must be set before the first `grow`.
        self.account_id: int | None = None
        self.taken = 0

    def grow(self, size: int) -> None:
        """Adds `size` bytes to the reservation. Raises MemoryExhausted."""
        self._budget.take(self.account_id, size)
        self.taken += size

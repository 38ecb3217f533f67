"""Limits the memory that all requests and responses over HTTP take up together in a proxy process.
Each of them may be large, and there may be many at once."""

from collections.abc import Iterator
from contextlib import contextmanager

from controlplane.proxy.over_http.errors import MemoryExhausted

# Bytes, in each process.
MOST_HELD = 256 * 1024 * 1024


class MemoryBudget:
    def __init__(self, most: int = MOST_HELD) -> None:
        self._left = most

    @contextmanager
    def reserve(self) -> Iterator["MemoryReservation"]:
        """Yields an empty reservation. At the end of the block, its memory is released."""
        reservation = MemoryReservation(self)
        try:
            yield reservation
        finally:
            self._left += reservation.taken

    def take(self, size: int) -> None:
        """Takes `size` bytes from what is left. Raises MemoryExhausted."""
        if size > self._left:
            raise MemoryExhausted
        self._left -= size


class MemoryReservation:
    """The memory that one request and its response take up."""

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self.taken = 0

    def grow(self, size: int) -> None:
        """Adds `size` bytes to the reservation. Raises MemoryExhausted."""
        self._budget.take(size)
        self.taken += size

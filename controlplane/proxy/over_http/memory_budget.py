"""Limits the memory that requests and answers take up in the proxy at once: each may be large, and
there may be many."""

from collections.abc import Iterator
from contextlib import contextmanager

from controlplane.proxy.over_http.errors import MemoryExhausted

# Bytes for each process.
MOST_HELD = 256 * 1024 * 1024


class MemoryBudget:
    def __init__(self, most: int = MOST_HELD) -> None:
        self._left = most

    @contextmanager
    def reserve(self) -> Iterator["MemoryReservation"]:
        """Gives a reservation. The memory taken by it is free again at the end of the block."""
        reservation = MemoryReservation(self)
        try:
            yield reservation
        finally:
            self._left += reservation.taken

    def take(self, size: int) -> None:
        if size > self._left:
            raise MemoryExhausted
        self._left -= size


class MemoryReservation:
    """One request's part of the memory."""

    def __init__(self, memory: MemoryBudget) -> None:
        self._memory = memory
        self.taken = 0

    def grow(self, size: int) -> None:
        """Takes `size` more bytes. Raises MemoryExhausted."""
        self._memory.take(size)
        self.taken += size

"""Places that the accounts of a process share, for work that only a few may do at once."""

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# Seconds between two checks whether the client of one who waits has left.
CHECK_INTERVAL = 1.0


class ClientLeft(Exception):
    """The client has closed its connection, and needs the work no more."""


class StillWaiting(Exception):
    """There was no place in time."""


class Places:
    """An account gets another place while it holds fewer than are free: at most half of them if no
    other account holds any. Otherwise places are given in the order in which they were asked
    for."""

    def __init__(self, count: int) -> None:
        self._lock = threading.Lock()
        self._free = count
        # By account.
        self._held: Counter[int] = Counter()
        # Those who wait, with their accounts; the first came first.
        self._waiting: dict[threading.Event, int] = {}

    @contextmanager
    def hold(
        self, account_id: int, *, has_left: Callable[[], bool], patience: float = math.inf
    ) -> Iterator[None]:
        """Wait for a place, and hold it within the block. Raises ClientLeft, and StillWaiting
        after `patience` seconds."""
        end = time.monotonic() + patience
        given = threading.Event()
        with self._lock:
            self._waiting[given] = account_id
            self._give()
        try:
            while not given.wait(min(CHECK_INTERVAL, patience)):
                if has_left():
                    raise ClientLeft
                if time.monotonic() >= end:
                    raise StillWaiting
            yield
        finally:
            with self._lock:
                if self._waiting.pop(given, None) is None:
                    self._free += 1
                    self._held[account_id] -= 1
                    self._held = +self._held  # without those that hold none
                self._give()

    def _give(self) -> None:
        for given, account_id in list(self._waiting.items()):
            if self._held[account_id] < self._free:
                del self._waiting[given]
                self._free -= 1
                self._held[account_id] += 1
                given.set()

"""Limits how many CPU-bound tasks run at once, so that they finish as early as possible.

If twenty computes start at once on two cores, all are ready only when the last one is. In turns,
half of them are ready in half that time, and the last one is no later. A turn is limited in time,
so that a task that hangs does not hold up the others for long.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from controlplane.compute.patience import heed_cancel

# A start waits (for the disk, its first processes) about as long as it computes.
STARTS_PER_CORE = 2
# Seconds after which a turn no longer counts, even if its task still runs.
LONGEST_TURN = 0.5
# Seconds between two checks whether the waiting work was cancelled.
HEED_INTERVAL = 0.25


class Turns:
    """At most `most` turns at once, first come, first served."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._changed = threading.Condition()
        self._waiting: deque[object] = deque()
        # When each turn under way stops counting, by the monotonic clock.
        self._ends: dict[object, float] = {}

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Wait for a turn and hold it. Raises patience.Cancelled while waiting."""
        turn = object()
        with self._changed:
            self._waiting.append(turn)
            try:
                while self._waiting[0] is not turn or (pause := self._until_free()) > 0:
                    first = self._waiting[0] is turn
                    self._changed.wait(min(pause, HEED_INTERVAL) if first else HEED_INTERVAL)
                    heed_cancel()
                self._ends[turn] = time.monotonic() + LONGEST_TURN
            finally:
                self._waiting.remove(turn)
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                del self._ends[turn]
                self._changed.notify_all()

    def _until_free(self) -> float:
        """Seconds until another turn is free, as far as is known; 0 if one is."""
        now = time.monotonic()
        under_way = sorted(end for end in self._ends.values() if end > now)
        return 0.0 if len(under_way) < self._most else under_way[-self._most] - now


starts = Turns(STARTS_PER_CORE * len(os.sched_getaffinity(0)))

"""Turns at what keeps a processor busy: so many at once as get it done soonest.

Where twenty computes start at once on two cores, all of them are ready as late as the last one;
in turns, half of them are by half that time, and the last one is no later. A turn is bounded: one
that hangs holds up the others for no longer than a moment.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from controlplane.compute.patience import heed_cancel

# A start has about as much to wait for, the disk and its first processes, as to compute.
STARTS_PER_CORE = 2
# Seconds until a turn is over for the others, whatever has become of it.
LONGEST_TURN = 0.5
# Seconds between two looks at whether what waits is still wanted.
HEED_INTERVAL = 0.25


class Turns:
    """`most` at once, in the order of their coming."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._changed = threading.Condition()
        self._waiting: deque[object] = deque()
        # When each turn under way is over for the others, by the monotonic clock.
        self._ends: dict[object, float] = {}

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Hold a turn, once there is one. Raises patience.Cancelled while it waits."""
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
        """Seconds until there is room for one more, as far as is known; 0 where there is."""
        now = time.monotonic()
        under_way = sorted(end for end in self._ends.values() if end > now)
        return 0.0 if len(under_way) < self._most else under_way[-self._most] - now


starts = Turns(STARTS_PER_CORE * len(os.sched_getaffinity(0)))

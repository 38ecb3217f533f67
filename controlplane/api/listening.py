"""Waiting for the database's notifications: one connection of it for all requests of a process.

Who waits holds neither a database connection nor, in the API's own server, a thread:

    with waiting_for(OPERATIONS, str(operation_id)) as waiter:
        while not look().is_finished and waiter.wait(deadline - time.monotonic()):
            pass

The first who waits has the connection made; it is then kept, and made anew when it is lost.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from controlplane.database.notifications import hear

# What the triggers of the migration `0013_notify_of_events` tell by: the id of an operation
# that has ended; that there are events, without saying which. Then the
# id of a schema's reading that has ended, as `operations.schemas` tells it.
OPERATIONS, EVENTS, READINGS = "perch_operations", "perch_events", "perch_readings"
CHANNELS = (OPERATIONS, EVENTS, READINGS)
# Seconds between two looks of a waiter's own while notifications go unheard.
LOOK_EVERY = 1.0


class Waiter:
    """Waits for one thing. Used by one thread."""

    def __init__(self, listener: "Listener") -> None:
        self._listener = listener
        self._told = threading.Event()

    def tell(self) -> None:
        """There may be something to see."""
        self._told.set()

    def wait(self, seconds: float) -> bool:
        """Wait until it is time to look again: something was told since the last wait returned,
        or may have been and went unheard.

        False once `seconds` are over, and when the process is to end.
        """
        deadline = time.monotonic() + seconds
        while not self._listener.is_ending:
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            # Read before the wait: the line's beginning and its end tell every waiter.
            is_heard = self._listener.is_heard
            if self._told.wait(left if is_heard else min(left, LOOK_EVERY)):
                self._told.clear()
                return not self._listener.is_ending
            if not is_heard:
                return True
        return False


class Listener:
    """The waiters of a process, and the one thread that hears for them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # By channel and payload; without a payload, for whatever comes by the channel.
        self._waiters: dict[tuple[str, str | None], set[Waiter]] = {}
        self._thread: threading.Thread | None = None
        # Whether nothing that was committed after it was set goes unheard.
        self.is_heard = False
        self.is_ending = False

    @contextmanager
    def waiting_for(self, channel: str, payload: str | None = None) -> Iterator[Waiter]:
        """Within the block, what the channel tells (with that payload, else anything) ends the
        waiter's wait. To be entered before the first look, so that nothing falls between."""
        waiter, key = Waiter(self), (channel, payload)
        with self._lock:
            self._waiters.setdefault(key, set()).add(waiter)
            if self._thread is None and not self.is_ending:
                self._thread = threading.Thread(target=self._hear, name="listener", daemon=True)
                self._thread.start()
        try:
            yield waiter
        finally:
            with self._lock:
                self._waiters[key].discard(waiter)
                if not self._waiters[key]:
                    del self._waiters[key]

    def stop(self) -> None:
        """Have every wait end at once, now and from now on: the process is to end."""
        self.is_ending = True
        self._tell_all()

    def begin(self) -> None:
        self.is_heard = True
        # What was told before went unheard.
        self._tell_all()

    def end(self) -> None:
        self.is_heard = False
        self._tell_all()

    def take_in(self, channel: str, payload: str) -> None:
        with self._lock:
            for key in ((channel, payload), (channel, None)):
                for waiter in self._waiters.get(key, ()):
                    waiter.tell()

    def _hear(self) -> None:
        hear(CHANNELS, self, until=lambda: self.is_ending)

    def _tell_all(self) -> None:
        with self._lock:
            for waiters in self._waiters.values():
                for waiter in waiters:
                    waiter.tell()


listener = Listener()
waiting_for = listener.waiting_for

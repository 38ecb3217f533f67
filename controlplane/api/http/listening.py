"""Waits for notifications of the database, with one database connection for a whole process.

A waiting request holds no database connection and, in the API's gunicorn worker, no thread:

    with waiting_for(OPERATIONS, str(operation_id)) as waiter:
        while not look().is_finished and waiter.wait(deadline - time.monotonic()):
            pass

The first waiter causes the connection to be made. It is then kept, and made again when it is lost.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from controlplane.database.notifications import listen_to

# OPERATIONS: a trigger of migration `0001_squashed_0029` notifies of each operation that has ended;
# the payload is its id. EVENTS: a trigger of the same migration notifies that there are new events;
# there is no payload. READINGS: `operations.actions.readings` notifies of each schema reading that
# has ended; the payload is its id.
OPERATIONS, EVENTS, READINGS = "perch_operations", "perch_events", "perch_readings"
CHANNELS = (OPERATIONS, EVENTS, READINGS)
# Seconds after which a waiter polls while the process receives no notifications.
POLL_INTERVAL = 1.0


class Waiter:
    """Waits for one thing. Used by one thread."""

    def __init__(self, listener: "Listener") -> None:
        self._listener = listener
        self._told = threading.Event()

    def tell(self) -> None:
        """End the current wait, or the next one, so that the waiter looks again."""
        self._told.set()

    def wait(self, seconds: float) -> bool:
        """Wait until it is time to look again, at most `seconds`.

        Returns True if a notification has come since the last wait returned, or may have been
        missed. Returns False once `seconds` have passed, or if the process is to exit.
        """
        deadline = time.monotonic() + seconds
        while not self._listener.is_ending:
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            # Read `is_heard` before the wait. Whenever it changes, every waiter is notified.
            is_heard = self._listener.is_heard
            if self._told.wait(left if is_heard else min(left, POLL_INTERVAL)):
                self._told.clear()
                return not self._listener.is_ending
            if not is_heard:
                return True
        return False


class Listener:
    """The waiters of a process, and the thread that receives notifications for them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # By channel and payload. Waiters with the payload None get every notification of the
        # channel.
        self._waiters: dict[tuple[str, str | None], set[Waiter]] = {}
        self._thread: threading.Thread | None = None
        # True while the connection listens: every notification of a later commit is received.
        self.is_heard = False
        self.is_ending = False

    @contextmanager
    def waiting_for(self, channel: str, payload: str | None = None) -> Iterator[Waiter]:
        """A waiter that is notified, within the block, of the channel's notifications with this
        payload; None stands for any payload. Enter the block before looking for the first time, so
        that no notification is missed between the look and the wait."""
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
        """End every present and future wait at once, because the process is to exit."""
        self.is_ending = True
        self._tell_all()

    def begin(self) -> None:
        self.is_heard = True
        # Earlier notifications may have been missed, so let every waiter look again.
        self._tell_all()

    def end(self) -> None:
        self.is_heard = False
        self._tell_all()

    def receive(self, channel: str, payload: str) -> None:
        with self._lock:
            for key in ((channel, payload), (channel, None)):
                for waiter in self._waiters.get(key, ()):
                    waiter.tell()

    def _hear(self) -> None:
        listen_to(CHANNELS, self, until=lambda: self.is_ending)

    def _tell_all(self) -> None:
        with self._lock:
            for waiters in self._waiters.values():
                for waiter in waiters:
                    waiter.tell()


listener = Listener()
waiting_for = listener.waiting_for

"""Reads new events once for all streams of this process, and passes each event to the streams that
want it.

A single thread does this; under gevent it is a greenlet. It starts with the first stream and ends
after the last one. It holds a database connection only while it reads.
"""

import json
import logging
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence

from django.db import InterfaceError, OperationalError, close_old_connections

from controlplane.api.http.listening import EVENTS, listener, waiting_for
from controlplane.events.recording import as_json
from controlplane.models import Event
from controlplane.services.accounts import keys_in_force
from controlplane.services.monitoring.events import (
    NOTHING,
    EventFilter,
    Position,
    position_now,
    position_of,
    read_tail,
)

log = logging.getLogger(__name__)

# Events that one query reads, and events that wait for one reader at most. A reader that is slower
# than that is disconnected; it reconnects and resumes where it was.
BATCH_SIZE, MAX_WAITING = 500, 1000
# Seconds between two reads while an older open transaction holds committed events back. Nothing
# notifies of the end of that transaction, so the tail polls, with a pause that doubles each time.
MIN_RETRY_DELAY, MAX_RETRY_DELAY = 0.01, 0.25
# Seconds between two reads without a notification, and between two checks of the readers.
POLL_INTERVAL = 2.0


class Reader:
    """A stream's queue of new events. The tail fills it and the stream empties it."""

    def __init__(
        self,
        *,
        account_id: int,
        project_id: str | None,
        key_id: int | None,
        wanted: EventFilter,
        has_left: Callable[[], bool],
    ) -> None:
        self.account_id = account_id
        self.key_id = key_id
        # Returns True once the client has closed its connection.
        self.has_left = has_left
        self._project_id = project_id
        self._wanted = wanted
        self._waiting: deque[tuple[Position, bytes]] = deque()
        self._news = threading.Event()
        # Once this is True, the stream ends.
        self.has_ended = False

    def admits(self, event: Event) -> bool:
        return self._project_id in (None, event.project_id) and self._wanted.admits(event)

    def give(self, position: Position, frame: bytes) -> None:
        if len(self._waiting) >= MAX_WAITING:
            self.end()
            return
        self._waiting.append((position, frame))
        self._news.set()

    def end(self) -> None:
        """End the stream once it has sent what it has already taken; discard the rest."""
        self.has_ended = True
        self._waiting.clear()
        self._news.set()

    def take(self, *, timeout: float) -> Sequence[tuple[Position, bytes]]:
        """Take all waiting events as (position, frame). Wait up to `timeout` seconds for the first
        one; return nothing if none comes."""
        self._news.wait(timeout)
        # Clear the flag before emptying the queue. An event that comes in between is taken now,
        # and its flag only causes a later call to return nothing.
        self._news.clear()
        taken = []
        while self._waiting:
            taken.append(self._waiting.popleft())
        return taken


class Tail:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._readers: dict[int, set[Reader]] = defaultdict(set)
        self._thread: threading.Thread | None = None
        self._position = NOTHING
        self._looked_at = 0.0

    def join(self, reader: Reader) -> Position:
        """Give the reader every event after the returned position, until it leaves."""
        with self._lock:
            if self._thread is None:
                self._position = position_now()
                self._thread = threading.Thread(target=self._run, name="events", daemon=True)
                self._thread.start()
            self._readers[reader.account_id].add(reader)
            if listener.is_ending:
                reader.end()
            return self._position

    def leave(self, reader: Reader) -> None:
        with self._lock:
            readers = self._readers[reader.account_id]
            readers.discard(reader)
            if not readers:
                del self._readers[reader.account_id]

    def _run(self) -> None:
        try:
            self._follow()
        except Exception:
            log.exception("the tail of events is lost")
            with self._lock:
                self._thread = None
                for reader in self._all():
                    # They reconnect, which starts a new thread.
                    reader.end()

    def _follow(self) -> None:
        with waiting_for(EVENTS) as waiter:
            pause = MIN_RETRY_DELAY
            while self._should_continue():
                before = self._position
                if not self._look():
                    waiter.wait(POLL_INTERVAL)
                elif self._position == before:
                    time.sleep(pause)
                    pause = min(2 * pause, MAX_RETRY_DELAY)
                    continue
                pause = MIN_RETRY_DELAY

    def _should_continue(self) -> bool:
        """True while there are readers and the process is not to exit. Otherwise the thread ends,
        and the next reader starts a new one."""
        with self._lock:
            if listener.is_ending:
                for reader in self._all():
                    reader.end()
            if self._readers and not listener.is_ending:
                return True
            self._thread = None
            return False

    def _look(self) -> bool:
        """Read the next events, and end the streams that must end. Returns True if there are more
        events already.

        If the database does not answer, the next call tries again.
        """
        try:
            has_more = self._read()
            if time.monotonic() - self._looked_at >= POLL_INTERVAL:
                self._end_invalid_streams()
        except (OperationalError, InterfaceError) as error:
            log.warning("events unread", extra={"error": str(error)})
            return False
        finally:
            close_old_connections()
        return has_more

    def _read(self) -> bool:
        events, has_more = read_tail(self._position, limit=BATCH_SIZE)
        with self._lock:
            for event in events:
                self._deliver(event)
        return has_more

    def _deliver(self, event: Event) -> None:
        # The position advances with each event: a reader that joins after it reads this event from
        # the database.
        position = self._position = position_of(event)
        readers = self._readers.get(event.account_id or 0, ())
        wanting = [reader for reader in readers if reader.admits(event)]
        if wanting:
            frame = frame_of(event)
            for reader in wanting:
                reader.give(position, frame)

    def _end_invalid_streams(self) -> None:
        """End the streams whose API key is no longer valid, and those whose client has closed its
        connection."""
        with self._lock:
            keys = {reader.key_id for reader in self._all() if reader.key_id is not None}
        good = keys_in_force(keys)
        with self._lock:
            for reader in self._all():
                # A reader that joined during the query is checked the next time.
                if reader.key_id in keys - good or reader.has_left():
                    reader.end()
        self._looked_at = time.monotonic()

    def _all(self) -> Iterable[Reader]:
        return [reader for readers in self._readers.values() for reader in readers]


def frame_of(event: Event) -> bytes:
    """The event as a message of a stream of server-sent events."""
    data = json.dumps(as_json(event), ensure_ascii=False)
    return f"id: {position_of(event)}\ndata: {data}\n\n".encode()


tail = Tail()

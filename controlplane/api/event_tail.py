"""Reads new events once for all streams of this process, and hands each to those it is for.

One thread, which begins with the first stream and ends with the last: under gevent a greenlet. It
holds a database connection only while it reads.
"""

import json
import logging
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence

from django.db import InterfaceError, OperationalError, close_old_connections

from controlplane.api.listening import EVENTS, listener, waiting_for
from controlplane.events.shape import as_json
from controlplane.models import Event
from controlplane.services.accounts import keys_in_force
from controlplane.services.event_filters import EventFilter
from controlplane.services.event_tail import (
    NOTHING,
    Position,
    position_now,
    position_of,
    read_tail,
)

log = logging.getLogger(__name__)

# Events that are read at once, and that wait for one reader. One that takes them more slowly than
# they come is let go: it comes back and goes on where it was.
AT_ONCE, MOST_WAITING = 500, 1000
# Seconds between two looks while an older transaction keeps events back, whose end nothing tells
# of: twice as long each time.
FIRST_PAUSE, LONGEST_PAUSE = 0.01, 0.25
# Seconds between two looks without any news, and at the readers themselves.
LOOK_EVERY = 2.0


class Reader:
    """One stream's place at the tail. Filled by the tail, emptied by the stream."""

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
        # Whether nobody is there any more who would read.
        self.has_left = has_left
        self._project_id = project_id
        self._wanted = wanted
        self._waiting: deque[tuple[Position, bytes]] = deque()
        self._news = threading.Event()
        # Once set, the reader gets nothing more.
        self.has_ended = False

    def wants(self, event: Event) -> bool:
        return self._project_id in (None, event.project_id) and self._wanted.admits(event)

    def give(self, position: Position, frame: bytes) -> None:
        if len(self._waiting) >= MOST_WAITING:
            self.end()
            return
        self._waiting.append((position, frame))
        self._news.set()

    def end(self) -> None:
        """Have the stream end once it has sent what it has taken."""
        self.has_ended = True
        self._waiting.clear()
        self._news.set()

    def take(self, *, within: float) -> Sequence[tuple[Position, bytes]]:
        """What has come in, waiting for it `within` so many seconds; nothing where nothing has."""
        self._news.wait(within)
        # In this order: what comes in between is told again, and then is nothing.
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
        """Have the reader get what follows the position that is returned, until it leaves."""
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
                    # They come back, and find another one.
                    reader.end()

    def _follow(self) -> None:
        with waiting_for(EVENTS) as waiter:
            pause = FIRST_PAUSE
            while self._goes_on():
                before = self._position
                if not self._look():
                    waiter.wait(LOOK_EVERY)
                elif self._position == before:
                    time.sleep(pause)
                    pause = min(2 * pause, LONGEST_PAUSE)
                    continue
                pause = FIRST_PAUSE

    def _goes_on(self) -> bool:
        """Whether there is anybody to read for. Once there is not, the next reader begins anew."""
        with self._lock:
            if listener.is_ending:
                for reader in self._all():
                    reader.end()
            if self._readers and not listener.is_ending:
                return True
            self._thread = None
            return False

    def _look(self) -> bool:
        """Read on, and see who is to go; whether there is more to read already.

        What the database does not answer is asked again with the next look.
        """
        try:
            has_more = self._read()
            if time.monotonic() - self._looked_at >= LOOK_EVERY:
                self._end_others()
        except (OperationalError, InterfaceError) as error:
            log.warning("events unread", extra={"error": str(error)})
            return False
        finally:
            close_old_connections()
        return has_more

    def _read(self) -> bool:
        events, has_more = read_tail(self._position, limit=AT_ONCE)
        with self._lock:
            for event in events:
                self._hand_out(event)
        return has_more

    def _hand_out(self, event: Event) -> None:
        # The position moves with the event: who joins after it gets it from the database.
        position = self._position = position_of(event)
        readers = self._readers.get(event.account_id or 0, ())
        wanting = [reader for reader in readers if reader.wants(event)]
        if wanting:
            frame = frame_of(event)
            for reader in wanting:
                reader.give(position, frame)

    def _end_others(self) -> None:
        """End the streams of keys that are good no more, and those that nobody reads."""
        with self._lock:
            keys = {reader.key_id for reader in self._all() if reader.key_id is not None}
        good = keys_in_force(keys)
        with self._lock:
            for reader in self._all():
                # One that came while we asked is looked at next time.
                if reader.key_id in keys - good or reader.has_left():
                    reader.end()
        self._looked_at = time.monotonic()

    def _all(self) -> Iterable[Reader]:
        return [reader for readers in self._readers.values() for reader in readers]


def frame_of(event: Event) -> bytes:
    """The event as a stream carries it."""
    data = json.dumps(as_json(event), ensure_ascii=False)
    return f"id: {position_of(event)}\ndata: {data}\n\n".encode()


tail = Tail()

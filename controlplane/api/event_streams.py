"""A stream of events (server-sent events): first the events that its reader has missed, then new
events as they are committed.

Between two events a stream holds a greenlet, a socket and a place in the tail (`event_tail`). It
holds no database connection and no thread, and counts against a limit of its own.
"""

import logging
import math
import select
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from django.db import InterfaceError, OperationalError, close_old_connections
from django.db.models import QuerySet
from django.http import StreamingHttpResponse
from gevent.monkey import get_original

from controlplane import logs
from controlplane.actors import current_actor
from controlplane.api.event_tail import Reader, frame_of, tail
from controlplane.api.http.auth import AuthenticatedRequest
from controlplane.api.http.listening import listener
from controlplane.api.http.request_limits import count_stream
from controlplane.models import Event
from controlplane.services.monitoring.events import (
    EventFilter,
    Position,
    Resumption,
    events_of,
    missed,
    position_now,
    resumption,
)

log = logging.getLogger(__name__)


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


# Seconds of silence after which a stream sends a comment, so that no proxy on the way closes the
# connection as dead.
HEARTBEAT_INTERVAL = 15.0
# The unpatched `poll`: it is called with a timeout of 0, so it does not block the other greenlets.
_poll = get_original("select", "poll")
# Milliseconds that a reader should wait before it reconnects.
RETRY_DELAY_MS = 2000
# Missed events that one query reads at most.
PAGE_SIZE = 200
# For the streams that read missed events. Each of them holds a database connection meanwhile, and
# after a restart all streams reconnect at the same time.
_readings = Places(4)


def open_stream(
    request: AuthenticatedRequest,
    project_id: str | None,
    wanted: EventFilter,
    *,
    last_event_id: str,
) -> StreamingHttpResponse:
    """The response that streams the account's events, or those of one project.

    `last_event_id` is the id of the last event that the reader has received, "" if there is none.
    Raises NotFound, Invalid, TooManyRequests.
    """
    events = wanted.narrow(events_of(request.auth, project_id))
    start = resumption(last_event_id) if last_event_id else None
    reader = Reader(
        account_id=request.auth.id,
        project_id=project_id,
        key_id=current_actor().api_key_id,
        wanted=wanted,
        has_left=partial(_is_disconnected, request.META.get("gunicorn.socket")),
    )
    held = count_stream(request.auth.id)
    try:
        stream = EventStream(reader, events, start, held)
    except BaseException:
        held.close()
        raise
    # Release the database connection now. The end of the request would release it, but the stream
    # ends much later.
    close_old_connections()
    response = StreamingHttpResponse(stream, content_type="text/event-stream; charset=utf-8")
    # A proxy in front of the API must not buffer the stream.
    response.headers["X-Accel-Buffering"] = "no"
    return response


def _is_disconnected(connection: Any) -> bool:
    """True if the client has closed the connection. Without this check only a write would notice
    it, and a stream may have nothing to write for a long time."""
    if connection is None:
        return False
    if connection.fileno() < 0:
        return True
    look = _poll()
    look.register(connection.fileno(), select.POLLRDHUP)
    return bool(look.poll(0))


class EventStream(Iterator[bytes]):
    """The pieces of the response body. The server calls `close` however the response ends. This is
    a class because closing a generator that was never started does not run its `finally`."""

    def __init__(
        self,
        reader: Reader,
        events: QuerySet[Event],
        start: Resumption | None,
        held: ExitStack,
    ) -> None:
        self._reader = reader
        self._events = events
        self._held = held
        self._request = logs.current("request")
        self._began = time.monotonic()
        self._sent = 0
        # The position after the last event that the reader has received.
        self._position = tail.join(reader) if start is None else start.after
        self._pieces = self._all_pieces(start)

    def __next__(self) -> bytes:
        return next(self._pieces)

    def close(self) -> None:
        self._pieces.close()
        tail.leave(self._reader)
        self._held.close()
        with logs.context(request=self._request):
            seconds = round(time.monotonic() - self._began, 1)
            log.info("stream ended", extra={"seconds": seconds, "events": self._sent})

    def _all_pieces(self, start: Resumption | None) -> Generator[bytes, None, None]:
        # Send an id before the first event: a reader that loses the connection before any event
        # then resumes here and misses none.
        if start is None:
            yield f"retry: {RETRY_DELAY_MS}\nid: {self._position}\n\n".encode()
        else:
            yield f"retry: {RETRY_DELAY_MS}\n\n".encode()
            try:
                yield from self._missed(start)
            except ClientLeft:
                return
            except (OperationalError, InterfaceError) as error:
                # The reader reconnects and resumes where it was.
                log.warning("events unread", extra={"error": str(error)})
                return
        yield from self._live()

    def _missed(self, start: Resumption) -> Iterator[bytes]:
        """The events committed since `start`. The reader joins the tail only once it has nearly
        caught up, because new events would pile up for it in the meantime."""
        is_behind = True
        while is_behind:
            page, is_behind = self._read(start, until=None)
            yield self._frames(page)
        joined = tail.join(self._reader)
        while self._position < joined:
            page, _ = self._read(start, until=joined)
            yield self._frames(page)

    def _read(
        self, start: Resumption, *, until: Position | None
    ) -> tuple[Sequence[Event] | None, bool]:
        """The next missed events, up to the position `until`; None stands for the newest event that
        can be read now. There may be none although there are more further on: the second value
        says whether `until` is not reached. The first is None if nothing was read, for one
        because no place was free for HEARTBEAT_INTERVAL. Raises ClientLeft, also if the process is
        to exit."""
        reader, start = self._reader, start._replace(after=self._position)
        if reader.has_left() or listener.is_ending:
            raise ClientLeft
        try:
            with _readings.hold(
                reader.account_id, has_left=reader.has_left, patience=HEARTBEAT_INTERVAL
            ):
                try:
                    end = until or position_now()
                    page, self._position = missed(
                        reader.account_id, self._events, start, until=end, limit=PAGE_SIZE
                    )
                finally:
                    close_old_connections()
        except StillWaiting:
            return None, True
        return page if self._position > start.after else None, self._position < end

    def _frames(self, events: Sequence[Event] | None) -> bytes:
        """What the reader gets for what was read. If there is no event, it is only the id, so that
        the reader resumes there."""
        if events is None:
            return b":\n\n"
        self._sent += len(events)
        return b"".join(map(frame_of, events)) or f"id: {self._position}\n\n".encode()

    def _live(self) -> Iterator[bytes]:
        while not self._reader.has_ended:
            taken = self._reader.take(timeout=HEARTBEAT_INTERVAL)
            new = [frame for position, frame in taken if position > self._position]
            if taken:
                self._position = max(self._position, taken[-1][0])
            self._sent += len(new)
            if new:
                yield b"".join(new)
            elif not taken and not self._reader.has_ended:
                yield b":\n\n"

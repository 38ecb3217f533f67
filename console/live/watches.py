"""The live channel: one watch of the management API for all open pages that show the same project
with the same key. It tells the pages only that something has changed.

A watch is a thread (under gevent a greenlet, like its readers). It starts with its first reader and
ends soon after the last one has left.
"""

import logging
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from console.api.changes import ChangeCalls
from console.api.errors import APIError, NotFound, NotOffered, TooManyRequests

log = logging.getLogger(__name__)

# Seconds between two looks (`ChangeCalls.look`) while there is no stream. A page is to show a
# change made elsewhere within three seconds: after at most two looks and its own request.
LOOK_EVERY = 1.25
# Seconds until a stream that broke off is requested again: AFTER_A_BREAK, and twice as long after
# each further stream that lasted less than NOT_LONG, because each break makes all pages renew
# themselves. AFTER_TOO_MANY after the server has answered 429.
AFTER_A_BREAK, AFTER_TOO_MANY, NOT_LONG = 1.0, 30.0, 10.0
# Seconds until a stream is requested again from a server that said that it has none: AFTER_NONE,
# doubled each time it says so. The most is MOST_AFTER_ONE if the server has had a stream before: a
# reverse proxy may have denied it during a restart. It is MOST_AFTER_NONE if it never had one.
AFTER_NONE, MOST_AFTER_ONE, MOST_AFTER_NONE = 2.0, 30.0, 600.0
# Seconds of rest between two pieces of a stream.
BETWEEN_PIECES = 0.05
# Seconds that a watch goes on without readers: they usually return with the next page.
LINGERS = 10.0
# The most watches of one key, as each sends requests to the API, and the most readers of them. A
# page beyond that works without the live channel.
MOST_WATCHES, MOST_READERS = 20, 100


class Watch:
    """What one key sees of one project, or of all its projects.

    The watch's mark grows with each change: a reader that knows the present mark has missed
    nothing. It is "" until the watch has seen the API for the first time.
    """

    def __init__(self, calls: ChangeCalls, project_id: str) -> None:
        self._calls = calls
        self._project_id = project_id
        self._name = secrets.token_hex(4)
        self._news = threading.Condition()
        self._changes = 0
        # Set at each change, one for each reader.
        self._listeners: list[threading.Event] = []
        self._left_at = time.monotonic()
        self._looks = 0
        self._seen: dict[str, str] = {}
        # How many times in a row the server denied having a stream, and whether it ever had one.
        self._denials = 0
        self._has_had_one = False
        # How many streams in a row broke off early.
        self._breaks = 0
        # How many looks in a row were answered with 429.
        self._too_many = 0
        # Once set, the watch reports nothing more.
        self.has_ended = False

    @property
    def mark(self) -> str:
        return f"{self._name}.{self._changes}" if self._changes else ""

    @property
    def readers(self) -> int:
        return len(self._listeners)

    def begin(self) -> None:
        threading.Thread(target=self._run, name="changes", daemon=True).start()

    def join(self, news: threading.Event) -> bool:
        """Add a reader, for which `news` is set at each change and at the end. Returns False if the
        watch has ended."""
        with self._news:
            if self.has_ended:
                return False
            self._listeners.append(news)
            return True

    def leave(self, news: threading.Event) -> None:
        with self._news:
            self._listeners.remove(news)
            self._left_at = time.monotonic()

    def end(self) -> None:
        with self._news:
            self.has_ended = True
            self._notify()

    def _run(self) -> None:
        try:
            while self._goes_on():
                self._look_until(time.monotonic() + self._follow())
        except Exception:
            log.exception("a watch for changes is lost")
        finally:
            # The readers come again and get another watch.
            self.end()

    def _goes_on(self) -> bool:
        with self._news:
            is_wanted = self._listeners or time.monotonic() - self._left_at < LINGERS
            # Set under the lock: a reader that joins now is either counted or told that the watch
            # has ended.
            self.has_ended = self.has_ended or not is_wanted
            return not self.has_ended

    def _follow(self) -> float:
        """Read the stream to its end. Returns the seconds after which to request it again."""
        has_begun, began = False, time.monotonic()
        try:
            for has_changed in self._calls.follow(self._project_id):
                if has_changed or not has_begun:
                    self._tell()
                has_begun = self._has_had_one = True
                self._denials = 0
                if not self._goes_on():
                    break
                # Without a rest, a server that sends without end would occupy this process, which
                # other users' pages need too, and make its own pages renew themselves all the time.
                self._rest(BETWEEN_PIECES)
        except NotOffered:
            most = MOST_AFTER_ONE if self._has_had_one else MOST_AFTER_NONE
            self._denials += 1
            return _doubled(AFTER_NONE, self._denials - 1, most=most)
        except TooManyRequests:
            return AFTER_TOO_MANY
        except APIError as error:
            log.info("no stream of events", extra={"error": type(error).__name__})
        if has_begun:
            # What ended the stream may also keep pages from being read. Told of a change, the pages
            # send a request and show the problem.
            self._tell()
        lasted = time.monotonic() - began
        self._breaks = self._breaks + 1 if lasted < NOT_LONG else 1
        return _doubled(AFTER_A_BREAK, self._breaks - 1, most=MOST_AFTER_ONE)

    def _look_until(self, deadline: float) -> None:
        while self._goes_on():
            try:
                found = self._calls.look(self._project_id, self._looks)
            except NotFound:
                # This is the last change to report: a page of the project finds it deleted.
                self._tell()
                self.end()
                return
            self._looks += 1
            new = {name: digest for name, digest in found.items() if name in self._seen}
            if not self.mark or any(self._seen[name] != digest for name, digest in new.items()):
                self._tell()
            self._seen.update(found)
            is_too_many = TooManyRequests.__name__ in found.values()
            self._too_many = self._too_many + 1 if is_too_many else 0
            self._rest(_doubled(LOOK_EVERY, self._too_many, most=AFTER_TOO_MANY))
            # Checked after the rest: if the stream is still missing, the next look must not follow
            # at once.
            if time.monotonic() >= deadline:
                return

    def _rest(self, seconds: float) -> None:
        with self._news:
            self._news.wait_for(lambda: self.has_ended, seconds)

    def _tell(self) -> None:
        with self._news:
            self._changes += 1
            self._notify()

    def _notify(self) -> None:
        self._news.notify_all()
        for news in self._listeners:
            news.set()


def _doubled(seconds: float, times: int, *, most: float) -> float:
    # The exponent is bounded, as a float could not hold the result of a large one.
    return min(seconds * 2.0 ** min(times, 20), most)


_lock = threading.Lock()
_watches: dict[tuple[tuple[str, ...], str], Watch] = {}
_is_stopping = False


def mark(calls: ChangeCalls, project_id: str) -> str:
    """Return the mark that a page read from now on has seen; "" if there is no watch yet."""
    watch = _watches.get((calls.identity, project_id))
    return watch.mark if watch and not watch.has_ended else ""


@contextmanager
def watching(calls: ChangeCalls, project_id: str, news: threading.Event) -> Iterator[Watch | None]:
    """Join the watch for as long as the block lasts; None if there can be none. `news` is set at
    each change, and when the watch ends."""
    watch = _joined(calls, project_id, news)
    try:
        yield watch
    finally:
        if watch:
            watch.leave(news)


def has_room(calls: ChangeCalls, project_id: str) -> bool:
    """Whether the key may have one more reader. If not, the page has to poll."""
    with _lock:
        return _has_room(calls, project_id)


def _has_room(calls: ChangeCalls, project_id: str) -> bool:
    for over in [key for key, watch in _watches.items() if watch.has_ended]:
        del _watches[over]
    own = {name: watch for name, watch in _watches.items() if name[0] == calls.identity}
    is_new = (calls.identity, project_id) not in own
    readers = sum(watch.readers for watch in own.values())
    return readers < MOST_READERS and not (is_new and len(own) >= MOST_WATCHES)


def _joined(calls: ChangeCalls, project_id: str, news: threading.Event) -> Watch | None:
    name = (calls.identity, project_id)
    # Hold the lock until the reader has joined, so that others count it.
    with _lock:
        if _is_stopping or not _has_room(calls, project_id):
            return None
        watch = _watches.get(name)
        if watch is None:
            watch = _watches[name] = Watch(calls, project_id)
            watch.begin()
        return watch if watch.join(news) else None


def stop() -> None:
    """End all watches, and with them their readers, because this process is to exit."""
    global _is_stopping  # a process stops once
    with _lock:
        _is_stopping = True
        for watch in _watches.values():
            watch.end()

"""The live channel: one watch of the management API for all pages that show the same with the
same key, however many are open. It tells them only that something has changed.

A watch is a thread, which begins with its first reader and ends soon after the last one: under
gevent a greenlet, as are its readers.
"""

import logging
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from console.api_changes import ChangeCalls
from console.api_errors import APIError, NotFound, NotOffered, TooManyRequests

log = logging.getLogger(__name__)

# Seconds between two looks where there is no stream, or none just now. With two looks, and the
# page that then asks for itself, what begins elsewhere is to be seen within three.
LOOK_EVERY = 1.25
# Seconds until a stream is asked for again that broke off, twice as many each time that one did
# which had not lasted long: each has all pages renew themselves. And that was one too many.
AFTER_A_BREAK, AFTER_TOO_MANY, NOT_LONG = 1.0, 30.0, 10.0
# Seconds until one is that the server does not have: at first, and twice as many each time it says
# so. The most where it has had one, which something in front of it may have denied while it was
# restarted; and where it never had.
AFTER_NONE, MOST_AFTER_ONE, MOST_AFTER_NONE = 2.0, 30.0, 600.0
# Seconds between two pieces of a stream; what comes meanwhile is told at once.
BETWEEN_PIECES = 0.05
# Seconds that a watch goes on without readers: they come back with the next page.
LINGERS = 10.0
# Of one key: watches, of which each asks the API, and their readers; more get along without.
MOST_WATCHES, MOST_READERS = 20, 100


class Watch:
    """What one key sees of one project, or of all.

    Its mark says how often something has changed: who has seen the present one has missed nothing.
    It is "" until the watch has begun to see.
    """

    def __init__(self, calls: ChangeCalls, project_id: str) -> None:
        self._calls = calls
        self._project_id = project_id
        self._name = secrets.token_hex(4)
        self._news = threading.Condition()
        self._changes = 0
        self._readers = 0
        self._left_at = time.monotonic()
        self._looks = 0
        self._seen: dict[str, str] = {}
        # How many times in a row the server has had no stream, and whether it ever had one.
        self._denials = 0
        self._has_had_one = False
        # How many in a row broke off soon.
        self._breaks = 0
        # How many looks in a row were too many for it.
        self._too_many = 0
        # Once set, nothing more is told.
        self.has_ended = False

    @property
    def mark(self) -> str:
        return f"{self._name}.{self._changes}" if self._changes else ""

    def await_change(self, seen: str, *, within: float) -> str:
        """The mark, as soon as it is another than `seen`, or after so many seconds as it is."""

        def is_news() -> bool:
            return self.has_ended or self.mark not in ("", seen)

        with self._news:
            self._news.wait_for(is_news, within)
            return self.mark

    @property
    def readers(self) -> int:
        return self._readers

    def begin(self) -> None:
        threading.Thread(target=self._run, name="changes", daemon=True).start()

    def join(self) -> bool:
        """Count one reader more; False where the watch is over."""
        with self._news:
            if self.has_ended:
                return False
            self._readers += 1
            return True

    def leave(self) -> None:
        with self._news:
            self._readers -= 1
            self._left_at = time.monotonic()

    def end(self) -> None:
        with self._news:
            self.has_ended = True
            self._news.notify_all()

    def _run(self) -> None:
        try:
            while self._goes_on():
                self._look_until(time.monotonic() + self._follow())
        except Exception:
            log.exception("a watch for changes is lost")
        finally:
            # Its readers come back, and find another one.
            self.end()

    def _goes_on(self) -> bool:
        with self._news:
            is_wanted = self._readers or time.monotonic() - self._left_at < LINGERS
            # With the lock: who joins now is either counted, or told that it is over.
            self.has_ended = self.has_ended or not is_wanted
            return not self.has_ended

    def _follow(self) -> float:
        """Read the stream to its end; the seconds after which to ask for it again."""
        has_begun, began = False, time.monotonic()
        try:
            for has_changed in self._calls.follow(self._project_id):
                if has_changed or not has_begun:
                    self._tell()
                has_begun = self._has_had_one = True
                self._denials = 0
                if not self._goes_on():
                    break
                # A server that never stops would take this process's time from everybody else's
                # pages, and have its own pages ask for themselves without end.
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
            # What has broken it off may keep pages from being read: they ask, and say so.
            self._tell()
        lasted = time.monotonic() - began
        self._breaks = self._breaks + 1 if lasted < NOT_LONG else 1
        return _doubled(AFTER_A_BREAK, self._breaks - 1, most=MOST_AFTER_ONE)

    def _look_until(self, deadline: float) -> None:
        while self._goes_on():
            try:
                found = self._calls.look(self._project_id, self._looks)
            except NotFound:
                # The last there is to tell: a page that shows it finds it gone.
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
            # After the rest, as the stream that is asked for next may still not be there.
            if time.monotonic() >= deadline:
                return

    def _rest(self, seconds: float) -> None:
        with self._news:
            self._news.wait_for(lambda: self.has_ended, seconds)

    def _tell(self) -> None:
        with self._news:
            self._changes += 1
            self._news.notify_all()


def _doubled(seconds: float, times: int, *, most: float) -> float:
    # Beyond some there is no telling them apart, and soon no float to hold them.
    return min(seconds * 2.0 ** min(times, 20), most)


_lock = threading.Lock()
_watches: dict[tuple[tuple[str, ...], str], Watch] = {}
_is_stopping = False


def mark(calls: ChangeCalls, project_id: str) -> str:
    """What a page that is read from now on has seen; "" where nobody watches yet."""
    watch = _watches.get((calls.identity, project_id))
    return watch.mark if watch and not watch.has_ended else ""


@contextmanager
def watching(calls: ChangeCalls, project_id: str) -> Iterator[Watch | None]:
    """The watch, for as long as the block lasts; None where there is none to be had."""
    watch = _joined(calls, project_id)
    try:
        yield watch
    finally:
        if watch:
            watch.leave()


def has_room(calls: ChangeCalls, project_id: str) -> bool:
    """Whether the key may have one reader more; where it has too many, a page looks for itself."""
    with _lock:
        return _has_room(calls, project_id)


def _has_room(calls: ChangeCalls, project_id: str) -> bool:
    for over in [key for key, watch in _watches.items() if watch.has_ended]:
        del _watches[over]
    own = {name: watch for name, watch in _watches.items() if name[0] == calls.identity}
    is_new = (calls.identity, project_id) not in own
    readers = sum(watch.readers for watch in own.values())
    return readers < MOST_READERS and not (is_new and len(own) >= MOST_WATCHES)


def _joined(calls: ChangeCalls, project_id: str) -> Watch | None:
    name = (calls.identity, project_id)
    # To the end with the lock: who joins meanwhile is counted.
    with _lock:
        if _is_stopping or not _has_room(calls, project_id):
            return None
        watch = _watches.get(name)
        if watch is None:
            watch = _watches[name] = Watch(calls, project_id)
            watch.begin()
        return watch if watch.join() else None


def stop() -> None:
    """End all watches, and with them their readers: this process is to end."""
    global _is_stopping  # a process stops once
    with _lock:
        _is_stopping = True
        for watch in _watches.values():
            watch.end()

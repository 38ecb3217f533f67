"""Sends the GET requests of parallel calls together, to servers that have the call `/batch`.

Each request costs the console and the server more than most of the answers do. So a call that runs
beside others (`console.api.parallel`) does not send its request at once: when all calls that still
run have a request to send, one of them sends all. The server answers them in the calls' order.
"""

import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from console.api.errors import APIError

# The server's limit on the paths of one request, and one on their characters together: servers
# accept addresses of about 8,000, and some characters take several in an address.
MOST_PATHS, MOST_CHARACTERS = 32, 4000
# Seconds for which a server that had no batches is not asked again; it may be upgraded meanwhile.
REMEMBERED_FOR = 300.0


@dataclass(frozen=True)
class Answer:
    status: int
    # The decoded JSON.
    body: object


# Sends the paths as one request. Returns an answer for each, in their order; none if the server has
# no batches. Raises `APIError` if the request as a whole fails.
Send = Callable[[Sequence[str]], Sequence[Answer]]


# The place of a call among those that run at the same time: its number, after those of the calls
# that it is a part of.
Place = tuple[int, ...]


@dataclass(eq=False)
class _Request:
    place: Place
    path: str
    send: Send
    answer: Answer | None = None
    problem: APIError | None = None
    is_done: threading.Event = field(default_factory=threading.Event)


class Batches:
    """The requests of calls that run at the same time. All of them go to one server."""

    def __init__(self, calls: int) -> None:
        self._lock = threading.Lock()
        # The calls that have neither ended nor left, and the requests of those that wait.
        self._running = calls
        self._waiting: list[_Request] = []

    def get(self, place: Place, path: str, send: Send) -> Answer | None:
        """Return the answer to the request; None if it must be sent alone. Raises APIError."""
        request = _Request(place, path, send)
        with self._lock:
            self._waiting.append(request)
        self._send_if_complete()
        request.is_done.wait()
        if request.problem is not None:
            raise request.problem
        return request.answer

    def enter(self, calls: int) -> None:
        """Wait for so many calls more."""
        with self._lock:
            self._running += calls

    def leave(self) -> None:
        """Wait no longer for one of the calls."""
        with self._lock:
            self._running -= 1
        self._send_if_complete()

    def _send_if_complete(self) -> None:
        with self._lock:
            if not self._waiting or len(self._waiting) < self._running:
                return
            requests = sorted(self._waiting, key=lambda request: request.place)
            self._waiting = []
        try:
            if len(requests) > 1 and _fits(requests):
                answers = requests[0].send([one.path for one in requests])
                for request, answer in zip(requests, answers, strict=False):
                    request.answer = answer
        except APIError as problem:
            for request in requests:
                request.problem = problem
        finally:
            for request in requests:
                request.is_done.set()


def _fits(requests: Sequence[_Request]) -> bool:
    return len(requests) <= MOST_PATHS and sum(len(one.path) for one in requests) < MOST_CHARACTERS


@dataclass(frozen=True)
class Seat:
    """What a call takes part in, and its place there."""

    batches: Batches
    place: Place

    def get(self, path: str, send: Send) -> Answer | None:
        return self.batches.get(self.place, path, send)


# The seat of the present call.
_present: ContextVar[Seat | None] = ContextVar("seat", default=None)


def present() -> Seat | None:
    return _present.get()


def seats(calls: int) -> Sequence[Seat]:
    """Return a seat for each of several calls that the present call makes at the same time. If it
    has a seat itself, they take part in the same batches in its place."""
    seat = _present.get()
    if seat is None:
        own = Batches(calls)
        return [Seat(own, (number,)) for number in range(calls)]
    seat.batches.enter(calls)
    leave()
    return [Seat(seat.batches, (*seat.place, number)) for number in range(calls)]


@contextmanager
def taking(seat: Seat) -> Generator[None]:
    """Run the call of this seat inside the block."""
    token = _present.set(seat)
    try:
        yield
    finally:
        leave()
        _present.reset(token)


def leave() -> None:
    """Have the present call send its further requests alone. To be called before anything else for
    which the other calls need not wait."""
    seat = _present.get()
    if seat is not None:
        _present.set(None)
        seat.batches.leave()


# When each server was found to have no batches, by its address, on time.monotonic().
_lacking_since: dict[str, float] = {}


def may_have_batches(url: str) -> bool:
    since = _lacking_since.get(url)
    return since is None or time.monotonic() - since > REMEMBERED_FOR


def note_lack(url: str) -> None:
    _lacking_since[url] = time.monotonic()

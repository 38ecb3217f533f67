"""When strangers are answered: later where they keep trying wrong passwords, and at a time that
does not tell whether there is what they have named."""

import asyncio
import math
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_FREE_FAILURES = 3
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 2.0
_FORGET_AFTER = 60.0
_MAX_ADDRESSES = 10_000

# Seconds. Most lookups take half the shortest; past the longest strangers would slow down all.
_SHORTEST_LOOKUP = 0.001
_LONGEST_LOOKUP = 0.02
# The event loop's timers count in milliseconds, and may so be early by one.
_TICK = 0.001
# Of so many lookups, none of them older than so many seconds, one in ten may take longer; of fewer
# than the fewest, two may.
_LOOKUPS = 100
_FEWEST_LOOKUPS = 20
_LOOKUPS_COUNT_FOR = 60.0


@dataclass(slots=True)
class _Record:
    failures: int
    last: float


class FailurePace:
    """Only the answer to a wrong password is held back: a right one from the same address, behind
    which others may sit too, is never slower. Passwords are long and random, so what this guards
    is the proxy's time, not the password."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._records: OrderedDict[str, _Record] = OrderedDict()

    def pause(self, address: str) -> float:
        """Notes a failure from the address; the seconds to wait before telling it so."""
        now = self._clock()
        record = self._records.pop(address, None)
        if record is None or now - record.last > _FORGET_AFTER:
            record = _Record(failures=0, last=now)
        record.failures += 1
        record.last = now
        self._records[address] = record
        if len(self._records) > _MAX_ADDRESSES:
            self._records.popitem(last=False)
        beyond = min(record.failures - _FREE_FAILURES, 16)
        return min(_FIRST_PAUSE * 2.0 ** (beyond - 1), _LONGEST_PAUSE) if beyond > 0 else 0.0


class LookupTimes:
    """How long the database takes to say whose a name is."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        # Of each: when it ended, and its seconds.
        self._times: deque[tuple[float, float]] = deque(maxlen=_LOOKUPS)
        self._usual = 0.0

    @contextmanager
    def timing(self) -> Iterator[None]:
        began = self._clock()
        try:
            yield
        finally:
            ended = self._clock()
            self._times.append((ended, ended - began))
            self._count()

    @property
    def usual(self) -> float:
        """Seconds in which most lookups are done; 0 where too few are known of."""
        if self._times and self._times[0][0] < self._clock() - _LOOKUPS_COUNT_FOR:
            while self._times and self._times[0][0] < self._clock() - _LOOKUPS_COUNT_FOR:
                self._times.popleft()
            self._count()
        return self._usual

    def _count(self) -> None:
        slower = max(len(self._times), _FEWEST_LOOKUPS) // 10
        longest_first = sorted((took for _, took in self._times), reverse=True)
        self._usual = longest_first[slower] if len(longest_first) > slower else 0.0


def answer_due(loop: asyncio.AbstractEventLoop, lookup_time: float) -> "asyncio.Future[None]":
    """Resolved when a name that is looked up from now on may be answered for: where it is known
    already, no sooner than most that are not. A name's lookup begins before this is waited for, so
    that all wait for the same clock."""
    bounded = min(max(lookup_time, _SHORTEST_LOOKUP), _LONGEST_LOOKUP)
    due = loop.create_future()
    loop.call_later(math.ceil(bounded / _TICK) * _TICK + _TICK, _resolve, due)
    return due


def _resolve(due: "asyncio.Future[None]") -> None:
    if not due.done():
        due.set_result(None)

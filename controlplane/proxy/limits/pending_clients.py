"""Clients that have not authenticated yet: bounds how many there are, and delays their answers,
longer if they keep trying wrong passwords, and so that the time of an answer does not tell whether
a name exists."""

import asyncio
import math
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from controlplane.address_ranges import network_of
from controlplane.proxy.wire.readiness import resolve

# Of the delay after wrong passwords; the times are in seconds.
_FREE_FAILURES = 3
_MIN_DELAY = 0.1
_MAX_DELAY = 2.0
_FORGET_AFTER = 60.0
_MAX_ADDRESSES = 10_000

# Each takes about 0.1 ms.
_MAX_IN_TURN = 16

# The shortest and longest delay for a lookup, in seconds. Most lookups take half of the shortest.
# If the longest were longer, unauthenticated clients could slow down everybody.
_MIN_LOOKUP_SECONDS = 0.001
_MAX_LOOKUP_SECONDS = 0.02
# The event loop's timers count in milliseconds, so they may be early by one.
_TICK = 0.001
# The usual time is exceeded by a tenth of the last _MAX_LOOKUPS lookups, without those that ended
# more than _LOOKUP_WINDOW seconds ago. If they are fewer than _MIN_LOOKUPS, two exceed it.
_MAX_LOOKUPS = 100
_MIN_LOOKUPS = 20
_LOOKUP_WINDOW = 60.0


class PendingClient(Protocol):
    """See `session.Session`."""

    client_address: str

    def abandon(self) -> None: ...


class PendingClients:
    """Keeps at most `most` clients. Beyond that it closes the oldest client of the origin that has
    most of them. An honest client authenticates within milliseconds, or seconds on a slow network,
    and comes from an origin with few clients."""

    def __init__(self, most: int) -> None:
        self._most = most
        # The origin of each client, and the clients of each origin, the oldest first.
        self._origins: dict[PendingClient, str] = {}
        self._by_origin: dict[str, OrderedDict[PendingClient, None]] = {}

    def add(self, client: PendingClient) -> None:
        origin = network_of(client.client_address)
        self._origins[client] = origin
        self._by_origin.setdefault(origin, OrderedDict())[client] = None
        if len(self._origins) > self._most:
            largest = max(self._by_origin.values(), key=len)
            oldest = next(iter(largest))
            self.remove(oldest)
            oldest.abandon()

    def remove(self, client: PendingClient) -> bool:
        """Returns True if it was one of them."""
        origin = self._origins.pop(client, None)
        if origin is None:
            return False
        others = self._by_origin[origin]
        del others[client]
        if not others:
            del self._by_origin[origin]
        return True

    def note_address(self, client: PendingClient) -> None:
        """Counts the client under its own address, which has just become known. Until now it was
        counted under its load balancer's."""
        if self.remove(client):
            self.add(client)


class PendingTurns:
    """Lets few clients that have not authenticated do costly work in each turn of the event loop,
    so that the time of a turn does not grow with their number. Must be used within one loop."""

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(_MAX_IN_TURN)

    async def next(self) -> None:
        """Returns once the caller may go on."""
        await self._places.acquire()
        asyncio.get_running_loop().call_soon(self._places.release)


class FailurePace:
    """Delays only refusals of clients that have shown no correct password. One from the same
    address, which other clients may share, is never answered later. Passwords are long and random,
    so this protects the proxy's time, not the passwords."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        # By address, the last one at the end: its failures in a row, and when the last one was.
        self._records: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def pause(self, address: str) -> float:
        """Records a failure from the address. Returns the seconds to wait before answering."""
        now = self._clock()
        failures, last = self._records.pop(address, (0, now))
        failures = 1 if now - last > _FORGET_AFTER else failures + 1
        self._records[address] = failures, now
        if len(self._records) > _MAX_ADDRESSES:
            self._records.popitem(last=False)
        beyond = min(failures - _FREE_FAILURES, 16)
        return min(_MIN_DELAY * 2.0 ** (beyond - 1), _MAX_DELAY) if beyond > 0 else 0.0


class LookupTimes:
    """Measures how long the database takes to look up a name."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        # For each lookup: when it ended, and how many seconds it took.
        self._times: deque[tuple[float, float]] = deque(maxlen=_MAX_LOOKUPS)

    @contextmanager
    def timing(self) -> Iterator[None]:
        began = self._clock()
        try:
            yield
        finally:
            ended = self._clock()
            self._times.append((ended, ended - began))

    @property
    def usual(self) -> float:
        """The seconds within which most lookups end; 0 if too few lookups are known."""
        since = self._clock() - _LOOKUP_WINDOW
        recent = [took for ended, took in self._times if ended >= since]
        longest_first = sorted(recent, reverse=True)
        slower = max(len(longest_first), _MIN_LOOKUPS) // 10
        return longest_first[slower] if len(longest_first) > slower else 0.0


def answer_due(loop: asyncio.AbstractEventLoop, lookup_time: float) -> "asyncio.Future[None]":
    """Returns a future that resolves when a client may be answered about a name whose lookup begins
    now. That is no sooner than most lookups end, so an answer's time does not tell whether the name
    was in memory. The caller awaits it after the lookup, so all names wait by the same clock."""
    bounded = min(max(lookup_time, _MIN_LOOKUP_SECONDS), _MAX_LOOKUP_SECONDS)
    due = loop.create_future()
    loop.call_later(math.ceil(bounded / _TICK) * _TICK + _TICK, resolve, due)
    return due

"""Which request computes next in a process of the API: one of the account that has computed least.

The greenlets of a process share one thread, and without an order the account that sends most gets
most of it. So each request waits for its turn when it begins, and again after each wait for the
database. A turn ends when the request waits; nothing is held meanwhile, so a slow request keeps
nobody from theirs.

The request of an account that is behind comes back from the database within milliseconds. So
the turn is kept for it for a moment (`GRACE`) before a request of an account that is ahead begins
to compute, which could take long; that moment counts as computing.

Requests that wait for the database have it compute. So beside others an account has few requests
begun at a time; one that has lasted for a while waits for something else, and counts no more.

All of this runs in the greenlets of one thread and nothing here switches between them except where
it waits, so there are no locks.
"""

import hashlib
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeVar

import gevent
from gevent.event import Event

Whose = int | str
Answer = TypeVar("Answer")

# Seconds. How long a turn is kept for a request that waits; what an account that was idle may
# compute ahead of the others; what one stretch counts at most, as it may have been a wait that
# was not announced; how long a turn is waited for at most.
GRACE = 0.02
HEAD_START = 0.05
LONGEST_STRETCH = 0.1
LONGEST_WAIT = 10.0
# Requests that an account has begun beside others, each counted for so many seconds; and for how
# long after its last request an account is there.
BESIDE_OTHERS, COUNTS_FOR, THERE_FOR = 2, 0.25, 1.0
# Accounts whose computing is remembered, and keys whose account is.
MOST_REMEMBERED = 10_000
ACCOUNT_IN_ENVIRON = "perch.account"


@dataclass(eq=False, slots=True)
class _Account:
    # Seconds that it has computed, put forward to what the others have when it was idle.
    used: float = 0.0
    requests: int = 0
    # When the latest came, and when each of those began that are under way.
    last: float = -math.inf
    begun: dict["_Request", float] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class _Request:
    account: _Account
    # Since when it computes, and since when it waits; one of them is None.
    computes_since: float | None = None
    waits_since: float | None = None
    turn: Event = field(default_factory=Event)


class Turns:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # The one used last at the end.
        self._accounts: OrderedDict[Whose, _Account] = OrderedDict()
        self._active: set[_Account] = set()
        self._by_greenlet: dict[Any, _Request] = {}
        # Requests that could compute, in the order in which they came.
        self._ready: list[_Request] = []
        # Whose turn it is, or was last.
        self._current: _Request | None = None
        self._timer: Any = None
        # What the active account that had computed least had.
        self._least = 0.0

    @contextmanager
    def request(self, whose: Whose) -> Iterator[None]:
        """Within the block, which computes for a request of `whose`, this greenlet has turns."""
        mine = _Request(self._enter(whose))
        greenlet = gevent.getcurrent()
        self._by_greenlet[greenlet] = mine
        try:
            self._take(mine)
            yield
        finally:
            del self._by_greenlet[greenlet]
            self._count(mine)
            mine.account.begun.pop(mine, None)
            mine.account.requests -= 1
            if not mine.account.requests:
                self._active.discard(mine.account)
            if self._current is mine:
                self._current = None
            self._pass_on()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Within the block this greenlet waits; at its end it waits for a turn."""
        mine = self._by_greenlet.get(gevent.getcurrent())
        if mine is None:
            yield
            return
        self._count(mine)
        mine.waits_since = self._clock()
        self._pass_on()
        try:
            yield
        finally:
            self._take(mine)

    def _enter(self, whose: Whose) -> _Account:
        account = self._accounts.get(whose)
        if account is None:
            account = self._accounts[whose] = _Account()
        self._accounts.move_to_end(whose)
        if not account.requests:
            if self._active:
                self._least = max(self._least, min(one.used for one in self._active))
            account.used = max(account.used, self._least - HEAD_START)
            self._active.add(account)
        account.requests += 1
        account.last = self._clock()
        if len(self._accounts) > MOST_REMEMBERED:
            self._forget_one()
        return account

    def _forget_one(self) -> None:
        idle = next((whose for whose, one in self._accounts.items() if not one.requests), None)
        if idle is not None:
            del self._accounts[idle]

    def _take(self, mine: _Request) -> None:
        self._ready.append(mine)
        mine.turn.clear()
        self._pass_on()
        try:
            mine.turn.wait(LONGEST_WAIT)
        finally:
            if mine in self._ready:
                self._ready.remove(mine)
                self._begin(mine)

    def _begin(self, request: _Request) -> None:
        self._current = request
        request.waits_since, request.computes_since = None, self._clock()
        request.account.begun.setdefault(request, request.computes_since)

    def _pass_on(self) -> None:
        """Give the turn to the request that is next, unless it is kept for the current one."""
        if self._timer is not None:
            self._timer.close()
            self._timer = None
        if not self._ready:
            return
        may_follow = [request for request in self._ready if self._may_begin(request)]
        following = min(may_follow, key=lambda request: request.account.used, default=None)
        kept = 0.0 if following is None else self._kept_from(following)
        if following is not None and not kept:
            self._ready.remove(following)
            self._begin(following)
            following.turn.set()
        if self._ready:
            self._timer = gevent.get_hub().loop.timer(kept or GRACE)
            self._timer.start(self._pass_on)

    def _may_begin(self, request: _Request) -> bool:
        account, now = request.account, self._clock()
        if request in account.begun:
            return True
        counted = sum(now - began < COUNTS_FOR for began in account.begun.values())
        return counted < BESIDE_OTHERS or not self._are_others(account, now)

    def _are_others(self, account: _Account, now: float) -> bool:
        """Whether another account has sent a request of late, or has one under way."""
        latest = islice(reversed(self._accounts.values()), 2)
        lately = any(one is not account and now - one.last < THERE_FOR for one in latest)
        return lately or not self._active <= {account}

    def _kept_from(self, following: _Request) -> float:
        """Seconds for which the turn is still kept for the current request."""
        current = self._current
        if current is None or current is following:
            return 0.0
        # Other code than the current request's runs here. So that one has been given its turn and
        # not begun yet, or it waits, even where it has not said so.
        since = current.computes_since if current.waits_since is None else current.waits_since
        assert since is not None
        left = GRACE - (self._clock() - since)
        if current.waits_since is None:
            return max(0.0, left)
        if current.account.used >= following.account.used:
            return 0.0
        if left <= 0:
            current.account.used += GRACE
            self._current = None
        return max(0.0, left)

    def _count(self, request: _Request) -> None:
        if request.computes_since is not None:
            took = self._clock() - request.computes_since
            request.account.used += min(took, LONGEST_STRETCH)
            request.computes_since = None


# Of this process, for those who wait; without a request that takes part nobody waits for a turn.
turns = Turns()


class TurnsByKey:
    """Turns of a WSGI application's requests, by the account of the key that they show. It is known
    from the key's first request on, by what the application writes into the environ; until then,
    and without a key, a request counts as one of its address."""

    def __init__(self) -> None:
        self._accounts: OrderedDict[bytes, int] = OrderedDict()

    def around(
        self, application: Callable[[dict[str, Any], Callable[..., Any]], Answer]
    ) -> Callable[[dict[str, Any], Callable[..., Any]], Answer]:
        def in_turn(environ: dict[str, Any], start_response: Callable[..., Any]) -> Answer:
            shown = environ.get("HTTP_AUTHORIZATION", "")
            known_by = hashlib.sha256(shown.encode(errors="replace")).digest()
            whose = self._accounts.get(known_by, f"from {environ.get('REMOTE_ADDR')}")
            with turns.request(whose):
                answer = application(environ, start_response)
            self._remember(known_by, environ.get(ACCOUNT_IN_ENVIRON))
            return answer

        return in_turn

    def _remember(self, known_by: bytes, account: int | None) -> None:
        self._accounts.pop(known_by, None)
        if account is not None:
            self._accounts[known_by] = account
        if len(self._accounts) > MOST_REMEMBERED:
            self._accounts.popitem(last=False)

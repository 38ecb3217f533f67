"""Schedules the requests of an API process fairly between accounts: the next request to compute is
one of the account that has computed least.

The greenlets of a process share one thread. Without an order, the account that sends most requests
would get most of the thread's time. So each request waits for its turn when it begins, and again
after each wait for the database. A turn ends when the request waits. A waiting request holds no
turn, so a slow request does not delay others.

A request of an account that has computed less usually returns from the database within
milliseconds. So its turn is kept for a moment (`GRACE`) before a request of an account that has
computed more begins, because that request might compute for long. The kept moment counts as
computing.

While a request waits for the database, the database computes for it. So while other accounts are
active, an account has few requests begun at a time. A request that lasts longer than `COUNTS_FOR`
probably waits for something else, and no longer counts.

All of this runs in the greenlets of one thread. The code switches between greenlets only where it
waits, so it needs no locks.
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

# All in seconds.
# GRACE: how long a turn is kept for a request that waits.
# HEAD_START: how much an account that was idle may compute before the other accounts.
# LONGEST_STRETCH: the most that one uninterrupted stretch counts, as it may have included a wait
# that was not announced by `Turns.waiting`.
# LONGEST_WAIT: the longest time that a request waits for its turn; then it computes in any case.
GRACE = 0.02
HEAD_START = 0.05
LONGEST_STRETCH = 0.1
LONGEST_WAIT = 10.0
# How many requests an account may have begun while others are active, how long each counts, and how
# long after its last request an account is active. The last two in seconds.
BESIDE_OTHERS, COUNTS_FOR, THERE_FOR = 2, 0.25, 1.0
# How many accounts' computing time is remembered, and for how many keys the account is remembered.
MOST_REMEMBERED = 10_000
ACCOUNT_IN_ENVIRON = "perch.account"


@dataclass(eq=False, slots=True)
class _Account:
    # Seconds that it has computed. When an idle account becomes active, this is raised to about
    # the least that the active accounts have, so that its idle time gives it no large advantage.
    used: float = 0.0
    requests: int = 0
    # When the latest came, and when each of those began that are under way.
    last: float = -math.inf
    begun: dict["_Request", float] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class _Request:
    account: _Account
    # When it began to compute, and when it began to wait (on the clock of `Turns`). At most one
    # of them is set.
    computes_since: float | None = None
    waits_since: float | None = None
    turn: Event = field(default_factory=Event)


class Turns:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # In order of use: the account used most recently is at the end.
        self._accounts: OrderedDict[Whose, _Account] = OrderedDict()
        self._active: set[_Account] = set()
        self._by_greenlet: dict[Any, _Request] = {}
        # Requests that are ready to compute, in the order in which they became ready.
        self._ready: list[_Request] = []
        # The request that has the turn, or had it last.
        self._current: _Request | None = None
        self._timer: Any = None
        # The `used` of the active account that had computed least; it never decreases.
        self._least = 0.0

    @contextmanager
    def request(self, whose: Whose) -> Iterator[None]:
        """Have this greenlet take turns within the block, which serves a request of `whose`."""
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
        """Give up this greenlet's turn within the block, and wait for a new turn at its end."""
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
        """Give the turn to the next request, unless the turn is kept for the current one."""
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
        """Return whether another account has sent a request recently, or has one under way."""
        latest = islice(reversed(self._accounts.values()), 2)
        another_is_recent = any(one is not account and now - one.last < THERE_FOR for one in latest)
        return another_is_recent or not self._active <= {account}

    def _kept_from(self, following: _Request) -> float:
        """Seconds for which the turn is still kept for the current request instead of being given
        to `following`; 0 if it is not kept."""
        current = self._current
        if current is None or current is following:
            return 0.0
        # This code does not run in the current request's greenlet. So the current request has been
        # given its turn and has not begun yet, or it waits, possibly without having announced it.
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


# The turns of this process. A greenlet that serves no request with turns never waits for one.
turns = Turns()


class TurnsByKey:
    """Gives turns to the requests of a WSGI application, by the account of their API key.

    The application writes the account's id into the environ while it serves a request, and this
    class remembers the account of each key. Until the first request of a key has ended, and for
    requests without a valid key, the client's address is used in place of the account.
    """

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

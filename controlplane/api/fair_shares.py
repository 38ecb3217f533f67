"""Limits how many requests of one account are served at once, and serves those that change one
project one after the other.

An account's slow requests thereby leave database connections for other accounts: as for the slots
of lanes (`operations.lane_jobs`), an account may begin another request while it has fewer under way
than connections are free, or fewer than LEAST_PER_ACCOUNT. A request that only waits for something
(`only_waiting`) holds neither a share nor a database connection, and is counted against a separate
limit. Each API process counts on its own.

The requests that change a project need its row's lock one after the other. If they waited for it in
the database, each would hold a connection and a share, and a statement whose time runs out. So they
wait here, in the order in which they came, and only one of them goes on to the database.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field

from django.conf import settings
from django.http import HttpRequest, HttpResponse

from controlplane.api.turns import turns
from controlplane.database.base import release_connection
from controlplane.services.errors import Locked
from controlplane.services.projects import BUSY_PROJECT

# Begins the name of an account's share.
ACCOUNT = "account "
LEAST_PER_ACCOUNT = 2
# Seconds that a request waits for a share, when it is new and after `only_waiting`. A burst of
# requests is therefore served one after the other; only a longer excess is refused.
WAIT_FOR_SHARE = 10.0
# Seconds that a request waits until it may change a project. Clients usually wait for an answer for
# a minute.
WAIT_FOR_PROJECT = 30.0


class TooManyRequests(Exception):
    """The account already has as many requests under way as it may have. The message states the
    limit."""


class FairShareMiddleware:
    """Releases the shares that `take_share` has acquired, however the request ends."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        with ExitStack() as held:
            request.META["perch.held"] = held
            return self.get_response(request)


def take_share(request: HttpRequest, whose: str) -> None:
    """Count the request as one of `whose`, and wait for a free share.

    Raises TooManyRequests if too many requests wait already, or no share becomes free in time.
    """
    share = until_answered(request).enter_context(ExitStack())
    share.enter_context(_share(whose, settings.REQUESTS_PER_ACCOUNT, within=WAIT_FOR_SHARE))
    _shares_of(request)[whose] = share


def take_project(request: HttpRequest, account_id: int, project_id: str) -> None:
    """Wait until no other request of the account in this process changes the project, and keep
    others from changing it until the response has been made. Meanwhile the request holds no share.

    The request must not be in a transaction. Raises Locked if the wait takes too long, and
    TooManyRequests if too many requests wait already.
    """
    turn = until_answered(request).enter_context(ExitStack())
    whose = f"project {account_id} {project_id}"
    with suppress(TooManyRequests):
        turn.enter_context(_share(whose, 1))
        return
    with only_waiting(request, f"{ACCOUNT}{account_id}", most=settings.WAITS_PER_ACCOUNT):
        try:
            turn.enter_context(_share(whose, 1, within=WAIT_FOR_PROJECT))
        except TooManyRequests as error:
            raise Locked(BUSY_PROJECT) from error


@contextmanager
def only_waiting(request: HttpRequest, whose: str, *, most: int) -> Iterator[None]:
    """Release the request's shares, and its database connection unless it is in a transaction,
    while the request waits inside the block.

    Within the block the request counts as one of at most `most` waiting requests of `whose`. At
    the end of the block it acquires its shares again. Raises TooManyRequests at the start if too
    many requests already wait, and at the end if the shares cannot be acquired again in time.
    """
    with _share(f"waiting {whose}", most, named="requests that wait"):
        for share in _shares_of(request).values():
            share.close()
        release_connection()
        with turns.waiting():
            yield
    for name, share in _shares_of(request).items():
        share.enter_context(_share(name, settings.REQUESTS_PER_ACCOUNT, within=WAIT_FOR_SHARE))


def stream_share(account_id: int) -> ExitStack:
    """Count one more stream of the account until the returned stack is closed. The stream lasts
    longer than the request that opens it. Raises TooManyRequests."""
    held = ExitStack()
    most = settings.STREAMS_PER_ACCOUNT
    held.enter_context(_share(f"streams {account_id}", most, named="streams"))
    return held


def _shares_of(request: HttpRequest) -> dict[str, ExitStack]:
    """The shares that the request holds, by the account or key that they belong to."""
    shares: dict[str, ExitStack] = request.META.setdefault("perch.shares", {})
    return shares


def until_answered(request: HttpRequest) -> ExitStack:
    """The stack of contexts that stay open until the response has been made."""
    held: ExitStack = request.META["perch.held"]
    return held


@dataclass
class _Share:
    most: int
    # Whether each part needs a database connection.
    is_of_account: bool
    held: int = 0
    # One event for each request that waits, in the order in which they came. It is set when the
    # request gets a part.
    waiting: deque[threading.Event] = field(default_factory=deque)

    def is_free(self) -> bool:
        """Whether another request may have a part. The caller holds the lock."""
        if self.held >= self.most:
            return False
        if not self.is_of_account or self.held < LEAST_PER_ACCOUNT:
            return True
        held = sum(share.held for share in _shares.values() if share.is_of_account)
        return self.held < settings.POOL_SIZES["api"] - held


# Without those that nobody holds a part of.
_shares: dict[str, _Share] = {}
_lock = threading.Lock()


@contextmanager
def _share(
    whose: str, most: int, *, within: float = 0.0, named: str = "requests"
) -> Iterator[None]:
    refused = TooManyRequests(f"an account may have {most} {named} at once")
    turn = threading.Event()
    with _lock:
        share = _shares.setdefault(whose, _Share(most, whose.startswith(ACCOUNT)))
        if not share.waiting and share.is_free():
            share.held += 1
            turn.set()
        elif within and len(share.waiting) < settings.WAITS_PER_ACCOUNT:
            share.waiting.append(turn)
        else:
            raise refused
    try:
        if not turn.is_set():
            release_connection()
            with turns.waiting():
                turn.wait(within)
        if not turn.is_set():
            raise refused
        yield
    finally:
        with _lock:
            if turn.is_set():
                share.held -= 1
                _hand_on(share)
            else:
                share.waiting.remove(turn)
            if not share.held:
                del _shares[whose]


def _hand_on(released: _Share) -> None:
    """Give what one request has released to those that wait for it. Of several accounts, the one
    that holds least comes first. The caller holds the lock."""
    of_accounts = [share for share in _shares.values() if share.is_of_account and share.waiting]
    candidates = of_accounts if released.is_of_account else [released]
    for share in sorted(candidates, key=lambda share: share.held):
        while share.waiting and share.is_free():
            share.held += 1
            share.waiting.popleft().set()

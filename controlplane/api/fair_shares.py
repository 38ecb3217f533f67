"""At most so many requests of one account at once, so that its slow ones leave database
connections to everybody else. Those that only wait for something hold neither: they count by
themselves. Counted in each process of the API by itself."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from django.conf import settings
from django.db import connection
from django.http import HttpRequest, HttpResponse

from controlplane.api.turns import turns

# Seconds. A burst, as a page of the console is one, is served in a row; only what lasts is refused.
WAIT_FOR_SHARE = 1.0
# Of one that goes on after it has waited: many may have waited for the same.
GO_ON_WITHIN = 10.0


class TooManyRequests(Exception):
    """There are as many requests under way for the same account as it may have; the message
    says how many."""


class FairShareMiddleware:
    """Gives back what `take_share` has taken, however the request ends."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        with ExitStack() as held:
            request.META["perch.held"] = held
            return self.get_response(request)


def take_share(request: HttpRequest, whose: str, *, within: float = 0.0) -> None:
    """Count the request as one of `whose`, waiting `within` seconds for others to end.

    Raises TooManyRequests. Who waits should hold no database connection.
    """
    share = until_answered(request).enter_context(ExitStack())
    share.enter_context(_share(whose, settings.REQUESTS_PER_ACCOUNT, within=within))
    _shares_of(request)[whose] = share


@contextmanager
def only_waiting(request: HttpRequest, whose: str, *, most: int) -> Iterator[None]:
    """Within the block the request waits: it holds no database connection and nothing of its
    shares, and counts as one of at most `most` requests that wait for `whose`.

    Raises TooManyRequests; at the block's end too, where the shares are not to be had again.
    """
    with _share(f"waiting {whose}", most, named="requests that wait"):
        for share in _shares_of(request).values():
            share.close()
        if not connection.in_atomic_block:
            connection.close()
        with turns.waiting():
            yield
    for name, share in _shares_of(request).items():
        share.enter_context(_share(name, settings.REQUESTS_PER_ACCOUNT, within=GO_ON_WITHIN))


def stream_share(account_id: int) -> ExitStack:
    """Count one of the account's streams until what is returned is closed: longer than the
    request that begins it. Raises TooManyRequests."""
    held = ExitStack()
    most = settings.STREAMS_PER_ACCOUNT
    held.enter_context(_share(f"streams {account_id}", most, named="streams"))
    return held


def _shares_of(request: HttpRequest) -> dict[str, ExitStack]:
    """What the request holds of shares, by whose they are."""
    shares: dict[str, ExitStack] = request.META.setdefault("perch.shares", {})
    return shares


def until_answered(request: HttpRequest) -> ExitStack:
    """What holds for the request until its answer is made."""
    held: ExitStack = request.META["perch.held"]
    return held


@dataclass
class _Share:
    free: threading.Semaphore
    # Requests that hold a part of it, or wait for one; without any it is forgotten.
    requests: int = 0


_shares: dict[str, _Share] = {}
_lock = threading.Lock()


@contextmanager
def _share(
    whose: str, most: int, *, within: float = 0.0, named: str = "requests"
) -> Iterator[None]:
    with _lock:
        share = _shares.get(whose)
        if share is None:
            share = _shares[whose] = _Share(threading.Semaphore(most))
        share.requests += 1
    try:
        with turns.waiting():
            has_share = share.free.acquire(timeout=within)
        if not has_share:
            raise TooManyRequests(f"an account may have {most} {named} at once")
        try:
            yield
        finally:
            share.free.release()
    finally:
        with _lock:
            share.requests -= 1
            if not share.requests:
                del _shares[whose]

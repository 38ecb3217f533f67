"""Limits how many requests of one account are served at once.

An account's slow requests thereby leave database connections for other accounts. A request that
only waits for something (`only_waiting`) holds neither a share nor a database connection, and is
counted against a separate limit. Each API process counts on its own.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from django.conf import settings
from django.db import connection
from django.http import HttpRequest, HttpResponse

from controlplane.api.turns import turns

# Seconds that a new request waits for a share. A short burst, such as the requests of one console
# page, is therefore served one after the other; only a longer excess of requests is refused.
WAIT_FOR_SHARE = 1.0
# Seconds that a request waits to get its shares back after `only_waiting`. This is longer because
# many requests may have waited for the same thing and continue at the same time.
GO_ON_WITHIN = 10.0


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


def take_share(request: HttpRequest, whose: str, *, within: float = 0.0) -> None:
    """Count the request as one of `whose`, and wait up to `within` seconds for a free share.

    The caller should hold no database connection if it may wait here. Raises TooManyRequests if
    no share becomes free in time.
    """
    share = until_answered(request).enter_context(ExitStack())
    share.enter_context(_share(whose, settings.REQUESTS_PER_ACCOUNT, within=within))
    _shares_of(request)[whose] = share


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
        if not connection.in_atomic_block:
            connection.close()
        with turns.waiting():
            yield
    for name, share in _shares_of(request).items():
        share.enter_context(_share(name, settings.REQUESTS_PER_ACCOUNT, within=GO_ON_WITHIN))


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
    free: threading.Semaphore
    # Requests that hold a part of this share or wait for one. At 0 the share is deleted.
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

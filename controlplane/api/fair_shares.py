"""At most so many requests of one account at once, so that its slow ones leave database
connections to everybody else. Counted in each process of the API by itself."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from django.conf import settings
from django.http import HttpRequest, HttpResponse

# Seconds. A burst, as a page of the console is one, is served in a row; only what lasts is refused.
WAIT_FOR_SHARE = 1.0


class TooManyRequests(Exception):
    """There are as many requests under way for the same account as it may have."""


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
    until_answered(request).enter_context(_share(whose, within=within))


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
def _share(whose: str, *, within: float) -> Iterator[None]:
    with _lock:
        share = _shares.get(whose)
        if share is None:
            share = _shares[whose] = _Share(threading.Semaphore(settings.REQUESTS_PER_ACCOUNT))
        share.requests += 1
    try:
        if not share.free.acquire(timeout=within):
            raise TooManyRequests
        try:
            yield
        finally:
            share.free.release()
    finally:
        with _lock:
            share.requests -= 1
            if not share.requests:
                del _shares[whose]

"""Limits how many requests of one account an API process serves at once.

An account's many or slow requests thereby leave database connections and processor time for other
accounts. Further requests wait, and are refused after a while. A request that only waits for
something (`only_waiting`) holds no database connection and is counted against a limit of its own.
Each API process counts by itself.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass

from django.conf import settings
from django.http import HttpRequest, HttpResponse

from controlplane.database.base import release_connection

# Seconds that a request waits to be served, when it is new and after `only_waiting`.
SLOT_TIMEOUT = 10.0


class TooManyRequests(Exception):
    """The account already has as many requests in progress as it may have. The message states the
    limit."""


class RequestLimitMiddleware:
    """Ends what lasts until a request's response is made. Its database connection is released
    before the response is sent, because the client may read that slowly."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        with ExitStack() as held:
            held.callback(release_connection)
            request.META["perch.held"] = held
            request.META["perch.count"] = held.enter_context(ExitStack())
            return self.get_response(request)


def until_answered(request: HttpRequest) -> ExitStack:
    """The stack of contexts that stay open until the response has been made."""
    held: ExitStack = request.META["perch.held"]
    return held


def count_request(request: HttpRequest, account_id: int) -> None:
    """Wait until the account may have one more request in progress, and count this one until the
    response has been made. Raises TooManyRequests."""
    count: ExitStack = request.META["perch.count"]
    count.enter_context(counted(f"account {account_id}"))


@contextmanager
def only_waiting(request: HttpRequest, account_id: int) -> Iterator[None]:
    """Within the block, count the request as one of those that only wait, and let it hold no
    database connection unless it is in a transaction. At the end of the block it counts again.

    Raises TooManyRequests at the start if too many requests already wait, and at the end if the
    account has too many in progress for too long.
    """
    with _counted(f"waiting {account_id}", settings.WAITS_PER_ACCOUNT, of="requests that wait"):
        request.META["perch.count"].close()
        release_connection()
        yield
    count_request(request, account_id)


def count_stream(account_id: int) -> ExitStack:
    """Count one more stream of the account until the returned stack is closed. The stream lasts
    longer than the request that opens it. Raises TooManyRequests."""
    held = ExitStack()
    held.enter_context(
        _counted(f"streams {account_id}", settings.STREAMS_PER_ACCOUNT, of="streams")
    )
    return held


def counted(whose: str) -> AbstractContextManager[None]:
    """Wait until `whose` may have one more request in progress, and count one within the block.
    Raises TooManyRequests."""
    return _counted(whose, settings.REQUESTS_PER_ACCOUNT, timeout=SLOT_TIMEOUT)


@dataclass
class _Limit:
    free: threading.Semaphore
    # Those that hold a place and those that wait for one.
    users: int = 0


# Without those that nobody uses.
_limits: dict[str, _Limit] = {}
_lock = threading.Lock()


@contextmanager
def _counted(
    whose: str, most: int, *, timeout: float = 0.0, of: str = "requests"
) -> Iterator[None]:
    refused = TooManyRequests(f"an account may have {most} {of} at once")
    with _lock:
        limit = _limits.setdefault(whose, _Limit(threading.Semaphore(most)))
        if limit.users >= most + (settings.WAITS_PER_ACCOUNT if timeout else 0):
            raise refused
        limit.users += 1
    try:
        if not limit.free.acquire(blocking=False):
            release_connection()
            if not limit.free.acquire(timeout=timeout):
                raise refused
        try:
            yield
        finally:
            limit.free.release()
    finally:
        with _lock:
            limit.users -= 1
            if not limit.users:
                del _limits[whose]

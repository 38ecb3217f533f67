"""Makes the API calls of a page at the same time."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar, overload

from console.api_errors import APIError

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")

# The most parallel calls of one page. Under gevent, each thread is a greenlet.
MOST_AT_ONCE = 32


@overload
def side_by_side(a: Callable[[], A], b: Callable[[], B], /) -> tuple[A, B]: ...
@overload
def side_by_side(
    a: Callable[[], A], b: Callable[[], B], c: Callable[[], C], /
) -> tuple[A, B, C]: ...
@overload
def side_by_side(
    a: Callable[[], A], b: Callable[[], B], c: Callable[[], C], d: Callable[[], D], /
) -> tuple[A, B, C, D]: ...
@overload
def side_by_side(
    a: Callable[[], A],
    b: Callable[[], B],
    c: Callable[[], C],
    d: Callable[[], D],
    e: Callable[[], E],
    /,
) -> tuple[A, B, C, D, E]: ...
def side_by_side(*calls: Callable[[], Any]) -> tuple[Any, ...]:
    """Make the calls at the same time. Raises the error of the first call that fails, in order."""
    return tuple(future.result() for future in _begun(calls))


def _begun(calls: Sequence[Callable[[], A]]) -> list[Future[A]]:
    """Start the calls in threads of their own. With threads shared by all pages, one server that
    does not answer would delay the pages of all others."""
    threads = ThreadPoolExecutor(min(len(calls), MOST_AT_ONCE) or 1, "management-api")
    try:
        # The calls run in the page's context, so that the API gets the page's request id.
        return [threads.submit(copy_context().run, call) for call in calls]
    finally:
        # The threads end with their calls; this does not wait for them.
        threads.shutdown(wait=False)


def or_none(call: Callable[[], A]) -> Callable[[], A | None]:
    """Return the call as one that returns None if the API refuses or fails."""

    def quietly() -> A | None:
        try:
            return call()
        except APIError:
            return None

    return quietly


def each_or_none(call: Callable[[A], B], items: Sequence[A]) -> list[B | None]:
    """Call for each item at the same time. The result is None where the API refused or failed."""
    calls = [or_none(partial(call, item)) for item in items]
    return [future.result() for future in _begun(calls)]

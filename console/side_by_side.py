"""The calls that one page needs, all at the same time."""

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

# Of one page. Under gevent each is a greenlet.
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
    """Make the calls at the same time; the first of them that failed raises its error."""
    return tuple(future.result() for future in _begun(calls))


def _begun(calls: Sequence[Callable[[], A]]) -> list[Future[A]]:
    """In threads of their own: among threads that all pages share, one server that does not answer
    would hold up the pages of every other."""
    threads = ThreadPoolExecutor(min(len(calls), MOST_AT_ONCE) or 1, "management-api")
    try:
        # With the page's context, so that the API is told its id.
        return [threads.submit(copy_context().run, call) for call in calls]
    finally:
        # They end with the last call, for which nobody has to wait.
        threads.shutdown(wait=False)


def or_none(call: Callable[[], A]) -> Callable[[], A | None]:
    """The call, giving None where the API refuses or fails: for what a page can do without."""

    def quietly() -> A | None:
        try:
            return call()
        except APIError:
            return None

    return quietly


def each_or_none(call: Callable[[A], B], items: Sequence[A]) -> list[B | None]:
    """Call for every item at the same time; None where the API refused or failed."""
    calls = [or_none(partial(call, item)) for item in items]
    return [future.result() for future in _begun(calls)]

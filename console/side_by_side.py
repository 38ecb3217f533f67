"""The calls that one page needs, all at the same time."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar, overload

from console.api_errors import APIError

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")

# Calls of one page run in here side by side; threads start when first needed, so after a fork.
_threads = ThreadPoolExecutor(max_workers=32, thread_name_prefix="management-api")


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
    # With the page's context, so that the API is told its id.
    futures = [_threads.submit(copy_context().run, call) for call in calls]
    return tuple(future.result() for future in futures)


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
    futures = [_threads.submit(copy_context().run, each) for each in calls]
    return [future.result() for future in futures]

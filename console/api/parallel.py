"""Makes the API calls of a page at the same time, and tolerates the failure of some of them."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar, overload

from console.api.errors import APIError, Failure, Forbidden, NotOffered
from console.api.fields import Page

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")
Call = Callable[[], A]
# Of a container that is only read.
Item = TypeVar("Item", covariant=True)

# The most threads for the calls of one page. Under gevent, each thread is a greenlet.
MAX_THREADS = 32


@overload
def in_parallel(a: Call[A], b: Call[B], /) -> tuple[A, B]: ...
@overload
def in_parallel(a: Call[A], b: Call[B], c: Call[C], /) -> tuple[A, B, C]: ...
@overload
def in_parallel(a: Call[A], b: Call[B], c: Call[C], d: Call[D], /) -> tuple[A, B, C, D]: ...
@overload
def in_parallel(
    a: Call[A], b: Call[B], c: Call[C], d: Call[D], e: Call[E], /
) -> tuple[A, B, C, D, E]: ...
def in_parallel(*calls: Call[Any]) -> tuple[Any, ...]:
    """Make the calls at the same time. Raises the error of the first call that fails, in order."""
    return tuple(_run_calls(calls))


def _run_calls(calls: Sequence[Call[A]]) -> list[A]:
    """Make the first call in this thread, and each other in a thread of its own. With threads
    shared by all pages, one server that does not answer would delay the pages of all others."""
    if len(calls) < 2:
        return [call() for call in calls]
    threads = ThreadPoolExecutor(min(len(calls) - 1, MAX_THREADS), "management-api")
    try:
        # The calls run in the page's context, so that the API gets the page's request id.
        others = [threads.submit(copy_context().run, call) for call in calls[1:]]
        return [calls[0](), *(other.result() for other in others)]
    finally:
        # The threads end with their calls; this does not wait for them.
        threads.shutdown(wait=False)


def or_none(call: Call[A]) -> Call[A | None]:
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
    return _run_calls(calls)


@dataclass(frozen=True)
class Part(Generic[Item]):
    """The items to show, or the problem that kept them from being read."""

    items: Sequence[Item]
    problem: APIError | None = None
    # Whether there are more items than were requested.
    is_cut: bool = False

    @property
    def is_offered(self) -> bool:
        return not isinstance(self.problem, NotOffered)


def first_problem(*parts: Part[Any]) -> APIError | None:
    """Return the problem of the first part that has one worth showing. A part that the server
    lacks, or that the key may not see, is not worth showing."""
    problems = (one.problem for one in parts)
    return next(
        (one for one in problems if not isinstance(one, NotOffered | Forbidden | None)), None
    )


def part(call: Call[Sequence[A] | Page[A]]) -> Call[Part[A]]:
    """Return the call, for `in_parallel`, as one that returns its failure instead of raising it.
    Unauthorized is still raised, because it concerns the whole page."""

    def tried() -> Part[A]:
        try:
            found = call()
        except Failure as problem:
            return Part((), problem)
        if isinstance(found, Page):
            return Part(found.items, is_cut=bool(found.cursor))
        return Part(found)

    return tried

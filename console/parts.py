"""Parts of a page that it can do without, where the API does not answer for them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from console.api_errors import APIError, Forbidden, NotOffered, Unauthorized
from console.api_results import Page

A = TypeVar("A")
# Of what is only read.
Item = TypeVar("Item", covariant=True)


@dataclass(frozen=True)
class Part(Generic[Item]):
    """What there is to show, or why there is nothing."""

    items: Sequence[Item]
    problem: APIError | None = None
    # Whether there is more than was asked for.
    is_cut: bool = False

    @property
    def is_offered(self) -> bool:
        return not isinstance(self.problem, NotOffered)


def first_problem(*parts: Part[Any]) -> APIError | None:
    """Why the first of those failed that did: not all servers have them all, and not every key may
    see them, of which a page that can do without says nothing."""
    problems = (one.problem for one in parts)
    return next(
        (one for one in problems if not isinstance(one, NotOffered | Forbidden | None)), None
    )


def part(call: Callable[[], Sequence[A] | Page[A]]) -> Callable[[], Part[A]]:
    """The call, for `side_by_side`, with its failure as an answer. Who is not signed in any more
    is told so by the whole page."""

    def tried() -> Part[A]:
        try:
            found = call()
        except Unauthorized:
            raise
        except APIError as problem:
            return Part((), problem)
        if isinstance(found, Page):
            return Part(found.items, is_cut=bool(found.cursor))
        return Part(found)

    return tried

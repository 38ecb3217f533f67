"""Parts of a page that the page can do without, if the API does not answer for them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from console.api_errors import APIError, Forbidden, NotOffered, Unauthorized
from console.api_results import Page

A = TypeVar("A")
# Of a container that is only read.
Item = TypeVar("Item", covariant=True)


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
    """Return the problem of the first part that has one worth showing.

    A part that the server lacks, or that the key may not see, is not worth showing.
    """
    problems = (one.problem for one in parts)
    return next(
        (one for one in problems if not isinstance(one, NotOffered | Forbidden | None)), None
    )


def part(call: Callable[[], Sequence[A] | Page[A]]) -> Callable[[], Part[A]]:
    """Return the call, for `side_by_side`, as one that returns its failure instead of raising it.

    Unauthorized is still raised, because it concerns the whole page.
    """

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

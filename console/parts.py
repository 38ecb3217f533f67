"""Parts of a page that it can do without, where the API does not answer for them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from console.api_errors import APIError, NotOffered, Unauthorized

A = TypeVar("A")
# Of what is only read.
Item = TypeVar("Item", covariant=True)


@dataclass(frozen=True)
class Part(Generic[Item]):
    """What there is to show, or why there is nothing."""

    items: Sequence[Item]
    problem: APIError | None = None

    @property
    def is_offered(self) -> bool:
        return not isinstance(self.problem, NotOffered)


def part(call: Callable[[], Sequence[A]]) -> Callable[[], Part[A]]:
    """The call, for `side_by_side`, with its failure as an answer. Who is not signed in any more
    is told so by the whole page."""

    def tried() -> Part[A]:
        try:
            return Part(call())
        except Unauthorized:
            raise
        except APIError as problem:
            return Part((), problem)

    return tried

"""Lists that are searched, sorted and divided into pages, by plain GET parameters."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar
from urllib.parse import urlencode

from django.http import HttpRequest

T = TypeVar("T")

PAGE_SIZE = 25
# The pages beside the present one to which there are links.
NEIGHBOUR_PAGES = 2
# Characters of a search. No name or id is longer.
MAX_SEARCH_LENGTH = 200


@dataclass(frozen=True)
class Order(Generic[T]):
    """A sort order: its label, its key, and whether the greatest comes first."""

    label: str
    key: Callable[[T], Any]
    reverse: bool = False


@dataclass(frozen=True)
class Listing(Generic[T]):
    rows: Sequence[T]
    # The number of all rows, and of those that match the search.
    total: int
    found: int
    search: str
    sort: str
    # (value, label) of each sort order
    sorts: Sequence[tuple[str, str]]
    page: int
    pages: int

    @property
    def is_worth_searching(self) -> bool:
        return self.total > 5 or bool(self.search)

    @property
    def query(self) -> str:
        """The query that leads to the same page again; "" for the list without any choice."""
        return self.query_of(self.page)

    @property
    def numbers(self) -> list[tuple[int, str]]:
        """The numbers of pages with links, each with its query: the first, the last, and those
        beside the present one. A 0 stands for pages that are left out."""
        near = range(self.page - NEIGHBOUR_PAGES, self.page + NEIGHBOUR_PAGES + 1)
        shown = sorted({1, self.pages, *(one for one in near if 1 <= one <= self.pages)})
        found: list[tuple[int, str]] = []
        for number in shown:
            if found and number > found[-1][0] + 1:
                found.append((0, ""))
            found.append((number, self.query_of(number)))
        return found

    @property
    def previous_query(self) -> str:
        return self.query_of(self.page - 1)

    @property
    def next_query(self) -> str:
        return self.query_of(self.page + 1)

    def query_of(self, page: int) -> str:
        parameters = {
            "search": self.search,
            "sort": self.sort if self.sort != self.sorts[0][0] else "",
            "page": str(page) if page > 1 else "",
        }
        return urlencode({name: value for name, value in parameters.items() if value})


def by_name(name: str) -> tuple[list[tuple[int, str]], str]:
    """A key that sorts names as people do: numbers in them by value, so that 2 is before 10."""
    parts = re.split(r"([0-9]{1,15})", name.casefold())
    return [(int(part), "") if place % 2 else (-1, part) for place, part in enumerate(parts)], name


def by_time(moment: datetime | None) -> datetime:
    """A key that sorts by time, with unknown times before all others."""
    return moment or datetime.min.replace(tzinfo=UTC)


def listing(
    request: HttpRequest,
    items: Iterable[T],
    *,
    words: Callable[[T], Iterable[str]],
    orders: Mapping[str, Order[T]],
    size: int = PAGE_SIZE,
) -> Listing[T]:
    """Return the page of `items` that the request asks for. `words` returns the texts of an item
    that are searched. The first of `orders` is the default."""
    every = list(items)
    search = request.GET.get("search", "").strip()[:MAX_SEARCH_LENGTH]
    sort = request.GET.get("sort", "")
    sort = sort if sort in orders else next(iter(orders))
    wanted = search.lower().split()
    found = [one for one in every if _matches(words(one), wanted)] if wanted else [*every]
    order = orders[sort]
    found.sort(key=order.key, reverse=order.reverse)
    pages = max(1, -(-len(found) // size))
    page = min(_number(request.GET.get("page", "")), pages)
    return Listing(
        rows=found[(page - 1) * size : page * size],
        total=len(every),
        found=len(found),
        search=search,
        sort=sort,
        sorts=[(value, one.label) for value, one in orders.items()],
        page=page,
        pages=pages,
    )


def _matches(words: Iterable[str], wanted: Sequence[str]) -> bool:
    text = " ".join(words).lower()
    return all(word in text for word in wanted)


def _number(text: str) -> int:
    return max(1, int(text)) if text.isascii() and text.isdigit() and len(text) < 7 else 1

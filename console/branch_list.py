"""A project's branches as a list. In the order of descent, the list is drawn as a tree."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from django.http import HttpRequest

from console.branch_rows import BranchRow, with_limbs
from console.listing import Listing, Order, listing
from console.statuses import ENDPOINT_STATES

ROWS_A_PAGE = 20
DESCENT = "descent"


def _by_endpoint(row: BranchRow) -> tuple[int, str]:
    states = [*ENDPOINT_STATES, None]
    return (states.index(row.endpoint.state if row.endpoint else None), row.branch.name)


ORDERS: Mapping[str, Order[BranchRow]] = {
    # The rows already come in this order.
    DESCENT: Order("By descent", lambda row: 0),
    "name": Order("By name", lambda row: row.branch.name.casefold()),
    "newest": Order(
        "Newest first",
        lambda row: row.branch.created_at.timestamp() if row.branch.created_at else 0.0,
        reverse=True,
    ),
    "size": Order(
        "Largest first",
        lambda row: -1 if row.branch.logical_size is None else row.branch.logical_size,
        reverse=True,
    ),
    "endpoint": Order("By endpoint", _by_endpoint),
}


@dataclass(frozen=True)
class BranchList:
    listing: Listing[BranchRow]
    # The rows of the page; with the lines of the tree if it is one.
    rows: Sequence[BranchRow]
    is_tree: bool
    # The ancestors of the first row, if the page begins inside the tree; the root first.
    above: Sequence[BranchRow]

    @property
    def begins_with_all(self) -> bool:
        """Whether the page begins with the first of all branches, in whatever order."""
        return self.listing.page == 1 and not self.listing.search


def branch_list(request: HttpRequest, rows: Sequence[BranchRow]) -> BranchList:
    """Return the page that the request asks for. `rows` are all branches, in order of descent."""
    found = listing(request, rows, words=_words, orders=ORDERS, size=ROWS_A_PAGE)
    is_tree = found.sort == DESCENT and not found.search
    begins_below = is_tree and found.page > 1 and found.rows
    return BranchList(
        listing=found,
        rows=with_limbs(found.rows) if is_tree else found.rows,
        is_tree=is_tree,
        above=_ancestors(found.rows[0], rows) if begins_below else (),
    )


def _words(row: BranchRow) -> Iterable[str]:
    endpoint_id = row.endpoint.endpoint.id if row.endpoint else ""
    return (row.branch.name, row.branch.id, endpoint_id)


def _ancestors(row: BranchRow, rows: Sequence[BranchRow]) -> list[BranchRow]:
    known = {one.branch.id: one for one in rows}
    found: list[BranchRow] = []
    parent = row.parent
    while parent:
        found.insert(0, known[parent.id])
        parent = known[parent.id].parent
    return found

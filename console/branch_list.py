"""A project's branches as a list: searched, sorted, and page by page. By descent it is a tree."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django import forms

from console.branch_rows import BranchRow, with_limbs
from console.forms import OpenChoiceField, offer
from console.statuses import ENDPOINT_STATES

ROWS_A_PAGE = 20
DESCENT = "descent"


def _by_name(row: BranchRow) -> tuple[str, str]:
    return (row.branch.name.casefold(), row.branch.id)


def _by_newest(row: BranchRow) -> float:
    return -row.branch.created_at.timestamp() if row.branch.created_at else 0.0


def _by_size(row: BranchRow) -> int:
    return -(row.branch.logical_size if row.branch.logical_size is not None else -1)


def _by_endpoint(row: BranchRow) -> int:
    states = [*ENDPOINT_STATES, None]
    return states.index(row.endpoint.state if row.endpoint else None)


# What a list is sorted by → its words, and the key; by descent, as the rows come.
SORTS: dict[str, tuple[str, Callable[[BranchRow], Any] | None]] = {
    DESCENT: ("Descent", None),
    "name": ("Name", _by_name),
    "newest": ("Newest first", _by_newest),
    "size": ("Largest first", _by_size),
    "endpoint": ("Endpoint", _by_endpoint),
}


class ListForm(forms.Form):
    """Sent by GET, so that an address holds it. Always usable: what it does not know is left."""

    q = forms.CharField(
        label="Search",
        required=False,
        widget=forms.TextInput(
            attrs={"type": "search", "autocomplete": "off", "placeholder": "Name, id or endpoint"}
        ),
    )
    sort = OpenChoiceField(label="Sort by", required=False)

    def __init__(self, data: Mapping[str, str]) -> None:
        super().__init__(data)
        offer(self, "sort", ((value, label) for value, (label, _) in SORTS.items()))


@dataclass(frozen=True)
class BranchList:
    form: ListForm
    rows: Sequence[BranchRow]
    # How many match in all.
    found: int
    # From 1 on; 0 where there is none.
    page: int
    pages: int
    # Whether the rows stand below their parents, and so are drawn as a tree.
    is_tree: bool
    # Of this list without its page; "" as it is at first.
    query: str
    # Above the first row, where the page begins in the midst of the tree; the root first.
    above: Sequence[BranchRow]

    @property
    def is_narrowed(self) -> bool:
        return bool(self.form.cleaned_data["q"])

    @property
    def first(self) -> int:
        return (self.page - 1) * ROWS_A_PAGE + 1

    @property
    def last(self) -> int:
        return self.first + len(self.rows) - 1

    @property
    def previous_query(self) -> str:
        return self._page_query(self.page - 1)

    @property
    def next_query(self) -> str:
        return self._page_query(self.page + 1)

    @property
    def own_query(self) -> str:
        """What leads to this very page of it."""
        return self._page_query(self.page)

    def _page_query(self, page: int) -> str:
        if not 1 <= page <= self.pages:
            return ""
        return "&".join(part for part in (self.query, f"page={page}") if part)


def branch_list(rows: Sequence[BranchRow], data: Mapping[str, str]) -> BranchList:
    """The rows come by descent, all of them; `data` is what the address asks for."""
    form = ListForm(data)
    form.is_valid()
    words = form.cleaned_data["q"].casefold()
    sort = form.cleaned_data["sort"] if form.cleaned_data["sort"] in SORTS else DESCENT
    found = [row for row in rows if words in _text(row)] if words else list(rows)
    key = SORTS[sort][1]
    if key:
        # Equals stay by name.
        found = sorted(sorted(found, key=_by_name), key=key)
    pages = -(-len(found) // ROWS_A_PAGE)
    page = min(max(1, _whole(data.get("page", ""))), pages or 1)
    shown = found[(page - 1) * ROWS_A_PAGE : page * ROWS_A_PAGE]
    is_tree = not (words or key)
    chosen = {"q": form.cleaned_data["q"], "sort": sort if sort != DESCENT else ""}
    return BranchList(
        form=form,
        rows=with_limbs(shown) if is_tree else shown,
        found=len(found),
        page=page if found else 0,
        pages=pages,
        is_tree=is_tree,
        query=urlencode({name: value for name, value in chosen.items() if value}),
        above=_ancestors(shown[0], rows) if is_tree and page > 1 and shown else (),
    )


def _text(row: BranchRow) -> str:
    endpoint_id = row.endpoint.endpoint.id if row.endpoint else ""
    return f"{row.branch.name} {row.branch.id} {endpoint_id}".casefold()


def _ancestors(row: BranchRow, rows: Sequence[BranchRow]) -> list[BranchRow]:
    known = {one.branch.id: one for one in rows}
    found: list[BranchRow] = []
    parent = row.parent
    while parent:
        found.insert(0, known[parent.id])
        parent = known[parent.id].parent
    return found


def _whole(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 6 else 1

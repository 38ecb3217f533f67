"""The page of a project's branches, which shows their tree as a picture and as a list, and the form
for a new branch."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from console.api.parallel import in_parallel, part
from console.branches.forms import PAST, BranchForm
from console.branches.picture import picture
from console.branches.rows import BranchRow, branch_rows, with_tree_lines
from console.endpoints.rows import endpoint_rows
from console.forms.api_requests import body_of
from console.pages.addresses import back, with_query
from console.pages.listing import Listing, Order, by_name, by_time, listing
from console.pages.live_regions import Shown, page_and_region, polling
from console.pages.problems import problems_beside
from console.pages.responses import FormPage, choices, done, show_form
from console.pages.statuses import ENDPOINT_STATES
from console.request import ConsoleRequest
from console.sign_in import sessions

PAGE_SIZE = 20
DESCENT = "descent"


def _by_endpoint(row: BranchRow) -> tuple[Any, ...]:
    states = [*ENDPOINT_STATES, None]
    return (states.index(row.endpoint.state if row.endpoint else None), by_name(row.branch.name))


ORDERS: Mapping[str, Order[BranchRow]] = {
    # The rows already come in this order.
    DESCENT: Order("Tree", lambda row: 0),
    "name": Order("Name", lambda row: by_name(row.branch.name)),
    "newest": Order(
        "Newest first",
        lambda row: by_time(row.branch.created_at),
        reverse=True,
    ),
    "size": Order(
        "Largest first",
        lambda row: -1 if row.branch.logical_size is None else row.branch.logical_size,
        reverse=True,
    ),
    "endpoint": Order("Endpoint", _by_endpoint),
}


@dataclass(frozen=True)
class BranchList:
    listing: Listing[BranchRow]
    # The rows of the page. If they are shown as a tree, they have its lines.
    rows: Sequence[BranchRow]
    is_tree: bool
    # If the page begins inside the tree: the ancestors of the first row, the root first.
    above: Sequence[BranchRow]

    @property
    def is_first_of_all(self) -> bool:
        """Whether this is the first page of the list of all branches, in any order."""
        return self.listing.page == 1 and not self.listing.search


def branch_list(request: HttpRequest, rows: Sequence[BranchRow]) -> BranchList:
    """Return the page of the list that the request asks for. `rows` are all branches, each parent
    before its children."""
    found = listing(request, rows, words=_searched, orders=ORDERS, size=PAGE_SIZE)
    is_tree = found.sort == DESCENT and not found.search
    begins_below = is_tree and found.page > 1 and found.rows
    return BranchList(
        listing=found,
        rows=with_tree_lines(found.rows) if is_tree else found.rows,
        is_tree=is_tree,
        above=_ancestors(found.rows[0], rows) if begins_below else (),
    )


def _searched(row: BranchRow) -> Iterable[str]:
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


# More than the page shows: the pending state of an endpoint may come from an older operation.
MAX_OPERATIONS = 50


def _contents(request: ConsoleRequest, project_id: str) -> Shown:
    api = request.api
    operations, project, branches, endpoints, snapshots = in_parallel(
        lambda: api.operations(project_id, limit=MAX_OPERATIONS),
        lambda: api.project(project_id),
        lambda: api.branches(project_id),
        lambda: api.endpoints(project_id),
        part(lambda: api.snapshots.list(project_id)),
    )
    of_endpoints = endpoint_rows(endpoints, branches, operations.items)
    rows = branch_rows(branches, of_endpoints)
    known = {branch.id for branch in branches}
    found = branch_list(request, rows)
    here = reverse("branches", args=[project_id])
    context = {
        "project": project,
        "here": here,
        # The URL to which forms return, with the page and the search of the list.
        "origin": with_query(here, found.listing.query),
        "listing": found.listing,
        "count": len(rows),
        "list": found,
        "branches": found.rows,
        "picture": picture(rows, project_id) if found.is_first_of_all else "",
        # The snapshots of deleted branches. All others are on the page of their branch.
        "orphans": [one for one in snapshots.items if one.source_branch_id not in known],
    }
    return context, polling(request, operations.items, found.listing.query)


index, index_live = page_and_region(_contents, "branches.html", "_branches.html")


@require_http_methods(["GET", "HEAD", "POST"])
def create(request: ConsoleRequest, project_id: str) -> HttpResponse:
    url = back(request, reverse("branches", args=[project_id]))
    form = BranchForm(request.POST or None, initial={"parent_id": request.GET.get("parent", "")})
    if not sessions.is_at_perch(request):
        del form.fields["as_of"]
    if request.method == "POST" and form.is_valid():
        parent_id = form.cleaned_data["parent_id"]
        if form.cleaned_data.get("as_of") == PAST and parent_id:
            name = form.cleaned_data["name"]
            query = f"?{urlencode({'name': name})}" if name else ""
            return done(request, reverse("branch_history", args=[project_id, parent_id]) + query)
        with problems_beside(form, "name"):
            branch = request.api.branching.create(project_id, body_of(form, "branch_create"))
            page_url = reverse("branch", args=[project_id, branch.id])
            return done(request, page_url, f"Started creating branch {branch.name}.")
    form.offer_parents(choices(request, lambda: request.api.branches(project_id)))
    page = FormPage(
        title="Create branch",
        intro="A copy of the parent's roles, databases and data.",
        back=url,
    )
    return show_form(request, form, page)

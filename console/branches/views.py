"""The pages of a project's branches: their tree, as a picture and as a list, the form for a new
branch, and the page of one branch."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from console.api.errors import NotFound
from console.api.fields import stamp
from console.api.management_api import ManagementAPI
from console.api.parallel import Part, in_parallel, part
from console.api.resources.branches import Snapshot
from console.api.resources.history import History
from console.api.resources.operations import Event, Operation
from console.branches.forms import PAST, BranchForm
from console.branches.history_band import band, summary
from console.branches.picture import picture
from console.branches.rows import BranchRow, branch_rows, with_tree_lines
from console.endpoints.rows import endpoint_rows
from console.forms.api_requests import body_of
from console.pages.addresses import back, with_query
from console.pages.listing import Listing, Order, by_name, by_time, listing
from console.pages.live_regions import Shown, page_and_region, polling
from console.pages.problems import problems_beside
from console.pages.responses import FormPage, choices, done
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


# How many operations are read, more than a page shows: the pending state of an endpoint may come
# from an older one. A server that ignores the filter by branch returns the project's.
MAX_OPERATIONS = 50


def _list(request: ConsoleRequest, project_id: str) -> Shown:
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


index = page_and_region(_list, "branches.html", "_branches.html")


def create(request: ConsoleRequest, project_id: str) -> HttpResponse:
    url = back(request, reverse("branches", args=[project_id]))
    form = BranchForm(request.POST or None, initial={"parent_id": request.GET.get("parent", "")})
    if not sessions.present_account(request).is_perch:
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
    return FormPage(
        title="Create branch",
        intro="A copy of the parent's roles, databases and data.",
        back=url,
    ).show(request, form)


MAX_EVENTS = 200
# How long a snapshot without a timestamp counts as being taken. Some servers never return one.
SNAPSHOT_TIMEOUT = timedelta(minutes=10)
CREATIONS = {"role.created": "role", "database.created": "database"}
MAX_SHOWN_CHILDREN = 12
# Milliseconds between two polls while the history has no full copy yet.
HISTORY_POLL_INTERVAL_MS = 3_000


def _detail(request: ConsoleRequest, project_id: str, branch_id: str) -> Shown:
    """Raises NotFound if the list of branches does not contain it."""
    api = request.api
    (page, project, branches, endpoints), parts = in_parallel(
        lambda: in_parallel(
            lambda: api.operations(project_id, limit=MAX_OPERATIONS, branch_id=branch_id),
            lambda: api.project(project_id),
            lambda: api.branches(project_id),
            lambda: api.endpoints(project_id),
        ),
        lambda: in_parallel(
            part(lambda: _creations(api, project_id, branch_id)),
            part(lambda: [api.history.of_branch(project_id, branch_id)]),
            part(lambda: api.catalog.roles(project_id, branch_id)),
            part(lambda: api.catalog.databases(project_id, branch_id)),
            part(lambda: api.snapshots.list(project_id)),
        ),
    )
    made, kept, roles, databases, snapshots = parts
    own = [one for one in snapshots.items if one.source_branch_id == branch_id]
    taking = [found for one in own if (found := _snapshot_operation(one))]
    # The newest first; before them, those that are taking a snapshot of it.
    operations = [*taking, *(one for one in page.items if one.branch_id == branch_id)]
    of_endpoints = endpoint_rows(endpoints, branches, page.items)
    rows = {row.branch.id: row for row in branch_rows(branches, of_endpoints)}
    if branch_id not in rows:
        raise NotFound("branch not found", status=404)
    row = rows[branch_id]
    children = [other.branch for other in rows.values() if other.branch.parent_id == branch_id]
    history = next(iter(kept.items), None)
    # Servers that offer cancel and retry filter operations by branch.
    is_filtered = any(operation.can_be_steered for operation in operations)
    context = {
        "project": project,
        "here": reverse("branch", args=[project_id, branch_id]),
        "branch_row": row,
        "branch": row.branch,
        "children": children[:MAX_SHOWN_CHILDREN],
        "children_more": max(0, len(children) - MAX_SHOWN_CHILDREN),
        "roles": roles,
        "databases": databases,
        "snapshots": Part(own, snapshots.problem),
        # The names of those that were created by SQL, if the server reports that.
        "roles_by_sql": _made_by_sql(made.items, "role"),
        "databases_by_sql": _made_by_sql(made.items, "database"),
        "kept": kept,
        "history": history,
        "band": band(history) if history else None,
        "summary": summary(history) if history else "",
        "operations_query": f"?branch_id={branch_id}" if is_filtered else "",
    }
    state = polling(request, operations)
    if not state.every and _history_begins(history, row):
        # The first full copy is taken after the start, and no event tells of it.
        state = replace(state, every=HISTORY_POLL_INTERVAL_MS)
    return context, state


def _snapshot_operation(snapshot: Snapshot) -> Operation | None:
    """Return the operation that is taking the snapshot, if it is being taken. It is constructed
    here: the API returns the real one only with the id of a hidden branch."""
    since = datetime.now(UTC) - SNAPSHOT_TIMEOUT
    if snapshot.timestamp or not snapshot.created_at or snapshot.created_at < since:
        return None
    return Operation.read(
        {
            "id": snapshot.id,
            "action": "create_branch",
            "status": "running",
            "created_at": stamp(snapshot.created_at),
        }
    )


def _creations(api: ManagementAPI, project_id: str, branch_id: str) -> Sequence[Event]:
    types = ",".join(CREATIONS)
    page = api.events(project_id, limit=MAX_EVENTS, branch_id=branch_id, type=types)
    return page.items


def _made_by_sql(events: Sequence[Event], kind: str) -> frozenset[str]:
    """Return the names whose newest creation was by SQL: a name may have been used before."""
    newest: dict[str, Event] = {}
    for event in events:
        change = event.changes.get("name")
        name = change.get("to") if isinstance(change, dict) else None
        if CREATIONS.get(event.type) == kind and isinstance(name, str):
            newest.setdefault(name, event)
    return frozenset(
        name for name, event in newest.items() if event.actor and event.actor.type == "sql"
    )


def _history_begins(history: History | None, row: BranchRow) -> bool:
    """Whether a running compute is about to begin the branch's history."""
    if history is None or history.bases or not history.retention or row.endpoint is None:
        return False
    return row.endpoint.endpoint.current_state == "active"


show = page_and_region(_detail, "branch.html", "_branch.html")

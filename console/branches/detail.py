"""The page of one branch."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from django.urls import reverse

from console.api.errors import NotFound
from console.api.fields import stamp
from console.api.management_api import ManagementAPI
from console.api.parallel import Part, in_parallel, part
from console.api.resources.branches import Snapshot
from console.api.resources.history import History
from console.api.resources.operations import Event, Operation
from console.branches.history_band import band, summary
from console.branches.rows import BranchRow, branch_rows
from console.endpoints.rows import endpoint_rows
from console.pages.live_regions import Shown, page_and_region, polling
from console.request import ConsoleRequest

# How many operations are searched. A server that ignores the filter returns the project's.
MAX_OPERATIONS = 50
MAX_EVENTS = 200
# How long a snapshot without a timestamp counts as being taken. Some servers never return one.
SNAPSHOT_TIMEOUT = timedelta(minutes=10)
CREATIONS = {"role.created": "role", "database.created": "database"}
MAX_SHOWN_CHILDREN = 12
# Milliseconds between two polls while the history has no full copy yet.
HISTORY_POLL_INTERVAL_MS = 3_000


def _contents(request: ConsoleRequest, project_id: str, branch_id: str) -> Shown:
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


show, live = page_and_region(_contents, "branch.html", "_branch.html")

"""The dashboard that lists projects, the switcher between them, and a project's page, which leads a
new one's owner through the first steps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.http import HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_safe

from console.api.fields import Page, stamp
from console.api.management_api import MAX_PAGE_SIZE, ManagementAPI
from console.api.parallel import each_or_none, first_problem, in_parallel, part
from console.api.resources.branches import Branch
from console.api.resources.endpoints import Endpoint
from console.api.resources.operations import Event, Operation
from console.api.resources.projects import Project
from console.endpoints.rows import ENDPOINT_ORDERS, endpoint_rows
from console.pages.addresses import with_query
from console.pages.listing import Listing, Order, listing
from console.pages.live_regions import Polling, Shown, page_and_region, polling
from console.pages.responses import show_dialog
from console.projects.dashboard import (
    FAILED,
    GONE,
    ORDERS,
    SLEPT,
    WOKE,
    ProjectRow,
    latest,
    project_rows,
    totals,
)
from console.projects.usage import project_usage
from console.request import ConsoleRequest

MAX_EVENTS = 300
MAX_SHOWN_EVENTS = 8
SWITCHER_PAGE_SIZE = 12
# An endpoint's pending word may come from an operation that is far down in the list.
MAX_OPERATIONS = 50


def _dashboard(request: ConsoleRequest) -> Shown:
    api = request.api
    cursor = request.GET.get("cursor", "")
    page, listed_states, lately = in_parallel(
        lambda: api.projects(limit=MAX_PAGE_SIZE, cursor=cursor),
        part(api.project_states),
        part(lambda: _lately(api, FAILED, WOKE, SLEPT, *GONE)),
    )
    # Among many wakes, no failure might be in the newest events: they are then read separately.
    failures = part(lambda: _lately(api, FAILED))() if lately.is_cut else lately
    states = None if listed_states.problem else listed_states.items
    happened = [
        *(event for event in failures.items if event.type == FAILED),
        *(event for event in lately.items if event.type != FAILED),
    ]

    def listed(endpoints: Mapping[str, Sequence[Endpoint] | None]) -> Listing[ProjectRow]:
        return listing(
            request,
            project_rows(page.items, states, endpoints, happened),
            words=lambda row: (row.project.name, row.project.id, row.project.region_id),
            orders=ORDERS,
        )

    projects = listed({})
    if states is None:
        # Read only for the rows that are shown, as it takes one call each.
        shown = [row.project.id for row in projects.rows]
        projects = listed(dict(zip(shown, each_or_none(api.endpoints, shown), strict=True)))
    rows = project_rows(page.items, states, {}, happened)
    context = {
        "listing": projects,
        "here": reverse("dashboard"),
        "totals": totals(rows) if states is not None else None,
        "problem": first_problem(listed_states, failures, lately),
        "knows_events": not (failures.problem or lately.problem),
        "more_failed": failures.is_cut,
        "more_turned": lately.is_cut,
        "lately": latest(happened, page.items, most=MAX_SHOWN_EVENTS),
        "next_cursor": page.cursor,
        "is_first_page": not cursor,
    }
    return context, Polling(request.GET.urlencode())


dashboard, dashboard_live = page_and_region(_dashboard, "dashboard.html", "_dashboard.html")


def _lately(api: ManagementAPI, *types: str) -> Page[Event]:
    """Read the events of the last day, of these types only, even if the server ignores filters."""
    since = stamp(datetime.now(UTC) - timedelta(days=1))
    page = api.events(limit=MAX_EVENTS, type=",".join(types), since=since)
    return Page([event for event in page.items if event.type in types], page.cursor)


@require_safe
def switcher(request: ConsoleRequest, project_id: str) -> HttpResponse:
    page = request.api.projects(limit=MAX_PAGE_SIZE)
    context = {
        "project_id": project_id,
        "here": reverse("project_switcher", args=[project_id]),
        "listing": listing(
            request,
            page.items,
            words=lambda project: (project.name, project.id),
            orders={"name": Order("Name", lambda project: project.name.lower())},
            size=SWITCHER_PAGE_SIZE,
        ),
        "has_more": bool(page.cursor),
    }
    return show_dialog(request, "_switcher.html", context, title="Switch project")


def _contents(request: ConsoleRequest, project_id: str) -> Shown:
    api = request.api
    operations, project, endpoints, branches = in_parallel(
        lambda: api.operations(project_id, limit=MAX_OPERATIONS),
        lambda: api.project(project_id),
        lambda: api.endpoints(project_id),
        lambda: api.branches(project_id),
    )
    rows = endpoint_rows(endpoints, branches, operations.items)
    taken = {endpoint.branch_id for endpoint in endpoints}
    found = listing(
        request,
        rows,
        words=lambda row: (row.endpoint.id, row.branch_name, row.state.label, row.size),
        orders=ENDPOINT_ORDERS,
    )
    here = reverse("project", args=[project_id])
    context = {
        "project": project,
        "here": here,
        "back_here": with_query(here, found.query),
        "listing": found,
        "endpoints": found.rows,
        "used_up": [one for one in project_usage(project, branches) if one.is_used_up],
        # A new project has one endpoint, and its user wants to connect.
        "only_endpoint": endpoints[0] if len(endpoints) == 1 else None,
        "has_free_branch": any(branch.id not in taken for branch in branches),
        "steps": first_steps(
            project, branches, operations.items, is_all=len(operations.items) < MAX_OPERATIONS
        ),
    }
    return context, polling(request, operations.items, found.query)


show, live = page_and_region(_contents, "project.html", "_project.html")


# An owner of more branches than these needs no first steps.
MAX_BEGINNER_BRANCHES = 5


@dataclass(frozen=True)
class Step:
    title: str
    words: str
    is_done: bool
    # The name of the URL of the form that does it, "" if it has none.
    form: str = ""


def first_steps(
    project: Project, branches: Sequence[Branch], operations: Sequence[Operation], *, is_all: bool
) -> list[Step]:
    """Return the steps; none once all are done or the project has grown, or if what the API said is
    not enough to tell. `operations` are the project's latest ones, the newest first; `is_all` says
    if there are no others."""
    if not is_all or project.usage.transferred is None or len(branches) > MAX_BEGINNER_BRANCHES:
        return []
    steps = [
        Step("Create a project", "A new project has a branch and an endpoint.", True),
        Step(
            "Connect",
            "Take the connection string to psql, a driver or an ORM.",
            project.usage.transferred > 0,
            "project_connect",
        ),
        Step(
            "Create a branch",
            "A copy of all data in seconds, to try a migration or to test with.",
            len(branches) > 1,
            "branch_create",
        ),
        Step(
            "Let it suspend, and start again",
            "An idle endpoint is suspended. Connect again, and it starts.",
            _has_woken(operations),
        ),
    ]
    return [] if all(step.is_done for step in steps) else steps


def _has_woken(operations: Sequence[Operation]) -> bool:
    """True if an endpoint has started after it had been suspended."""
    suspended: set[str] = set()
    for operation in reversed(operations):
        if operation.status != "finished":
            continue
        if operation.action == "suspend_compute":
            suspended.add(operation.endpoint_id)
        elif operation.action == "start_compute" and operation.endpoint_id in suspended:
            return True
    return False

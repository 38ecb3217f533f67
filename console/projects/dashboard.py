"""The dashboard: each project with its endpoints by state, its unfinished operations and its events
of the last day, and the latest events of all projects; and the switcher between projects."""

from collections import Counter, defaultdict
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from django.http import HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_safe

from console.api.fields import Page, stamp
from console.api.management_api import MAX_PAGE_SIZE, ManagementAPI
from console.api.parallel import each_or_none, first_problem, in_parallel, part
from console.api.resources.endpoints import Endpoint
from console.api.resources.operations import Event
from console.api.resources.projects import Project, ProjectState
from console.events.rows import EventRow, event_row
from console.events.things import Thing
from console.pages.addresses import NOT_READ
from console.pages.listing import Listing, Order, by_name, by_time, listing
from console.pages.live_regions import Polling, Shown, page_and_region
from console.pages.responses import show_dialog
from console.pages.statuses import ACTIVE, ENDPOINT_STATES, IDLE, STOPPED, Status, endpoint_state
from console.request import ConsoleRequest

# The types of the events that are counted over the last day.
FAILED, WOKE, SLEPT = "operation.failed", "endpoint.active", "endpoint.idle"
# The types after which an endpoint or a branch has no page any more.
GONE = ("endpoint.deleted", "branch.delete_requested", "branch.deleted", "branch.expired")
MAX_EVENTS = 300
MAX_SHOWN_EVENTS = 8
SWITCHER_PAGE_SIZE = 12


@dataclass(frozen=True)
class ProjectRow:
    project: Project
    # The number of endpoints by state; None if they could not be read.
    states: Sequence[tuple[Status, int]] | None
    # Unfinished operations; None if not known.
    unfinished: int | None
    # The counts of the last day.
    failed: int = 0
    woke: int = 0
    slept: int = 0

    @property
    def active(self) -> int:
        return sum(count for state, count in self.states or () if state is ACTIVE)


@dataclass(frozen=True)
class Totals:
    states: Sequence[tuple[Status, int]]
    unfinished: int
    failed: int


def _counted(counts: Mapping[Status, int]) -> list[tuple[Status, int]]:
    return [(state, counts[state]) for state in ENDPOINT_STATES if counts.get(state)]


def project_rows(
    projects: Sequence[Project],
    states: Sequence[ProjectState] | None,
    endpoints: Mapping[str, Sequence[Endpoint] | None],
    events: Sequence[Event],
) -> list[ProjectRow]:
    """Make the rows. `endpoints` are by project id: they are read one by one for some projects if
    the server has no `states`."""
    known = {state.project_id: state for state in states or ()}
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for event in events:
        counts[event.project_id][event.type] += 1
    rows = []
    for project in projects:
        found: Mapping[Status, int] | None = {}
        # The API reports no state of a project without anything in it.
        if state := known.get(project.id):
            found = {ACTIVE: state.active, IDLE: state.idle, STOPPED: state.disabled}
        if states is None:
            own = endpoints.get(project.id)
            found = None if own is None else Counter(map(endpoint_state, own))
        unfinished = state.unfinished_operations if state else 0
        happened = counts[project.id]
        rows.append(
            ProjectRow(
                project,
                None if found is None else _counted(found),
                None if states is None else unfinished,
                failed=happened[FAILED],
                woke=happened[WOKE],
                slept=happened[SLEPT],
            )
        )
    return rows


def totals(rows: Sequence[ProjectRow]) -> Totals:
    states: Counter[Status] = Counter()
    for row in rows:
        states.update(dict(row.states or ()))
    return Totals(
        states=_counted(states),
        unfinished=sum(row.unfinished or 0 for row in rows),
        failed=sum(row.failed for row in rows),
    )


def latest(events: Sequence[Event], projects: Sequence[Project], *, most: int) -> list[Thing]:
    """Return the `most` newest events. Failures are kept before all others."""
    names = {project.id: project.name for project in projects}
    known = [event for event in events if event.project_id in names]
    failed = [event for event in known if event.type == FAILED][:most]
    others = [event for event in known if event.type in (WOKE, SLEPT)][: most - len(failed)]
    chosen = sorted([*failed, *others], key=lambda event: by_time(event.at), reverse=True)
    gone = {event.endpoint_id or event.branch_id for event in known if event.type in GONE}
    return [Thing([_row(event, names, gone)]) for event in chosen]


def _row(event: Event, names: Mapping[str, str], gone: Container[str]) -> EventRow:
    """Make the row, without links to an endpoint or a branch that is `gone`."""
    row = event_row(event, NOT_READ, names, with_project=True)
    if event.endpoint_id not in gone and event.branch_id not in gone:
        return row
    links = [
        link if link.kind in ("project", "run") else replace(link, url="", is_gone=True)
        for link in row.links
    ]
    return replace(row, links=links)


ORDERS: Mapping[str, Order[ProjectRow]] = {
    "newest": Order("Newest first", lambda row: by_time(row.project.created_at), reverse=True),
    "name": Order("Name", lambda row: by_name(row.project.name)),
    "active": Order(
        "Most active",
        lambda row: (row.active, row.woke, by_time(row.project.created_at)),
        reverse=True,
    ),
    "trouble": Order(
        "Problems first",
        lambda row: (row.failed, row.unfinished or 0, by_time(row.project.created_at)),
        reverse=True,
    ),
}


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


dashboard = page_and_region(_dashboard, "dashboard.html", "_dashboard.html")


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

"""What the dashboard shows: each project with its endpoints by state, its unfinished operations and
its events of the last day, and the latest events of all projects."""

from collections import Counter, defaultdict
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace

from console.api.resources.endpoints import Endpoint
from console.api.resources.operations import Event
from console.api.resources.projects import Project, ProjectState
from console.events.rows import EventRow, event_row
from console.events.things import Thing
from console.pages.addresses import NOT_READ
from console.pages.listing import Order, by_name, by_time
from console.pages.statuses import ACTIVE, IDLE, STOPPED, Status, endpoint_state

# The types of the events that are counted over the last day.
FAILED, WOKE, SLEPT = "operation.failed", "endpoint.active", "endpoint.idle"
# The types after which an endpoint or a branch has no page any more.
GONE = ("endpoint.deleted", "branch.delete_requested", "branch.deleted", "branch.expired")


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


def _counted(counts: Sequence[tuple[Status, int]]) -> list[tuple[Status, int]]:
    return [(state, count) for state, count in counts if count]


def states_of(state: ProjectState | None) -> list[tuple[Status, int]]:
    """Return the counts by state; none if the API does not know the project."""
    if state is None:
        return []
    return _counted([(ACTIVE, state.active), (IDLE, state.idle), (STOPPED, state.disabled)])


def states_among(endpoints: Sequence[Endpoint]) -> list[tuple[Status, int]]:
    found = Counter(endpoint_state(endpoint) for endpoint in endpoints)
    return _counted([(state, found[state]) for state in (ACTIVE, IDLE, STOPPED)])


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
        found: Sequence[tuple[Status, int]] | None = states_of(known.get(project.id))
        if states is None:
            own = endpoints.get(project.id)
            found = None if own is None else states_among(own)
        happened = counts[project.id]
        own_state = known.get(project.id)
        unfinished = own_state.unfinished_operations if own_state else 0
        rows.append(
            ProjectRow(
                project,
                found,
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
        states=_counted([(state, states[state]) for state in (ACTIVE, IDLE, STOPPED)]),
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

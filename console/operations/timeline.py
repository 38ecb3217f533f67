"""The timeline of a project's last hours: its runs, in one lane per endpoint or branch; and its
page."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.urls import reverse
from django.utils.safestring import SafeString

from console.api.fields import stamp
from console.api.management_api import ManagementAPI
from console.api.parallel import in_parallel, or_none
from console.api.resources.branches import Branch
from console.api.resources.endpoints import Endpoint
from console.api.resources.operations import Operation
from console.api.resources.projects import Project
from console.operations.run_rows import RunRow
from console.operations.runs import Run, runs_of
from console.operations.timescale import Bar, Mark, Scale, lines
from console.pages.addresses import Existing, url_or_none
from console.pages.live_regions import Shown, page_and_region, polling
from console.request import ConsoleRequest

HOURS = (1, 6, 24)
DEFAULT_HOURS = 6
# If a project is younger than the period shown, the picture begins with the project. This is the
# shortest picture.
MIN_SPAN = timedelta(minutes=1)
# The most operations that are read, and the most lanes that are drawn, to keep it readable.
MAX_OPERATIONS = 200
MAX_LANES = 10


@dataclass(frozen=True)
class TimelineRun:
    row: RunRow
    bar: Bar
    # The middle of its bar, in percent. Failed runs are marked there, so that colour is not needed.
    at: str


@dataclass(frozen=True)
class TimelineLane:
    label: str
    is_id: bool
    # "" if the endpoint or branch is deleted.
    url: str
    runs: Sequence[TimelineRun]

    @property
    def drawn(self) -> Sequence[TimelineRun]:
        """The runs, failed ones last, so that no other is drawn over their marks."""
        return sorted(self.runs, key=lambda run: run.row.run.status.tone == "bad")

    @property
    def failed(self) -> int:
        return sum(run.row.run.status.tone == "bad" for run in self.runs)


@dataclass(frozen=True)
class Timeline:
    hours: int
    # Whether the project is younger than that, so that the picture begins with the project.
    is_whole: bool
    lanes: Sequence[TimelineLane]
    marks: Sequence[Mark]
    # Those of the marks.
    lines: SafeString
    # The ids of the runs.
    newest_first: Sequence[str]
    # The number of failed runs.
    failed: int
    # Whether older operations of this period were not read.
    is_cut: bool

    @property
    def drawn_lanes(self) -> Sequence[TimelineLane]:
        return self.lanes[:MAX_LANES]

    @property
    def listed(self) -> list[tuple[TimelineLane, TimelineRun]]:
        """The runs of all lanes, the newest first."""
        found = {run.row.run.id: (lane, run) for lane in self.lanes for run in lane.runs}
        return [found[run_id] for run_id in self.newest_first]

    @property
    def left_out(self) -> int:
        """The number of lanes that are not drawn."""
        return max(0, len(self.lanes) - MAX_LANES)

    @property
    def most_operations(self) -> int:
        return MAX_OPERATIONS

    @property
    def choices(self) -> list[tuple[int, bool]]:
        return [(hours, hours == self.hours and not self.is_whole) for hours in HOURS]


def hours_asked(value: str) -> int | None:
    return int(value) if value in map(str, HOURS) else None


def hours_of(created_at: datetime | None) -> int:
    """Return the default period: that of a new project is shorter, as six hours would be mostly
    empty."""
    is_new = created_at is not None and datetime.now(UTC) - created_at < timedelta(hours=HOURS[0])
    return HOURS[0] if is_new else DEFAULT_HOURS


def begin_of(hours: int) -> datetime:
    return datetime.now(UTC) - timedelta(hours=hours)


def timeline(
    project_id: str,
    newest_first: Sequence[Operation],
    hours: int,
    names: Mapping[str, str],
    existing: Existing,
    *,
    since: datetime | None = None,
) -> Timeline:
    """Make the timeline of the last `hours`. `names` are those of branches. The project did not
    exist before `since`."""
    scale = _scale(hours, since)
    drawn = [
        run
        for run in runs_of(newest_first)
        # Other servers ignore the start that was requested.
        if run.began_at and scale.begin <= run.began_at
    ]
    rows = [RunRow(project_id, run) for run in drawn]
    lanes = _lanes(project_id, rows, scale, names, existing)
    marks = scale.marks_of_day()
    return Timeline(
        hours=hours,
        is_whole=since is not None and since > begin_of(hours),
        lanes=lanes,
        marks=marks,
        lines=lines(marks),
        newest_first=[row.run.id for row in rows],
        failed=sum(row.run.status.tone == "bad" for row in rows),
        is_cut=len(newest_first) >= MAX_OPERATIONS,
    )


def _scale(hours: int, since: datetime | None) -> Scale:
    """Return the scale of so many hours until now, rounded up a little. Without rounding, the
    picture would differ each time that it is requested."""
    tick = hours * 10
    end = datetime.fromtimestamp((datetime.now(UTC).timestamp() // tick + 1) * tick, UTC)
    begin = end - timedelta(hours=hours)
    return Scale(max(begin, min(since, end - MIN_SPAN)) if since else begin, end)


def _lanes(
    project_id: str,
    rows: Iterable[RunRow],
    scale: Scale,
    names: Mapping[str, str],
    existing: Existing,
) -> list[TimelineLane]:
    by_target: dict[tuple[str, str], list[RunRow]] = defaultdict(list)
    for row in rows:
        by_target[_target(row.run)].append(row)
    return [
        TimelineLane(
            label=names.get(target, target),
            is_id=bool(kind) and target not in names,
            url=""
            if not kind or existing.has_gone(kind, target)
            else url_or_none(kind, project_id, target),
            runs=[_drawn(row, scale) for row in found],
        )
        for (kind, target), found in by_target.items()
    ]


def _target(run: Run) -> tuple[str, str]:
    """Return the kind and the id of what the run is about, or no kind and words."""
    if run.endpoint_id:
        return "endpoint", run.endpoint_id
    if run.branch_id:
        return "branch", run.branch_id
    return "", run.title if run.first.kind.endswith("_snapshot") else "The project"


def _drawn(row: RunRow, scale: Scale) -> TimelineRun:
    begin, end = row.run.began_at, row.run.ended_at or datetime.now(UTC)
    assert begin is not None
    bar = scale.bar((begin, max(begin, end)))
    middle = float(bar.left.rstrip("%")) + float(bar.width.rstrip("%")) / 2
    return TimelineRun(row, bar, f"{middle:.2f}%")


def _contents(request: ConsoleRequest, project_id: str) -> Shown:
    api = request.api
    hours = hours_asked(request.GET.get("hours", ""))
    latest, branches, project, endpoints = in_parallel(
        lambda: operations_since(api, project_id, hours),
        lambda: api.branches(project_id),
        lambda: api.project(project_id),
        or_none(lambda: api.endpoints(project_id)),
    )
    context = {
        "project": project,
        "timeline": timeline_of(project, latest, hours, branches, endpoints),
        "timeline_url": reverse("timeline", args=[project_id]),
    }
    return context, polling(request, latest, f"hours={hours}" if hours else "")


# The timeline as a picture, and as a table that says the same.
show = page_and_region(_contents, "timeline.html", "_timeline_page.html")


def operations_since(api: ManagementAPI, project_id: str, hours: int | None) -> Sequence[Operation]:
    since = stamp(begin_of(hours or DEFAULT_HOURS))
    return api.operations(project_id, limit=MAX_OPERATIONS, since=since).items


def timeline_of(
    project: Project,
    operations: Sequence[Operation],
    hours: int | None,
    branches: Sequence[Branch],
    endpoints: Sequence[Endpoint] | None,
) -> Timeline:
    existing = Existing.of(endpoints, branches)
    names = {branch.id: branch.name for branch in branches}
    shown = hours or hours_of(project.created_at)
    since = None if hours else project.created_at
    return timeline(project.id, operations, shown, names, existing, since=since)

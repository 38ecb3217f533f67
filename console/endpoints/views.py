"""The pages of an endpoint, of its Postgres settings, and of its metrics over a chosen time, as
charts and as tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from django.http import HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_safe

from console.api.errors import Failure
from console.api.fields import Page, stamp
from console.api.management_api import ManagementAPI
from console.api.parallel import first_problem, in_parallel, part
from console.api.resources.endpoints import Endpoint, Metrics
from console.api.resources.operations import Event, Operation
from console.endpoints.activity import (
    KINDS,
    MAX_LOOKBACK,
    History,
    active_spans,
    activity,
    from_events,
    from_operations,
)
from console.endpoints.charts import MINUTE, Axis, axis, draw
from console.endpoints.rows import PG_SETTING_ORDERS, PgSettingRow, endpoint_row
from console.operations.runs import OperationRow
from console.operations.timescale import Scale
from console.pages.listing import listing
from console.pages.live_regions import Polling, Shown, is_poll, page_and_region, polling
from console.pages.responses import crumbs
from console.pages.statuses import is_unfinished
from console.request import ConsoleRequest

PAGE_SIZE = 200
# A server that ignores the filter lists all of the project's operations. So many pages of them are
# searched at once; the user may continue from there.
MAX_PAGES = 5
MIN_FOUND = 20


@dataclass(frozen=True)
class OwnOperations:
    # The newest first.
    items: Sequence[Operation]
    # Requests the next, older ones; "" if there are none.
    cursor: str
    # How many of the project's operations were searched; 0 if the server knows the filter.
    looked_through: int


def own_operations(
    api: ManagementAPI, project_id: str, endpoint_id: str, *, cursor: str = ""
) -> OwnOperations:
    """Return the endpoint's newest operations, from `cursor` on. This takes one call if the server
    knows the filter."""
    found: list[Operation] = []
    looked_through = 0
    for _ in range(MAX_PAGES):
        page = api.operations(project_id, limit=PAGE_SIZE, cursor=cursor, endpoint_id=endpoint_id)
        own = [operation for operation in page.items if operation.endpoint_id == endpoint_id]
        found += own
        cursor = page.cursor
        if len(own) == len(page.items) and not looked_through:
            return OwnOperations(found, cursor, 0)
        looked_through += len(page.items)
        if not cursor or len(found) >= MIN_FOUND:
            break
    return OwnOperations(found, cursor, looked_through)


MAX_SHOWN_OPERATIONS = 10
# The most that the API lists.
MAX_SESSIONS = 100
# Of a week. For a busier endpoint, the band says since when it is complete.
MAX_READ_TURNS = 1000
START = "start_compute"
MAX_SHOWN_TURNS = 25


def _contents(request: ConsoleRequest, project_id: str, endpoint_id: str) -> Shown:
    api = request.api
    older = request.GET.get("older", "")
    own, project = in_parallel(
        lambda: own_operations(api, project_id, endpoint_id, cursor=older),
        lambda: api.project(project_id),
    )
    is_busy = any(map(is_unfinished, own.items))
    # While an operation is under way, the page polls often and then leaves out the history, which
    # takes long to read.
    is_with_history = not (older or (is_busy and is_poll(request)))
    endpoint, branches, events, starts = in_parallel(
        lambda: api.endpoint(project_id, endpoint_id),
        lambda: api.branches(project_id),
        part(lambda: read_turns(api, project_id, endpoint_id) if is_with_history else ()),
        # They are among its own operations, unless it has more than were read.
        part(
            lambda: _starts(api, project_id, endpoint_id) if is_with_history and own.cursor else ()
        ),
    )
    started = [*starts.items, *(one for one in own.items if one.action == START)]
    history = None
    if is_with_history and events.problem:
        history = from_operations(own.items, is_cut=bool(own.cursor))
    elif is_with_history:
        history = from_events(events.items, started, is_cut=events.is_cut)
    band = activity(endpoint, history, now=datetime.now(UTC)) if history else None
    context = {
        "project": project,
        "here": reverse("endpoint", args=[project_id, endpoint_id]),
        "row": endpoint_row(endpoint, branches, own.items),
        "endpoint": endpoint,
        "own": own.items,
        "operations": [*map(OperationRow, own.items[:MAX_SHOWN_OPERATIONS])],
        "looked_through": own.looked_through if own.cursor else 0,
        "further_back": own.cursor if own.looked_through else "",
        "is_older": bool(older),
        "more_query": "" if own.looked_through else f"?endpoint_id={endpoint_id}",
        "activity_problem": first_problem(events, starts),
        "activity": band,
        "turns": band.turns[:MAX_SHOWN_TURNS] if band else (),
    }
    return context, polling(request, own.items, urlencode({"older": older}) if older else "")


show = page_and_region(_contents, "endpoint.html", "_endpoint.html")


@require_safe
def sessions(request: ConsoleRequest, project_id: str, endpoint_id: str) -> HttpResponse:
    """Show what keeps the endpoint active: a part of its page or, without scripts, a page."""
    context: dict[str, Any] = {"project_id": project_id, "endpoint_id": endpoint_id}
    context["most_sessions"] = MAX_SESSIONS
    try:
        context["sessions"], context["suspends_at"] = request.api.sessions(project_id, endpoint_id)
    except Failure as problem:
        context["problem"] = problem
    if request.htmx:
        return render(request, "_endpoint_sessions.html", context)
    return render(request, "endpoint_sessions.html", context | {"crumbs": crumbs(request)})


def read_turns(api: ManagementAPI, project_id: str, endpoint_id: str) -> Page[Event]:
    """Read the recent events of its wakes, suspends and failures."""
    filters = {"endpoint_id": endpoint_id, "type": ",".join(KINDS), "since": _lookback_start()}
    return api.events(project_id, limit=MAX_READ_TURNS, **filters)


def _starts(api: ManagementAPI, project_id: str, endpoint_id: str) -> Page[Operation]:
    """Read the operations that started it, for how long each took."""
    filters = {"endpoint_id": endpoint_id, "action": START, "since": _lookback_start()}
    return api.operations(project_id, limit=MAX_READ_TURNS, **filters)


def _lookback_start() -> str:
    return stamp(datetime.now(UTC) - MAX_LOOKBACK)


def _pg_settings(request: ConsoleRequest, project_id: str, endpoint_id: str) -> Shown:
    offered, endpoint, project = in_parallel(
        lambda: request.api.pg_settings(project_id, endpoint_id),
        lambda: request.api.endpoint(project_id, endpoint_id),
        lambda: request.api.project(project_id),
    )
    found = listing(
        request,
        [PgSettingRow(one, endpoint.pg_settings.get(one.name, "")) for one in offered],
        words=lambda row: (row.setting.name, row.setting.description),
        orders=PG_SETTING_ORDERS,
    )
    context = {
        "project": project,
        "endpoint": endpoint,
        "here": reverse("endpoint_pg_settings", args=[project_id, endpoint_id]),
        "listing": found,
    }
    return context, Polling(found.query)


# The Postgres settings that the endpoint may have, and those that it has.
pg_settings = page_and_region(_pg_settings, "pg_settings.html", "_pg_settings.html")


# Seconds: the page polls at least as often, as new samples change no mark.
MAX_POLL_INTERVAL = 300


@dataclass(frozen=True)
class Range:
    label: str
    words: str
    length: timedelta
    # Seconds of a step, so that there are about as many points as can be told apart.
    step: int


RANGES: Mapping[str, Range] = {
    "1h": Range("1 h", "the last hour", timedelta(hours=1), 60),
    "6h": Range("6 h", "the last 6 hours", timedelta(hours=6), 300),
    "24h": Range("24 h", "the last 24 hours", timedelta(hours=24), 900),
    "7d": Range("7 d", "the last 7 days", timedelta(days=7), 7200),
}
DEFAULT_RANGE = "1h"


def _monitoring(request: ConsoleRequest, project_id: str, endpoint_id: str) -> Shown:
    api = request.api
    name = request.GET.get("range", DEFAULT_RANGE)
    name = name if name in RANGES else DEFAULT_RANGE
    chosen, now = RANGES[name], datetime.now(UTC)
    since = now - chosen.length
    project, endpoint, branches, found, turns = in_parallel(
        lambda: api.project(project_id),
        lambda: api.endpoint(project_id, endpoint_id),
        lambda: api.branches(project_id),
        part(lambda: [api.metrics(project_id, endpoint_id, since=since, step=chosen.step)]),
        part(lambda: read_turns(api, project_id, endpoint_id)),
    )
    here = reverse("endpoint_monitoring", args=[project_id, endpoint_id])
    context: dict[str, Any] = {
        "project": project,
        "endpoint": endpoint,
        "row": endpoint_row(endpoint, branches, ()),
        "here": here,
        "ranges": RANGES,
        "range": name,
        "chosen": chosen,
        "problem": found.problem,
        "is_offered": found.is_offered,
    }
    if found.items:
        (metrics,) = found.items
        scale = _scale(metrics, now)
        history = None if turns.problem else from_events(turns.items, (), is_cut=turns.is_cut)
        context["axis"] = _axis(scale, endpoint, history, now)
        context["charts"] = draw(metrics, scale) if metrics.points else ()
    pause = min(chosen.step // 2, MAX_POLL_INTERVAL)
    return context, Polling(f"range={name}", pause * 1000 if found.items else 0)


monitoring = page_and_region(_monitoring, "monitoring.html", "_monitoring.html")


def _scale(metrics: Metrics, now: datetime) -> Scale:
    """Return the scale of the charts. Its end is rounded up to a minute, as otherwise each picture
    would differ from the one before."""
    end = now.replace(second=0, microsecond=0) + MINUTE
    end = min(metrics.until, max(end, metrics.since + timedelta(seconds=metrics.step)))
    return Scale(metrics.since, end)


def _axis(scale: Scale, endpoint: Endpoint, history: History | None, now: datetime) -> Axis:
    if history is None:
        return axis(scale, scale.end, ())
    begun = max(scale.begin, history.known_since, endpoint.created_at or scale.begin)
    spans = active_spans(endpoint, history.turns, begun, scale.end)
    return axis(scale, begun, spans, now=now)

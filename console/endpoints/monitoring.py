"""The page that monitors an endpoint: its metrics over a chosen time, as charts and as tables."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.urls import reverse

from console.api.parallel import in_parallel, part
from console.api.resources.endpoints import Endpoint, Metrics
from console.endpoints.activity import History, active_spans, from_events
from console.endpoints.charts import MINUTE, Axis, axis, draw
from console.endpoints.rows import endpoint_row
from console.endpoints.views import read_turns
from console.operations.timescale import Scale
from console.pages.live_regions import Polling, Shown, page_and_region
from console.request import ConsoleRequest

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
DEFAULT = "1h"


def _contents(request: ConsoleRequest, project_id: str, endpoint_id: str) -> Shown:
    api = request.api
    name = request.GET.get("range", DEFAULT)
    name = name if name in RANGES else DEFAULT
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


show, live = page_and_region(_contents, "monitoring.html", "_monitoring.html")


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

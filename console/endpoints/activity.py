"""An endpoint's activity: when it was active and when idle, as strips, sentences and rows.

The history comes from the API's events or, if the server has none, from the endpoint's operations.
The time before the oldest of them is shown as unknown."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from statistics import median

from console.api.resources.endpoints import Endpoint
from console.api.resources.operations import Actor, Event, Operation
from console.operations.timescale import STRIP_WIDTH, Span, boxes
from console.pages.statuses import action_name, operation_status
from console.templatetags.console_tags import duration

WOKE, SLEPT, FAILED = "woke", "slept", "failed"
# If more than this fraction of a strip is empty, the reason is written there.
REASON_MIN_FRACTION = 0.4
MAX_LOOKBACK = timedelta(days=7)
# If less than this is known, it would be too narrow on the strip of a day. The last hour then gets
# a strip of its own.
MIN_DAY_STRIP = timedelta(hours=3)
# The kind of turn that each type of event stands for.
KINDS = {"endpoint.active": WOKE, "endpoint.idle": SLEPT, "operation.failed": FAILED}
WORDS = {WOKE: "Started", SLEPT: "Suspended", FAILED: "Failed"}


@dataclass(frozen=True)
class Turn:
    """A moment at which the endpoint woke or was suspended, or an operation of it failed."""

    at: datetime
    kind: str
    # None if the server does not say.
    by: Actor | None = None
    # Milliseconds: how long the start took. If a client woke the endpoint, it waited that long.
    took_ms: int | None = None
    is_wait: bool = False
    operation_id: str = ""
    what: str = ""

    @property
    def words(self) -> str:
        return f"{WORDS[self.kind]}: {self.what}" if self.what else WORDS[self.kind]


@dataclass(frozen=True)
class History:
    """The known turns, the oldest first, and the time since which none is missing."""

    turns: Sequence[Turn]
    known_since: datetime


def from_events(events: Sequence[Event], starts: Iterable[Operation], *, is_cut: bool) -> History:
    """Make a history of `events`, the newest first. `is_cut` means that older ones were not read.
    `starts` are the operations that started the compute; the durations are theirs."""
    took = {operation.id: operation for operation in starts}
    turns = [_of_event(event, took) for event in events if event.at and event.type in KINDS]
    oldest = events[-1].at if is_cut and events else None
    return _history(turns, oldest)


def from_operations(operations: Sequence[Operation], *, is_cut: bool) -> History:
    """Make a history of the endpoint's own operations, the newest first; `is_cut` as above."""
    turns = [turn for operation in operations if (turn := _of_operation(operation))]
    oldest = operations[-1].created_at if is_cut and operations else None
    return _history(turns, oldest)


def _history(turns: list[Turn], oldest: datetime | None) -> History:
    since = oldest or datetime.now(UTC) - MAX_LOOKBACK
    return History(sorted(turns, key=lambda turn: turn.at), since)


def _of_event(event: Event, operations: Mapping[str, Operation]) -> Turn:
    assert event.at is not None
    kind = KINDS[event.type]
    own = next((operations[one] for one in event.operation_ids if one in operations), None)
    is_client = bool(event.actor and event.actor.type == "client")
    return Turn(
        at=event.at,
        kind=kind,
        by=event.actor,
        took_ms=own.total_duration_ms if own and kind == WOKE else None,
        is_wait=is_client and kind == WOKE,
        operation_id=event.operation_ids[0] if event.operation_ids else "",
        what=_failure(event) if kind == FAILED else "",
    )


def _failure(event: Event) -> str:
    if event.operation is None:
        return ""
    name, error = action_name(event.operation.action), event.operation.error
    return f"{name}: {error}" if error else name


def _of_operation(operation: Operation) -> Turn | None:
    tone = operation_status(operation).tone
    kind = {"start_compute": WOKE, "suspend_compute": SLEPT}.get(operation.action)
    if tone == "bad":
        kind = FAILED
    if kind is None or tone not in ("good", "bad") or operation.updated_at is None:
        return None
    by = operation.initiator
    return Turn(
        at=operation.updated_at,
        kind=kind,
        by=by,
        took_ms=operation.total_duration_ms if kind == WOKE else None,
        is_wait=bool(by and by.type == "client"),
        operation_id=operation.id,
        what=action_name(operation.action) if kind == FAILED else "",
    )


@dataclass(frozen=True)
class Tick:
    # In percent of the strip.
    x: str
    words: str
    anchor: str


@dataclass(frozen=True)
class Band:
    """One strip, and a sentence that says the same."""

    name: str
    # SVG paths, in units of STRIP_WIDTH across and 40 down.
    known: str
    active: str
    wakes: str
    failures: str
    ticks: Sequence[Tick]
    summary: str
    # Why the left part of the strip is empty, placed in its middle; None if that part is small.
    before: Tick | None = None


@dataclass(frozen=True)
class Activity:
    bands: Sequence[Band]
    # The newest first.
    turns: Sequence[Turn]
    known_since: datetime
    is_whole: bool


def activity(endpoint: Endpoint, history: History, *, now: datetime) -> Activity:
    day = [f"{hours} h" for hours in (24, 18, 12, 6)]
    week = [f"{days} d" for days in range(7, 0, -1)]
    hour = [f"{minutes} min" for minutes in (60, 45, 30, 15)]
    hour_ago, day_ago = now - timedelta(hours=1), now - timedelta(days=1)
    created_at = endpoint.created_at or now - MAX_LOOKBACK
    bands = []
    if max(history.known_since, created_at) > now - MIN_DAY_STRIP:
        bands.append(_band("The last hour", endpoint, history, hour_ago, now, hour))
    # Of an endpoint that is younger, longer strips would show the same again, but smaller.
    if created_at < hour_ago:
        bands.append(_band("The last 24 hours", endpoint, history, day_ago, now, day))
    if created_at < day_ago:
        bands.append(_band("The last 7 days", endpoint, history, now - MAX_LOOKBACK, now, week))
    return Activity(
        bands=bands,
        turns=[turn for turn in reversed(history.turns) if turn.at >= now - MAX_LOOKBACK],
        known_since=history.known_since,
        is_whole=history.known_since <= now - MAX_LOOKBACK + timedelta(minutes=1),
    )


def _band(
    name: str,
    endpoint: Endpoint,
    history: History,
    start: datetime,
    end: datetime,
    ticks: Sequence[str],
) -> Band:
    begun = max(start, history.known_since, endpoint.created_at or start)
    spans = active_spans(endpoint, history.turns, begun, end)
    turns = [turn for turn in history.turns if begun <= turn.at <= end]
    why_empty = _why_empty(endpoint, begun, start)

    def x(moment: datetime) -> int:
        return round((moment - start) / (end - start) * STRIP_WIDTH)

    return Band(
        name=name,
        known=boxes([(x(begun), STRIP_WIDTH)]),
        # Widen very short activity, so that it stays visible.
        active=boxes([(x(low), max(x(high), x(low) + 2)) for low, high in spans]),
        wakes=_lines({x(turn.at) for turn in turns if turn.kind == WOKE}, "2v7"),
        failures=_lines({x(turn.at) for turn in turns if turn.kind == FAILED}, "2v36"),
        ticks=[
            *(
                Tick(f"{place / len(ticks) * 100:.3f}%", words, "start" if not place else "middle")
                for place, words in enumerate(ticks)
            ),
            Tick("100%", "now", "end"),
        ],
        summary=_summary(spans, turns, why_empty),
        before=Tick(f"{x(begun) / STRIP_WIDTH * 50:.3f}%", why_empty, "middle")
        if x(begun) > STRIP_WIDTH * REASON_MIN_FRACTION
        else None,
    )


def _why_empty(endpoint: Endpoint, begun: datetime, start: datetime) -> str:
    """Say why nothing is known between `start` and `begun`; "" if that is at most a minute."""
    if begun <= start + timedelta(minutes=1):
        return ""
    return "Before this endpoint existed" if begun == endpoint.created_at else "Unknown"


def active_spans(
    endpoint: Endpoint, turns: Sequence[Turn], begun: datetime, end: datetime
) -> list[Span]:
    """Return the periods between `begun` and `end` in which the endpoint was active."""
    changes = [turn for turn in turns if turn.kind in (WOKE, SLEPT)]
    first = changes[0].kind == SLEPT if changes else endpoint.current_state == "active"
    spans: list[Span] = []
    since = begun if first else None
    for turn in changes:
        if turn.kind == WOKE and since is None:
            since = turn.at
        elif turn.kind == SLEPT and since is not None:
            spans.append((since, turn.at))
            since = None
    if since is not None:
        spans.append((since, end))
    clipped = [(max(low, begun), min(high, end)) for low, high in spans]
    return [(low, high) for low, high in clipped if low < high]


def _lines(places: Iterable[int], way: str) -> str:
    return "".join(f"M{place} {way}" for place in sorted(places))


def _summary(spans: Sequence[Span], turns: Sequence[Turn], why_empty: str) -> str:
    active = sum(((high - low) for low, high in spans), timedelta())
    wakes = [turn for turn in turns if turn.kind == WOKE]
    waits = [turn.took_ms for turn in wakes if turn.is_wait and turn.took_ms is not None]
    failures = sum(turn.kind == FAILED for turn in turns)
    parts = [f"active for {_length(active)}" if active else "not active"]
    parts.append(f"started {_times(len(wakes))}" if wakes else "no starts")
    if len(waits) == 1:
        parts.append(f"the first connection waited {duration(waits[0])}")
    elif waits:
        usual, longest = duration(int(median(waits))), duration(max(waits))
        parts.append(f"first connections waited {usual} (median), at most {longest}")
    parts.append(f"failed {_times(failures)}" if failures else "no failures")
    words = f"{parts[0].capitalize()}, {', '.join(parts[1:])}."
    return f"{words} Earlier: {why_empty.lower()}." if why_empty else words


def _length(active: timedelta) -> str:
    if active < timedelta(seconds=1):
        return "less than a second"
    return duration(int(active.total_seconds() * 1000))


def _times(count: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(count, f"{count} times")

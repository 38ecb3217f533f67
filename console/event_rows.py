"""What the activity pages show: events by day, each with who, what changed, and where to look."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from itertools import groupby
from typing import Any

from django.urls import NoReverseMatch, reverse

from console.api_events import Event
from console.event_words import EventType, event_type

# Characters of a changed value: a whole list of settings would bury the rest.
LONGEST_VALUE = 160


@dataclass(frozen=True)
class Change:
    field: str
    # "" where there was, or is, nothing.
    before: str
    after: str


@dataclass(frozen=True)
class Link:
    label: str
    url: str
    is_id: bool = False


@dataclass(frozen=True)
class EventRow:
    event: Event
    type: EventType
    changes: Sequence[Change]
    links: Sequence[Link]

    @property
    def sentence(self) -> str:
        return self.event.summary or self.type.label


@dataclass(frozen=True)
class Day:
    name: str
    rows: Sequence[EventRow]


def days(events: Iterable[Event], *, with_project: bool) -> list[Day]:
    """The events by the day (UTC) they were on, in the order they come in."""
    rows = [_row(event, with_project=with_project) for event in events]
    return [Day(_day_name(day), list(found)) for day, found in groupby(rows, key=_day)]


def _day(row: EventRow) -> date | None:
    return row.event.at.astimezone(UTC).date() if row.event.at else None


def _day_name(day: date | None) -> str:
    if day is None:
        return "At some time"
    today = datetime.now(UTC).date()
    if day == today:
        return "Today"
    if day == today - timedelta(days=1):
        return "Yesterday"
    return f"{day:%A}, {day.day} {day:%B %Y}"


def _row(event: Event, *, with_project: bool) -> EventRow:
    return EventRow(
        event=event,
        type=event_type(event.type),
        changes=_changes(event),
        links=_links(event, with_project=with_project),
    )


def _changes(event: Event) -> list[Change]:
    return [
        change
        for name, value in event.changes.items()
        if isinstance(value, Mapping) and not _is_said_already(event, name)
        for change in _by_key(_field(name), value.get("from"), value.get("to"))
        if change.before != change.after
    ]


def _is_said_already(event: Event, name: str) -> bool:
    """What an operation has come to, or an endpoint: the sentence is about nothing else."""
    return (name == "status" and event.type.startswith("operation.")) or name == "current_state"


def _field(name: str) -> str:
    """Postgres's own settings keep their names."""
    _, of_postgres, setting = name.rpartition("pg_settings.")
    return setting if of_postgres else name.replace("_", " ")


def _by_key(name: str, before: Any, after: Any) -> list[Change]:
    """Of what has parts, those alone that differ."""
    if not (_has_parts(before) and _has_parts(after)) or not (before or after):
        return [Change(name, _words(before), _words(after))]
    old, new = before or {}, after or {}
    keys = [*old, *(key for key in new if key not in old)]
    return [
        Change(str(key), _words(old.get(key)), _words(new.get(key)))
        for key in keys
        if old.get(key) != new.get(key)
    ]


def _has_parts(value: Any) -> bool:
    return value is None or isinstance(value, Mapping)


def _words(value: Any) -> str:
    if value is None or value == "":
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 1]}…"


def _links(event: Event, *, with_project: bool) -> list[Link]:
    """To what the event is about, unless it tells of its end."""
    if not event.project_id:
        return []
    is_over = event.type.endswith((".deleted", ".expired"))
    found = []
    if with_project and not (is_over and event.type.startswith("project.")):
        found.append(_link(event.project_id, "project", event.project_id, is_id=True))
    if event.endpoint_id and not (is_over and event.type.startswith("endpoint.")):
        found.append(
            _link(event.endpoint_id, "endpoint", event.project_id, event.endpoint_id, is_id=True)
        )
    for place, operation_id in enumerate(event.operation_ids, start=1):
        label = "Operation" if len(event.operation_ids) == 1 else f"Operation {place}"
        found.append(_link(label, "operation", event.project_id, operation_id))
    return [link for link in found if link]


def _link(label: str, name: str, *ids: str, is_id: bool = False) -> Link | None:
    try:
        return Link(label, reverse(name, args=ids), is_id)
    except NoReverseMatch:
        # An id that no page of ours can have: of a server that makes them otherwise.
        return None

"""An event as pages show it, with its actor, its changes and its links."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from console.api.resources.operations import Event
from console.events.types import EventType, event_type
from console.forms.fields import WORDS_OF_ATTRIBUTES
from console.pages.addresses import NOT_READ, Existing, url_or_none
from console.pages.problems import quoted
from console.pages.statuses import action_name
from console.templatetags.console_tags import period, size

# Characters of a changed value. A whole list of settings would hide the other changes.
MAX_VALUE_LENGTH = 160
# The sentence about an operation, by the type of event.
SENTENCES = {
    "operation.finished": "The operation “{}” has finished",
    "operation.failed": "The operation “{}” has failed",
    "operation.cancelled": "The operation “{}” was cancelled",
    "operation.cancel_requested": "Cancellation of the operation “{}” was requested",
    "operation.retried": "The operation “{}” was retried",
}
# The words for a project's fields, by their names in events.
OF_PROJECTS = {
    "history_retention_seconds": "history retention",
    "default_endpoint_settings": "settings of new endpoints",
    "settings.allowed_ips": "allowed addresses",
    "settings.allowed_ips.ips": "allowed addresses",
    "settings.allowed_ips.protected_branches_only": "allowed addresses only for protected branches",
    "settings.block_public_connections": "blocked public connections",
    "settings.durability": "hosts of each commit",
    "settings.enable_logical_replication": "logical replication",
    "settings.quota.active_time_seconds": "quota of active time",
    "settings.quota.compute_time_seconds": "quota of compute time",
    "settings.quota.data_transfer_bytes": "quota of data transfer",
    "settings.quota.logical_size_bytes": "quota of the data's size",
    "settings.quota.written_data_bytes": "quota of written data",
}


@dataclass(frozen=True)
class Change:
    field: str
    # "" if the value was, or is, empty.
    before: str
    after: str


@dataclass(frozen=True)
class Link:
    label: str
    # "" if it is deleted, or if its id cannot be part of an address.
    url: str
    # What it leads to: "project", "endpoint", "branch" or "run".
    kind: str
    # Whether the label is an id, because there is no name.
    is_id: bool = False
    is_gone: bool = False


@dataclass(frozen=True)
class EventRow:
    event: Event
    type: EventType
    changes: Sequence[Change]
    links: Sequence[Link]

    @property
    def sentence(self) -> str:
        """What happened; for an operation that failed, without the reason."""
        return self._sentence_and_reason[0]

    @property
    def reason(self) -> str:
        return self._sentence_and_reason[1]

    @cached_property
    def _sentence_and_reason(self) -> tuple[str, str]:
        event = self.event
        if event.operation and (sentence := SENTENCES.get(event.type)):
            return sentence.format(action_name(event.operation.action)), event.operation.error
        summary = event.summary or self.type.label
        # The sentence may end with the names of the changed fields, in an order of its own.
        beginning, _, names = summary.rpartition(": ")
        if names and set(names.split(", ")) == set(event.changes):
            summary = f"{beginning}: {', '.join(_field(name) for name in event.changes)}"
        return quoted(summary), ""


# What exists in each project, by project id: None if the project is deleted, NOT_READ if that has
# not been read.
Known = Mapping[str, Existing | None]


def event_rows(
    events: Iterable[Event], known: Known, names: Mapping[str, str], *, with_project: bool
) -> list[EventRow]:
    """Make the rows, in the order of the events. `names` are the names of projects and branches, by
    id."""
    return [
        event_row(event, known.get(event.project_id, NOT_READ), names, with_project=with_project)
        for event in events
    ]


def event_row(
    event: Event,
    existing: Existing | None,
    names: Mapping[str, str],
    *,
    with_project: bool = False,
) -> EventRow:
    """Make a row. `existing` is what exists in the event's project; None if the project is
    deleted."""
    return EventRow(
        event=event,
        type=event_type(event.type),
        changes=_changes(event),
        links=_links(event, existing, names, with_project=with_project),
    )


def _changes(event: Event) -> list[Change]:
    return [
        change
        for name, value in event.changes.items()
        if isinstance(value, Mapping) and not _is_in_sentence(event, name)
        for change in _by_key(name, value.get("from"), value.get("to"))
        if change.before != change.after
    ]


def _is_in_sentence(event: Event, name: str) -> bool:
    """Return whether the event's sentence already states this change, as it does for an outcome."""
    return (name == "status" and event.type.startswith("operation.")) or name == "current_state"


def _field(name: str) -> str:
    """Return the name of a field in words. Postgres's settings keep their own names."""
    _, of_postgres, setting = name.rpartition("pg_settings.")
    if of_postgres:
        return setting
    known = OF_PROJECTS.get(name) or WORDS_OF_ATTRIBUTES.get(name)
    return known or name.removeprefix("settings.").replace("_", " ").replace(".", ": ")


def _by_key(name: str, before: Any, after: Any) -> list[Change]:
    """Return the change or, if both values are objects, one change per key that differs."""
    if not (_may_be_object(before) and _may_be_object(after)) or not (before or after):
        return [Change(_field(name), _format_value(name, before), _format_value(name, after))]
    old, new = before or {}, after or {}
    keys = [*old, *(key for key in new if key not in old)]
    return [
        Change(str(key), _shortened(old.get(key)), _shortened(new.get(key)))
        for key in keys
        if old.get(key) != new.get(key)
    ]


def _may_be_object(value: Any) -> bool:
    return value is None or isinstance(value, Mapping)


def _format_value(name: str, value: Any) -> str:
    """Return the value in words. Of a project, seconds and bytes are amounts."""
    if name not in OF_PROJECTS or isinstance(value, bool) or not isinstance(value, int):
        return _shortened(value)
    if value == 0:
        return "none"
    return period(value) if name.endswith("_seconds") else size(value)


def _shortened(value: Any) -> str:
    if value is None or value == "":
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MAX_VALUE_LENGTH else f"{text[: MAX_VALUE_LENGTH - 1]}…"


def _links(
    event: Event, existing: Existing | None, names: Mapping[str, str], *, with_project: bool
) -> list[Link]:
    project_id = event.project_id
    if not project_id:
        return []
    is_over = event.type.endswith((".deleted", ".expired"))
    about, _, _ = event.type.partition(".")
    gone = existing is None
    existing = existing or NOT_READ
    found = []
    if with_project:
        is_gone = gone or (is_over and about == "project")
        found.append(_link(names.get(project_id, ""), "project", project_id, is_gone=is_gone))
    for kind, thing_id in (("endpoint", event.endpoint_id), ("branch", event.branch_id)):
        if thing_id:
            is_gone = gone or (is_over and about == kind) or existing.has_gone(kind, thing_id)
            # An endpoint has no name; that of its branch says more than its id.
            name = "" if is_gone and kind == "endpoint" else names.get(event.branch_id, "")
            found.append(_link(name, kind, project_id, thing_id, is_gone=is_gone))
            break
    # The operations of one request are shown on one page, to which the first one leads.
    if event.operation_ids and not gone:
        operation_id = event.operation_ids[0]
        found.append(Link("View run", url_or_none("operation", project_id, operation_id), "run"))
    return [link for link in found if link.kind != "run" or link.url]


def _link(label: str, kind: str, *ids: str, is_gone: bool) -> Link:
    url = "" if is_gone else url_or_none(kind, *ids)
    return Link(label or ids[-1], url, kind, is_id=not label, is_gone=is_gone)

"""Makes events, writes them in the transaction of the change that they describe, and has their JSON
form, which lists, streams and webhooks share.

record(happened(EventType.BRANCH_UPDATED, account_id=…, branch=branch, summary="…"))
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC
from typing import Any

from django.db import connection
from psycopg.types.json import Jsonb

from controlplane.actors import Actor, current_actor
from controlplane.events.types import EventType
from controlplane.models import Branch, Endpoint, Event, Operation, Project

# Fields of nested objects are named with dots, such as settings.pg_settings.x, down to this level.
MAX_DEPTH = 3
# Characters of a value as JSON, and the number of fields. An event is a line in a list, not a copy
# of the resource.
MAX_VALUE_LENGTH, MAX_FIELDS = 500, 50

Changes = dict[str, dict[str, Any]]


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> Changes:
    """The fields whose values differ. A field that is missing on one side is null there. Beyond
    MAX_FIELDS, the field "…" says how many more there are."""
    found = _differences(before, after, depth=1)
    # A quota of 0 is none.
    for name in [name for name in found if name.startswith("settings.quota.")]:
        if not found[name]["from"] and not found[name]["to"]:
            del found[name]
    kept = dict(list(found.items())[:MAX_FIELDS])
    if more := len(found) - len(kept):
        kept["…"] = {"from": None, "to": f"and {more} more fields"}
    return kept


def made_with(**fields: Any) -> Changes:
    """The fields of a new resource. Fields that are None are left out."""
    return differences({}, fields)


def _differences(before: Mapping[str, Any], after: Mapping[str, Any], *, depth: int) -> Changes:
    found: Changes = {}
    for name in dict.fromkeys([*before, *after]):
        was, is_now = before.get(name), after.get(name)
        if was == is_now:
            continue
        if depth < MAX_DEPTH and _is_object(was) and _is_object(is_now):
            inner = _differences(was or {}, is_now or {}, depth=depth + 1)
            found.update((f"{name}.{field}", values) for field, values in inner.items())
        else:
            found[name] = {"from": _cut(was), "to": _cut(is_now)}
    return found


def _is_object(value: Any) -> bool:
    """True for a dict and for None, which counts as an empty object; false and 0 are values."""
    return value is None or isinstance(value, dict)


def _cut(value: Any) -> Any:
    """The value, or the beginning of its text if it is too long."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return value if len(text) <= MAX_VALUE_LENGTH else f"{text[:MAX_VALUE_LENGTH]}…"


# Characters. A summary is one sentence, but an operation's error in it may be long.
MAX_SUMMARY_LENGTH = 1000

# The statement is written by hand because a client that wakes its endpoint waits for it twice, and
# Django would take about as long to build it as the database takes to execute it. The database sets
# the event's id and transaction.
COLUMNS = (
    *("account_id", "type", "project_id", "branch_id", "endpoint_id", "operation_ids"),
    *("actor_type", "actor_name", "api_key_id", "address", "at", "summary"),
    *("changes", "operation"),
)
INSERT = f"INSERT INTO controlplane_event ({', '.join(COLUMNS)}) VALUES"
ROW = f"({', '.join(['%s'] * len(COLUMNS))})"

# The events that were recorded within `together`; None outside of it.
_gathered: ContextVar[list[Event] | None] = ContextVar("events", default=None)


def happened(
    kind: EventType,
    *,
    summary: str,
    account_id: int | None,
    project: Project | str | None = None,
    branch: Branch | str | None = None,
    endpoint: Endpoint | str | None = None,
    operations: Iterable[Operation] = (),
    changes: Mapping[str, Mapping[str, Any]] | None = None,
    operation: Mapping[str, Any] | None = None,
    actor: Actor | None = None,
) -> Event:
    """A new event, which is not written yet. Without `actor`, it has the current actor.

    `changes` are {"from": …, "to": …} by field. `operation` is the {"id", "action", "error",
    "duration_ms"} of the operation that the event is about. The caller must put no secrets into
    them or into the summary.
    """
    by = actor or current_actor()
    return Event(
        account_id=account_id,
        type=kind,
        project_id=_id_of(project),
        branch_id=_id_of(branch),
        endpoint_id=_id_of(endpoint),
        operation_ids=[operation.id for operation in operations],
        actor_type=by.type,
        actor_name=by.name,
        api_key_id=by.api_key_id,
        address=by.address,
        summary=summary[:MAX_SUMMARY_LENGTH],
        changes=changes or {},
        operation=operation,
    )


def record(*events: Event) -> None:
    """Write the events in one statement; within `together`, at the end of its block. The caller
    must be in the transaction of the change."""
    gathered = _gathered.get()
    if gathered is not None:
        gathered.extend(events)
    elif events:
        _write(events)


@contextmanager
def together() -> Iterator[None]:
    """Write all events that are recorded in this block in one statement, at its end. If the block
    raises an exception, none is written. Enter this inside the transaction, as the innermost
    block."""
    if _gathered.get() is not None:
        yield
        return
    events: list[Event] = []
    token = _gathered.set(events)
    try:
        yield
    finally:
        _gathered.reset(token)
    if events:
        _write(events)


def _write(events: Sequence[Event]) -> None:
    values: list[Any] = []
    for event in events:
        values += [getattr(event, name) for name in COLUMNS[:-2]]
        values += [Jsonb(event.changes), event.operation and Jsonb(event.operation)]
    rows = ", ".join([ROW] * len(events))
    with connection.cursor() as cursor:
        cursor.execute(f"{INSERT} {rows} RETURNING id", values)
        for event, (number,) in zip(events, cursor.fetchall(), strict=True):
            event.id = number


def _id_of(row: Project | Branch | Endpoint | str | None) -> str | None:
    return row if row is None or isinstance(row, str) else row.id


def names_of(changes: Changes) -> str:
    """The names of the changed fields, for a summary."""
    return ", ".join(changes)


def of_project(
    kind: EventType,
    project: Project,
    summary: str,
    operations: Iterable[Operation],
    changes: Changes | None = None,
    **others: Any,
) -> Event:
    """An event about a project. `others` are more arguments of `happened`."""
    return happened(
        kind,
        summary=summary,
        account_id=project.account_id,
        project=project,
        operations=operations,
        changes=changes,
        **others,
    )


def of_operations(
    kind: EventType,
    project: Project,
    first: Operation,
    summary: str,
    operations: Iterable[Operation],
) -> Event:
    """An event about the branch and endpoint of the operation `first`."""
    return of_project(
        kind,
        project,
        summary,
        operations,
        branch=first.branch_id,
        endpoint=first.endpoint_id,
        operation=fields_of(first),
    )


def fields_of(
    operation: Operation, error: str | None = None, duration_ms: int | None = None
) -> dict[str, str | int | None]:
    """The operation that an event is about, without what another field of the event has."""
    return {
        "id": str(operation.id),
        "action": str(operation.action),
        "error": error and error[:MAX_SUMMARY_LENGTH],
        "duration_ms": duration_ms,
    }


def of_branch(
    kind: EventType,
    project: Project,
    branch: Branch | str | None,
    summary: str,
    operations: Iterable[Operation] = (),
    changes: Changes | None = None,
) -> Event:
    """An event about a branch, about something on it, or about a snapshot of it. `branch` may be
    the branch's id."""
    return of_project(kind, project, summary, operations, changes, branch=branch)


def of_endpoint(
    kind: EventType,
    project: Project,
    endpoint: Endpoint,
    summary: str,
    operations: Iterable[Operation],
    changes: Changes | None = None,
    *,
    actor: Actor | None = None,
) -> Event:
    return of_project(
        kind,
        project,
        summary,
        operations,
        changes,
        branch=endpoint.branch_id,
        endpoint=endpoint,
        actor=actor,
    )


def as_json(event: Event) -> dict[str, Any]:
    """The event as a JSON object. Every field is always present, and null if it does not apply."""
    return {
        "id": str(event.id),
        "type": str(event.type),
        "project_id": event.project_id,
        "branch_id": event.branch_id,
        "endpoint_id": event.endpoint_id,
        "operation_ids": [str(operation_id) for operation_id in event.operation_ids],
        "actor": {
            "type": str(event.actor_type),
            "name": event.actor_name,
            "api_key_id": event.api_key_id,
            "address": event.address,
        },
        # In microseconds, so that the events of one second have an order.
        "at": event.at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "summary": event.summary,
        "changes": event.changes,
        "operation": event.operation,
    }


def as_message(event: Event) -> dict[str, Any]:
    """The message about the event for a webhook's receiver, in the form of Standard Webhooks."""
    shape = as_json(event)
    return {"type": shape["type"], "timestamp": shape["at"], "data": shape}

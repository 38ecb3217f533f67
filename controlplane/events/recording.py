"""Writes events, in the transaction of the change that they describe.

record(happened(EventType.BRANCH_UPDATED, account_id=…, branch=branch, summary="…"))
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from django.db import connection
from psycopg.types.json import Jsonb

from controlplane.actors import Actor, current_actor
from controlplane.events.types import EventType
from controlplane.models import Branch, Endpoint, Event, Operation, Project

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

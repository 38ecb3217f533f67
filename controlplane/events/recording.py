"""Writes events: in the transaction of the change that they tell of, by whoever makes it.

record(happened(EventType.BRANCH_UPDATED, account_id=…, branch=branch, summary="…"))
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from controlplane.actors import Actor, current_actor
from controlplane.events.types import EventType
from controlplane.models import Branch, Endpoint, Event, Operation, Project

# Characters. A summary is one sentence, and an operation's error in it may be long.
LONGEST_SUMMARY = 1000

# What was recorded within `together`; None outside of it.
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
    actor: Actor | None = None,
) -> Event:
    """An event, not yet written: what has happened, and by whom; without `actor`, by whoever
    acts now.

    `changes` are {"from": …, "to": …} by field. The caller leaves secrets out of them and of the
    summary.
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
        summary=summary[:LONGEST_SUMMARY],
        changes=changes or {},
    )


def record(*events: Event) -> None:
    """Write the events, in one statement. The caller is in the transaction of the change."""
    gathered = _gathered.get()
    if gathered is not None:
        gathered.extend(events)
    elif events:
        _write(events)


@contextmanager
def together() -> Iterator[None]:
    """Write what is recorded in this block in one statement, at its end; what the block raises
    leaves nothing written. To be entered within the transaction, as its innermost."""
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


def _write(events: Iterable[Event]) -> None:
    Event.objects.bulk_create(events)


def _id_of(row: Project | Branch | Endpoint | str | None) -> str | None:
    return row if row is None or isinstance(row, str) else row.id

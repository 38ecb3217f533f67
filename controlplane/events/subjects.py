"""Makes an event about a project, a branch, an endpoint or operations, for the functions of
`changes` and `catalog`."""

from collections.abc import Iterable

from controlplane.actors import Actor
from controlplane.events.differences import Changes
from controlplane.events.recording import MAX_SUMMARY_LENGTH, happened
from controlplane.events.types import EventType
from controlplane.models import (
    Branch,
    Endpoint,
    Event,
    Operation,
    Project,
)


def names_of(changes: Changes) -> str:
    """The names of the changed fields, for a summary."""
    return ", ".join(changes)


def of_project(
    kind: EventType,
    project: Project,
    summary: str,
    operations: Iterable[Operation],
    changes: Changes | None = None,
) -> Event:
    return happened(
        kind,
        summary=summary,
        account_id=project.account_id,
        project=project,
        operations=operations,
        changes=changes,
    )


def of_operations(
    kind: EventType,
    project: Project,
    first: Operation,
    summary: str,
    operations: Iterable[Operation],
) -> Event:
    """An event about the branch and endpoint of the operation `first`."""
    return happened(
        kind,
        summary=summary,
        account_id=project.account_id,
        project=project,
        branch=first.branch_id,
        endpoint=first.endpoint_id,
        operations=operations,
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
    return happened(
        kind,
        summary=summary,
        account_id=project.account_id,
        project=project,
        branch=branch,
        operations=operations,
        changes=changes,
    )


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
    return happened(
        kind,
        summary=summary,
        account_id=project.account_id,
        project=project,
        branch=endpoint.branch_id,
        endpoint=endpoint,
        operations=operations,
        changes=changes,
        actor=actor,
    )

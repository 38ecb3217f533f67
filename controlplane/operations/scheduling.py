"""Schedules operations and hands them over to the engine.

An operation is a row first and a job second. One transaction writes the resource's
change, its operations and the queue's job. Every caller has locked the project's row
(`locks`), so what one sees of a project's unfinished operations stays true until it
commits; different projects never wait for each other.
"""

import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.utils import timezone

from controlplane.actors import current_actor
from controlplane.logs import current
from controlplane.models import (
    HANDED_OVER,
    UNFINISHED,
    Action,
    Branch,
    Endpoint,
    Lane,
    Operation,
    OperationStatus,
    Project,
)
from controlplane.operations.actions import ACTIONS
from controlplane.operations.details import Details
from controlplane.operations.lanes import enter_lane, move_ahead
from controlplane.operations.queue import enqueue_operation

# How many of a project's operations are handed over at once, in each lane. The others stay
# `scheduling`, and follow in order as these end.
MOST_OF_A_PROJECT = 8


class RegionAway(Exception):
    """Nobody is there who would run the operations. Nothing was written: to try again is safe."""


@dataclass(frozen=True)
class Step:
    """One operation to be scheduled."""

    action: Action
    branch: Branch | None = None
    endpoint: Endpoint | None = None
    # Branches it works on beyond its own.
    also_holds: Sequence[Branch] = ()
    holds_project: bool = False
    # Of the class that the table of actions names; None is as good as its defaults.
    details: Details | None = None
    # The operation whose work this does anew.
    retry_of: Operation | None = None

    def __post_init__(self) -> None:
        expected = ACTIONS[self.action].details
        assert self.details is None or type(self.details) is expected, self

    @property
    def resources(self) -> list[str]:
        held = [self.endpoint, self.branch, *self.also_holds]
        return [row.id for row in held if row is not None]


def schedule(
    project: Project, steps: Sequence[Step], *, lane: Lane | None = None
) -> list[Operation]:
    """Write the steps as a chain of operations and dispatch what can run.

    All of a chain is of one lane: `lane`, else the least urgent that the table of actions has
    for its steps.

    The caller holds the project's lock. The first is `running` unless an earlier
    unfinished operation holds what it needs; the rest are `scheduling` (specification,
    section 4, rules 1, 2 and 7). Raises RegionAway.
    """
    if project.region.is_away:
        raise RegionAway(
            f'the region "{project.region_id}" does not answer, so nothing can be done there now; '
            "try again"
        )
    chain = uuid.uuid4()
    initiator = current_actor()
    lane = lane or max((ACTIONS[step.action].lane for step in steps), key=list(Lane).index)
    created_at = _next_created_at(project)
    operations = [
        Operation(
            project=project,
            branch=step.branch,
            endpoint=step.endpoint,
            action=step.action,
            status=OperationStatus.SCHEDULING,
            chain=chain,
            lane=lane,
            resources=[project.id] if step.holds_project else step.resources,
            details=step.details.as_json() if step.details else {},
            initiator_type=initiator.type,
            initiator_name=initiator.name,
            initiator_key_id=initiator.api_key_id,
            initiator_address=initiator.address,
            request_id=current("request"),
            retry_of=step.retry_of,
            created_at=created_at + timedelta(microseconds=position),
            updated_at=created_at + timedelta(microseconds=position),
        )
        for position, step in enumerate(steps)
    ]
    Operation.objects.bulk_create(operations)
    dispatched = {operation.id: operation for operation in dispatch(project)}
    return [dispatched.get(operation.id, operation) for operation in operations]


def dispatch(project: Project) -> list[Operation]:
    """Hand over every operation that no earlier unfinished one stands in the way of, as far as
    the project's share of its lane allows.

    The caller holds the project's lock. Returns what was handed over.
    """
    operations = unfinished(project.id)
    move_ahead(project, operations)
    under_way = Counter(
        row.lane
        for row in operations
        if row.status in HANDED_OVER and not row.waits_to_be_handed_over
    )
    held: set[str] = set()
    handed_over = []
    now = timezone.now()
    for operation in operations:
        if (
            operation.waits_to_be_handed_over
            and not _stands_behind(operation, held)
            and under_way[operation.lane] < MOST_OF_A_PROJECT
        ):
            if operation.status == OperationStatus.SCHEDULING:
                operation.status = OperationStatus.RUNNING
            operation.dispatched_at = now
            operation.updated_at = max(now, operation.updated_at)
            operation.save(update_fields=["status", "dispatched_at", "updated_at"])
            enqueue_operation(operation, project)
            under_way[operation.lane] += 1
            handed_over.append(operation)
        held.update(operation.resources)
    return handed_over


def hurry(project: Project, operations: Sequence[Operation], lane: Lane) -> None:
    """Have the unfinished operations, and what they stand behind, run in `lane` at least: they
    are what somebody in it has come to wait for. The caller holds the project's lock."""
    behind = [operation for operation in operations if lane.is_ahead_of(operation.lane)]
    for operation in behind:
        enter_lane(project, operation, lane)
    if behind:
        dispatch(project)


def unfinished(project_id: str) -> Sequence[Operation]:
    """The project's unfinished operations, oldest first."""
    return list(
        Operation.objects.filter(project_id=project_id, status__in=UNFINISHED).order_by(
            "created_at"
        )
    )


def _stands_behind(operation: Operation, held: set[str]) -> bool:
    """Whether an earlier operation holds something of this one's."""
    if operation.project_id in held:
        return True
    if operation.project_id in operation.resources:
        return bool(held)
    return not held.isdisjoint(operation.resources)


def _next_created_at(project: Project) -> datetime:
    """Now, or just after the project's newest operation: the list's cursor is the time alone."""
    newest = (
        Operation.objects.filter(project=project)
        .order_by("-created_at")
        .values_list("created_at", flat=True)
        .first()
    )
    now = timezone.now()
    return max(now, newest + timedelta(microseconds=1)) if newest else now

"""Schedules operations and hands them over to the engine.

An operation is a row first and a job second. One transaction writes the resource's
change, its operations and the queue's job. Every caller has locked the project's row
(`locks`), so what one sees of a project's unfinished operations stays true until it
commits; different projects never wait for each other.
"""

import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from controlplane import clock
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
from controlplane.models.reading import Reading
from controlplane.operations import story
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
    dispatch(project, new=operations)
    return operations


def dispatch(project: Project, *, new: Sequence[Operation] = ()) -> list[Operation]:
    """Hand over every operation that no earlier unfinished one stands in the way of, as far as
    the project's share of its lane allows, and note what each of the others waits for.

    The caller holds the project's lock. `new` are the newest, and are written here. Returns what
    was handed over.
    """
    operations = [*unfinished(project.id), *new]
    move_ahead(project, operations)
    under_way = Counter(
        row.lane
        for row in operations
        if row.status in HANDED_OVER and not row.waits_to_be_handed_over
    )
    # Of each resource, the last operation so far that holds it, by its place in the list.
    held: dict[str, int] = {}
    changed, handed_over = [], []
    for place, operation in enumerate(operations):
        if operation.waits_to_be_handed_over:
            behind = _stands_behind(operation, held)
            if behind is not None:
                is_news = story.wait(operation, operation_id=str(operations[behind].id))
            elif under_way[operation.lane] >= MOST_OF_A_PROJECT:
                is_news = story.wait(operation, operations_at_once=MOST_OF_A_PROJECT)
            else:
                _hand_over(operation)
                under_way[operation.lane] += 1
                handed_over.append(operation)
                is_news = True
            if is_news:
                changed.append(operation)
        held.update(dict.fromkeys(operation.resources, place))
    Operation.objects.bulk_create(new)
    written = {operation.id for operation in new}
    for operation in changed:
        if operation.id not in written:
            operation.save(update_fields=["status", "dispatched_at", "updated_at", "steps"])
    for operation in handed_over:
        enqueue_operation(operation, project)
    return handed_over


def _hand_over(operation: Operation) -> None:
    now = clock.now()
    if operation.status == OperationStatus.SCHEDULING:
        operation.status = OperationStatus.RUNNING
    operation.dispatched_at = now
    operation.updated_at = max(now, operation.updated_at)
    story.end_wait(operation, now)


def hurry(project: Project, operations: Sequence[Operation], lane: Lane) -> None:
    """Have the unfinished operations, and what they stand behind, run in `lane` at least: they
    are what somebody in it has come to wait for. The caller holds the project's lock."""
    behind = [operation for operation in operations if lane.is_ahead_of(operation.lane)]
    for operation in behind:
        enter_lane(project, operation, lane)
    if behind:
        dispatch(project)


# Each by its name, as the index has them.
_IS_UNFINISHED = f"""status IN ('{"', '".join(UNFINISHED)}')"""
UNFINISHED_OPERATIONS = Reading(
    Operation, f"WHERE t.project_id = %(project)s AND t.{_IS_UNFINISHED} ORDER BY t.created_at"
)
# For a `Reading` of a project's: whether `unfinished` would find any at that moment. Mostly there
# are none, and who reads needs no second statement.
_BUSY_ROWS = f"FROM controlplane_operation WHERE project_id = %(project)s AND {_IS_UNFINISHED}"
IS_BUSY = {"is_busy": f"EXISTS (SELECT {_BUSY_ROWS})"}


def unfinished_if_busy(row: Endpoint | Branch) -> Sequence[Operation]:
    """The project's unfinished operations, for a row that was read with IS_BUSY."""
    return unfinished(row.project_id) if row.__dict__["is_busy"] else []


def unfinished(project_id: str) -> Sequence[Operation]:
    """The project's unfinished operations, oldest first."""
    return UNFINISHED_OPERATIONS.rows(project=project_id)


def _stands_behind(operation: Operation, held: Mapping[str, int]) -> int | None:
    """The place of the last earlier operation that holds something of this one's."""
    if operation.project_id in operation.resources:
        return max(held.values(), default=None)
    wanted = (operation.project_id, *operation.resources)
    return max((held[one] for one in wanted if one in held), default=None)


def _next_created_at(project: Project) -> datetime:
    """Now, or just after the project's newest operation: the list's cursor is the time alone."""
    newest = (
        Operation.objects.filter(project=project)
        .order_by("-created_at")
        .values_list("created_at", flat=True)
        .first()
    )
    now = clock.now()
    return max(now, newest + timedelta(microseconds=1)) if newest else now

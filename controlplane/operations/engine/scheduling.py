"""Schedules operations and dispatches them to the queue.

An operation is first a row, then a job. One transaction writes the change of the resource, its
operations and the queue's job. Every caller has locked the project's row (`locks`), so what it
reads of the project's unfinished operations stays true until it commits. Different projects never
wait for each other.
"""

import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from controlplane import clock
from controlplane.actors import ActorType, current_actor
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
    RequestKind,
)
from controlplane.models.reading import Reading
from controlplane.operations.actions.table import actions
from controlplane.operations.details import Details
from controlplane.operations.engine import step_history
from controlplane.operations.locks import EndsRound
from controlplane.operations.queue.jobs import enqueue_operation, enter_lane, move_ahead

# The most operations of a project that are dispatched at once in each lane. The others stay
# `scheduling`, and follow in order as these end.
MAX_PER_PROJECT = 8

# The most unfinished operations of a project that callers' requests may add to: twice the branches
# of the largest projects. Each request about the project, and each end of an operation, reads all.
MAX_UNFINISHED = 1_000

# What a request is whose last step has the action, unless its caller says more.
KINDS: Mapping[Action, RequestKind] = {
    Action.CREATE_TIMELINE: RequestKind.CREATE_PROJECT,
    Action.CREATE_BRANCH: RequestKind.CREATE_BRANCH,
    Action.START_COMPUTE: RequestKind.START_ENDPOINT,
    Action.SUSPEND_COMPUTE: RequestKind.SUSPEND_ENDPOINT,
    Action.APPLY_CONFIG: RequestKind.CHANGE_ENDPOINT,
    Action.CHECK_AVAILABILITY: RequestKind.CHECK_ENDPOINT,
    Action.DELETE_TIMELINE: RequestKind.DELETE_BRANCH,
    Action.DELETE_TENANT: RequestKind.DELETE_PROJECT,
    Action.UPGRADE_PROJECT: RequestKind.UPGRADE_PROJECT,
    Action.RESTORE_FROM_STORE: RequestKind.RESTORE_LOST_BRANCH,
    Action.MOVE_PROJECT: RequestKind.MOVE_PROJECT,
}


class HostAway(EndsRound):
    """No worker of the host is there to run the operations. Nothing was written, so it is safe to
    try again."""


class TooManyUnfinished(Exception):
    """The project has as many unfinished operations as callers' requests may add to. Nothing was
    written, so it is safe to try again."""


@dataclass(frozen=True)
class Step:
    """One operation to be scheduled."""

    action: Action
    branch: Branch | None = None
    endpoint: Endpoint | None = None
    # The branches it works on besides its own.
    also_holds: Sequence[Branch] = ()
    holds_project: bool = False
    # An object of the class that the table of actions names; None means its defaults.
    details: Details | None = None
    # The operation that this one is a retry of.
    retry_of: Operation | None = None

    def __post_init__(self) -> None:
        expected = actions()[self.action].details
        assert self.details is None or type(self.details) is expected, self

    @property
    def resources(self) -> list[str]:
        held = [self.endpoint, self.branch, *self.also_holds]
        return [row.id for row in held if row is not None]


def schedule(
    project: Project,
    steps: Sequence[Step],
    kind: str = "",
    *,
    title: str = "",
    lane: Lane | None = None,
    earlier: Sequence[Operation] | None = None,
) -> list[Operation]:
    """Write the steps as a chain of operations and dispatch those that can run.

    `kind`, a RequestKind, and `title` say what the request was: by default, what the last step
    does, and the kind's own title. `earlier` is as in `dispatch`.

    All operations of a chain have one lane: `lane`, or by default the least urgent of the lanes
    that the table of actions has for its steps.

    The caller holds the project's lock. The first operation is `running` unless an earlier
    unfinished operation holds what it needs; the rest are `scheduling` (specification, section 4,
    rules 1, 2 and 7). Raises HostAway; TooManyUnfinished at callers' requests, except for one that
    ends or changes the project as a whole. What the platform schedules, it has bounded itself.
    """
    if project.host.is_away:
        raise HostAway(
            f'the host "{project.host_id}" does not answer, so nothing can be done there now; '
            "try again"
        )
    chain = uuid.uuid4()
    initiator = current_actor()
    lane = lane or max((actions()[step.action].lane for step in steps), key=list(Lane).index)
    last = steps[-1]
    kind = kind or KINDS[last.action]
    if not title:
        branch, endpoint = last.branch and last.branch.name, last.endpoint and last.endpoint.id
        title = RequestKind(kind).label.format(branch=branch, endpoint=endpoint)
    created_at = _next_created_at(project)
    operations = [
        Operation(
            project=project,
            branch=step.branch,
            endpoint=step.endpoint,
            action=step.action,
            status=OperationStatus.SCHEDULING,
            chain=chain,
            kind=kind,
            title=title,
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
    dispatch(project, new=operations, earlier=earlier)
    return operations


def dispatch(
    project: Project,
    *,
    new: Sequence[Operation] = (),
    earlier: Sequence[Operation] | None = None,
) -> list[Operation]:
    """Dispatch every operation that no earlier unfinished operation blocks, up to the project's
    limit in its lane, and record what each of the others waits for.

    The caller holds the project's lock. `new` are the newest operations; this function writes them.
    `earlier` are the other unfinished ones, if the caller has read them under the lock. Returns the
    operations that were dispatched. Raises TooManyUnfinished as `schedule` does.
    """
    operations = [*(unfinished(project.id) if earlier is None else earlier), *new]
    callers = (ActorType.USER, ActorType.RETRY)
    if (
        new
        and len(operations) > MAX_UNFINISHED
        and all(row.initiator_type in callers and project.id not in row.resources for row in new)
    ):
        words = f"a project may have {MAX_UNFINISHED:,} unfinished operations: try again later"
        raise TooManyUnfinished(words)
    move_ahead(project, operations)
    under_way = Counter(
        row.lane
        for row in operations
        if row.status in HANDED_OVER and not row.waits_to_be_handed_over
    )
    # For each resource, the index of the last operation so far that holds it.
    held: dict[str, int] = {}
    changed, handed_over = [], []
    for place, operation in enumerate(operations):
        if operation.waits_to_be_handed_over:
            behind = _last_blocker(operation, held)
            if behind is not None:
                is_news = step_history.wait(operation, operation_id=str(operations[behind].id))
            elif under_way[operation.lane] >= MAX_PER_PROJECT:
                is_news = step_history.wait(operation, operations_at_once=MAX_PER_PROJECT)
            else:
                _enqueue(operation)
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


def _enqueue(operation: Operation) -> None:
    now = clock.now()
    if operation.status == OperationStatus.SCHEDULING:
        operation.status = OperationStatus.RUNNING
    operation.dispatched_at = now
    operation.updated_at = max(now, operation.updated_at)
    step_history.end_wait(operation, now)


def expedite(project: Project, operations: Sequence[Operation], lane: Lane) -> None:
    """Move the given unfinished operations, and those that they wait for, to `lane`, unless they
    are in a more urgent one: an operation or client of that lane waits for them now. The caller
    holds the project's lock."""
    behind = [operation for operation in operations if lane.is_ahead_of(operation.lane)]
    for operation in behind:
        enter_lane(project, operation, lane)
    if behind:
        dispatch(project)


# The statuses are written out one by one, as in the index's condition.
_IS_UNFINISHED = f"""status IN ('{"', '".join(UNFINISHED)}')"""
UNFINISHED_OPERATIONS = Reading(
    Operation, f"WHERE t.project_id = %(project)s AND t.{_IS_UNFINISHED} ORDER BY t.created_at"
)
NEWEST_OPERATION = Reading(
    Operation, "WHERE t.project_id = %(project)s ORDER BY t.created_at DESC LIMIT 1"
)
# An extra column for a `Reading` of a project's rows: whether `unfinished` would find any operation
# at that moment. Mostly it would not, and the reader needs no second statement.
_BUSY_ROWS = f"FROM controlplane_operation WHERE project_id = %(project)s AND {_IS_UNFINISHED}"
IS_BUSY = {"is_busy": f"EXISTS (SELECT {_BUSY_ROWS})"}


def unfinished_if_busy(row: Endpoint | Branch) -> Sequence[Operation]:
    """Return the project's unfinished operations, for a row that was read with IS_BUSY."""
    return unfinished(row.project_id) if row.__dict__["is_busy"] else []


def unfinished(project_id: str) -> Sequence[Operation]:
    """Return the project's unfinished operations, oldest first."""
    return UNFINISHED_OPERATIONS.rows(project=project_id)


def _last_blocker(operation: Operation, held: Mapping[str, int]) -> int | None:
    """Return the index of the last earlier operation that holds something this one needs; None if
    there is none."""
    if operation.project_id in operation.resources:
        return max(held.values(), default=None)
    wanted = (operation.project_id, *operation.resources)
    return max((held[one] for one in wanted if one in held), default=None)


def _next_created_at(project: Project) -> datetime:
    """Return the present time, or a time just after the project's newest operation: the cursor of
    the operations' list is the time alone."""
    newest = NEWEST_OPERATION.first(project=project.id)
    now = clock.now()
    return max(now, newest.created_at + timedelta(microseconds=1)) if newest else now


# The most children named in the message that refuses a deletion.
MAX_NAMED = 5


def deletion_refusal(branch: Branch) -> str | None:
    """Return why the branch cannot be deleted, as a text for users; None if it can be deleted."""
    if branch.default:
        return "the default branch cannot be deleted; set another one first"
    if branch.protected:
        return "the branch is protected; end its protection first"
    if children := children_of(branch):
        return f"the branch has children: {', '.join(children)}; delete them first"
    return None


def children_of(branch: Branch) -> list[str]:
    """Return the ids of the branch's first MAX_NAMED visible children, oldest first."""
    children = Branch.objects.filter(parent=branch, deleted_at=None, hidden=False)
    return list(children.order_by("created_at").values_list("id", flat=True)[:MAX_NAMED])


def deletion_of(branch: Branch, operations: Sequence[Operation]) -> list[Operation]:
    """Return those of the project's unfinished operations (oldest first) that delete the branch;
    an empty list if none does."""
    of_branch = [row for row in operations if row.branch_id == branch.id]
    for position, operation in enumerate(of_branch):
        if operation.action == Action.DELETE_TIMELINE:
            return [row for row in of_branch[: position + 1] if row.chain == operation.chain]
    return []


def schedule_deletion(project: Project, branch: Branch) -> list[Operation]:
    """Schedule the deletion of the branch, its data and its endpoint. They are deleted when the
    operations have ended."""
    steps = []
    endpoint = Endpoint.objects.filter(branch=branch, deleted_at=None).first()
    if endpoint:
        steps.append(Step(Action.SUSPEND_COMPUTE, branch=branch, endpoint=endpoint))
    steps.append(Step(Action.DELETE_TIMELINE, branch=branch))
    if branch.hidden:
        return schedule(project, steps, RequestKind.REMOVE_DATA)
    title = f"Delete branch {branch.name} and its endpoint" if endpoint else ""
    return schedule(project, steps, title=title)

"""Determines the steps that retry failed or cancelled operations, and whether that still makes
sense. Changes since then are taken into account: the rows get the values that the operations were
to apply, if the present rules allow it.

The callers hold the project's lock.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from controlplane import clock
from controlplane.events.recording import happened, record
from controlplane.events.types import EventType
from controlplane.models import (
    APPLIED,
    GIVEN_UP,
    Action,
    Branch,
    BranchState,
    Configuration,
    Endpoint,
    EndpointState,
    Operation,
    OperationStatus,
    Project,
)
from controlplane.operations.actions.table import MAKES_BRANCH, details_of
from controlplane.operations.details import ApplyConfigDetails
from controlplane.operations.engine.replacing import replacement_of
from controlplane.operations.engine.scheduling import Step, unfinished
from controlplane.services.branches import (
    refuse_deletion,
    refuse_while_deleting,
    refuse_while_restoring,
)
from controlplane.services.creation import creation_steps
from controlplane.services.endpoints import refuse_occupied, refuse_while_configured
from controlplane.services.errors import Conflict, Unprocessable
from controlplane.services.given_up import GivenUp
from controlplane.services.restoring import replace_again
from controlplane.services.rules.endpoint_attributes import check_endpoint
from controlplane.services.rules.plan_limits import refuse_used_up

CHANGED = ["branch_id", *APPLIED]


def retries_of(operation: Operation) -> list[Operation]:
    """The unfinished chain that retries the operation; empty if there is none.

    Raises Conflict if a retry has finished.
    """
    again = Operation.objects.filter(retry_of=operation).order_by("-created_at").first()
    if again is None:
        return []
    chain = list(Operation.objects.filter(chain=again.chain).order_by("created_at"))
    if not all(row.is_finished for row in chain):
        return chain
    if again.status == OperationStatus.FINISHED:
        raise Conflict(f"the operation was retried by {again.id}, which has finished")
    return []


def steps_again(project: Project, operations: Sequence[Operation]) -> list[Step]:
    """The steps that retry the operations, which are of one chain, oldest first. The rows of the
    endpoint are changed as the operations require.

    Raises Conflict if a retry makes no sense any more. But if the first operation creates a branch
    and can be retried, later operations that cannot be are left out. Raises Locked, and everything
    that a request for the same work would raise.
    """
    earlier = unfinished(project.id)
    if replacement := next(filter(replacement_of, operations), None):
        return _restore(replacement, operations, earlier)
    steps: list[Step] = []
    for operation in operations:
        given_up = GivenUp(operation, operations, earlier)
        try:
            again = RETRY_STEPS[Action(operation.action)](given_up)
        except Conflict:
            if not steps or operations[0].action not in MAKES_BRANCH:
                raise
            continue
        steps += _without_repeated_creations(again, steps)
    return steps


def _without_repeated_creations(again: Sequence[Step], steps: Sequence[Step]) -> list[Step]:
    made = {step.branch.id for step in steps if step.branch and step.endpoint is None}
    return [
        step
        for step in again
        if step.endpoint is not None or step.branch is None or step.branch.id not in made
    ]


def _restore(
    replacement: Operation, operations: Sequence[Operation], earlier: Sequence[Operation]
) -> list[Step]:
    """The steps that retry a restore, or its rest. A start that cannot be retried is left out."""
    steps = replace_again(GivenUp(replacement, operations, earlier))
    last = GivenUp(operations[-1], operations, earlier)
    if steps[-1].action != Action.START_COMPUTE and last.operation.action == Action.START_COMPUTE:
        with suppress(Conflict):
            steps += _start(last)
    return steps


def _create(given_up: GivenUp) -> list[Step]:
    branch = given_up.branch
    refuse_while_deleting(branch, given_up.earlier)
    if branch.hidden:
        raise Conflict("the snapshot was abandoned; take another one")
    if branch.current_state == BranchState.READY:
        raise Conflict(f"the branch {branch.id} has been created since")
    steps = creation_steps(branch, given_up.earlier)
    if not steps:
        raise Conflict(f"the branch {branch.id} is being created")
    *parents, last = steps
    return [*parents, replace(last, retry_of=given_up.operation)]


def _start(given_up: GivenUp) -> list[Step]:
    endpoint = given_up.endpoint
    if endpoint.disabled:
        raise Conflict("endpoint is disabled")
    given_up.refuse_if_superseded(Action.START_COMPUTE, Action.SUSPEND_COMPUTE)
    if given_up.heading_for == EndpointState.ACTIVE and not given_up.has(Action.SUSPEND_COMPUTE):
        raise Conflict("the endpoint is active already")
    refuse_used_up(endpoint.project, endpoint.branch)
    return [*creation_steps(endpoint.branch, given_up.earlier), _step(given_up, endpoint)]


def _suspend(given_up: GivenUp) -> list[Step]:
    if given_up.has(Action.DELETE_TIMELINE):
        return _suspend_before_deletion(given_up)
    endpoint = given_up.endpoint
    if given_up.has(Action.APPLY_CONFIG):
        # A configuration is tested on a running compute, after which an idle endpoint is suspended
        # again. An endpoint that a client has woken since stays active.
        runs = given_up.heading_for == EndpointState.ACTIVE and not endpoint.disabled
        reassigns = any("from_branch_id" in row.details for row in given_up.together)
        return [] if runs and not reassigns else [_step(given_up, endpoint)]
    given_up.refuse_if_superseded(Action.START_COMPUTE, Action.SUSPEND_COMPUTE)
    if len(given_up.together) == 1 and given_up.heading_for == EndpointState.IDLE:
        raise Conflict("the endpoint is idle already")
    return [_step(given_up, endpoint)]


def _apply(given_up: GivenUp) -> list[Step]:
    endpoint = given_up.endpoint
    details = details_of(given_up.operation.action, given_up.operation.details)
    assert isinstance(details, ApplyConfigDetails)
    if not details.may_restart:
        return _apply_catalog(given_up, endpoint)
    had = {name: getattr(endpoint, name) for name in CHANGED}
    left = _reassign(given_up, endpoint, details.from_branch_id) if details.from_branch_id else None
    before = _configure(given_up, endpoint, details) if details.before else None
    if before is None and not details.from_branch_id:
        raise Conflict("the endpoint has these settings already")
    endpoint.updated_at = clock.now()
    endpoint.save(update_fields=["branch", *APPLIED, "updated_at"])
    _record_changes(endpoint, had)
    step = Step(
        Action.APPLY_CONFIG,
        branch=endpoint.branch,
        endpoint=endpoint,
        also_holds=[left] if left else [],
        details=ApplyConfigDetails(from_branch_id=left.id if left else None, before=before),
        retry_of=given_up.operation,
    )
    return [*creation_steps(endpoint.branch, given_up.earlier), step]


def _record_changes(endpoint: Endpoint, had: Mapping[str, Any]) -> None:
    """Record an event with the attributes of the endpoint that differ from `had`, if any do."""
    changes = {
        name: {"from": value, "to": getattr(endpoint, name)}
        for name, value in had.items()
        if getattr(endpoint, name) != value
    }
    if changes:
        record(
            happened(
                EventType.ENDPOINT_UPDATED,
                account_id=endpoint.project.account_id,
                project=endpoint.project,
                branch=endpoint.branch,
                endpoint=endpoint,
                summary=f"The endpoint {endpoint.id} was changed again: {', '.join(changes)}",
                changes=changes,
            )
        )


def _apply_catalog(given_up: GivenUp, endpoint: Endpoint) -> list[Step]:
    """Apply all changes of roles and databases that the compute does not have yet."""
    branch = endpoint.branch
    if branch.applied_catalog_revision == branch.catalog_revision:
        raise Conflict("the branch's roles and databases have been applied since")
    # Forget the errors that the operation failed for, so that its retry fails again if they remain.
    for rows in (branch.roles, branch.databases):
        rows.filter(catalog_error_of=given_up.operation.created_at).update(catalog_error_of=None)
    return [*creation_steps(branch, given_up.earlier), _step(given_up, endpoint)]


def _reassign(given_up: GivenUp, endpoint: Endpoint, left_id: str) -> Branch | None:
    """Assign the endpoint to the branch that the operation was to move it to. Returns the branch
    that it leaves; None if that was deleted."""
    goal = given_up.branch
    refuse_while_deleting(goal, given_up.earlier)
    if endpoint.branch_id not in (goal.id, left_id):
        raise Conflict(f"the endpoint was reassigned to {endpoint.branch_id} since")
    given_up.refuse_if_superseded(Action.APPLY_CONFIG, having="from_branch_id")
    if endpoint.branch_id == left_id:
        refuse_occupied(goal)
        endpoint.branch = goal
    return Branch.objects.filter(id=left_id, deleted_at=None).first()


def _configure(
    given_up: GivenUp, endpoint: Endpoint, details: ApplyConfigDetails
) -> Configuration | None:
    """Assign the configuration that the operation was to apply to the endpoint. Returns the
    endpoint's configuration before that; None if it has the wanted one already."""
    refuse_while_configured(endpoint, given_up.earlier)
    given_up.refuse_if_superseded(Action.APPLY_CONFIG, having="before")
    before, wanted = endpoint.configuration, details.wanted
    if wanted is None:
        raise Conflict("the change is not stored any more; send it again")
    changed = [name for name, value in wanted.items() if value != before[name]]
    if not changed:
        return None
    for name in changed:
        setattr(endpoint, name, wanted[name])
    check_endpoint(endpoint, changed)
    return before


def _check(given_up: GivenUp) -> list[Step]:
    endpoint = given_up.endpoint
    if endpoint.disabled:
        raise Conflict("endpoint is disabled")
    given_up.refuse_if_superseded(Action.CHECK_AVAILABILITY)
    # Without details: a retry makes a complete check, even if the operation checked only a part.
    return [
        Step(
            Action.CHECK_AVAILABILITY,
            branch=endpoint.branch,
            endpoint=endpoint,
            retry_of=given_up.operation,
        )
    ]


def _suspend_before_deletion(given_up: GivenUp) -> list[Step]:
    branch = _deletable(given_up)
    endpoint = Endpoint.objects.filter(branch=branch, deleted_at=None).first()
    if endpoint is None:
        return []
    retried = given_up.operation if given_up.operation.action == Action.SUSPEND_COMPUTE else None
    return [
        Step(Action.SUSPEND_COMPUTE, branch=branch, endpoint=endpoint, retry_of=retried),
    ]


def _delete_branch(given_up: GivenUp) -> list[Step]:
    suspend = [] if given_up.has(Action.SUSPEND_COMPUTE) else _suspend_before_deletion(given_up)
    deletion = Step(
        Action.DELETE_TIMELINE, branch=_deletable(given_up), retry_of=given_up.operation
    )
    return [*suspend, deletion]


def _deletable(given_up: GivenUp) -> Branch:
    branch = given_up.branch
    refuse_while_deleting(branch, given_up.earlier)
    refuse_while_restoring(branch, given_up.earlier)
    try:
        refuse_deletion(branch)
    except Unprocessable as error:
        raise Conflict(error.message) from error
    return branch


def _restore_from_store(given_up: GivenUp) -> list[Step]:
    operation, branch = given_up.operation, given_up.branch
    if branch.last_reset_at and branch.last_reset_at > operation.created_at:
        raise Conflict(f"the data of the branch {branch.id} was replaced since")
    newer = Operation.objects.filter(
        branch=branch, action=Action.RESTORE_FROM_STORE, created_at__gt=operation.created_at
    )
    if found := newer.exclude(status__in=GIVEN_UP).first():
        raise Conflict(f"the branch was or is restored by the newer operation {found.id}")
    details = details_of(operation.action, operation.details)
    return [Step(Action.RESTORE_FROM_STORE, branch=branch, details=details, retry_of=operation)]


def _upgrade(given_up: GivenUp) -> list[Step]:
    raise Conflict("only this service's operator can upgrade a project: with `upgrade_project`")


def _move(given_up: GivenUp) -> list[Step]:
    raise Conflict("only this service's operator can move a project: with `hosts move`")


# By action, the function that returns the steps of a retry. `delete_tenant` is missing, because an
# operation of a deleted project cannot be retried.
RETRY_STEPS: Mapping[Action, Callable[[GivenUp], list[Step]]] = {
    Action.CREATE_TIMELINE: _create,
    Action.CREATE_BRANCH: _create,
    Action.START_COMPUTE: _start,
    Action.SUSPEND_COMPUTE: _suspend,
    Action.APPLY_CONFIG: _apply,
    Action.CHECK_AVAILABILITY: _check,
    Action.DELETE_TIMELINE: _delete_branch,
    Action.UPGRADE_PROJECT: _upgrade,
    Action.RESTORE_FROM_STORE: _restore_from_store,
    Action.MOVE_PROJECT: _move,
}


def _step(given_up: GivenUp, endpoint: Endpoint) -> Step:
    """The operation's own step, on the present branch of its endpoint."""
    operation = given_up.operation
    return Step(
        Action(operation.action),
        branch=endpoint.branch,
        endpoint=endpoint,
        details=details_of(operation.action, operation.details),
        retry_of=operation,
    )

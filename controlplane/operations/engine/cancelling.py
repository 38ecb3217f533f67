"""Cancels operations on request. An operation that has not begun ends immediately. One that runs is
`cancelling` until its worker has brought it to a safe point (`engine`, `undoing`).

The rows are changed back here, in the same transaction, whether the operation has begun or not.
From then on they describe the state that the operation's end will leave. Callers hold the
project's lock.
"""

from collections.abc import Sequence

from django.db.models import Q

from controlplane import clock
from controlplane.actors import ActorType, current_actor
from controlplane.events.changes import endpoint_returned
from controlplane.events.recording import record
from controlplane.models import (
    HANDED_OVER,
    MAY_SUCCEED,
    Action,
    Branch,
    Endpoint,
    EndpointState,
    Operation,
    OperationStatus,
    Project,
)
from controlplane.operations.actions.table import details_of, rule_of
from controlplane.operations.details import ApplyConfigDetails
from controlplane.operations.engine.effects import go_back
from controlplane.operations.engine.execution import withdraw
from controlplane.operations.engine.replacing import give_up_replacing
from controlplane.operations.engine.scheduling import dispatch
from controlplane.operations.queue.jobs import has_begun, hasten_job, take_job_back
from controlplane.operations.states import enter

GIVING_UP = (OperationStatus.CANCELLING, OperationStatus.CANCELLED)


def cancel_refusal(operation: Operation) -> str | None:
    """Return why the operation cannot be cancelled, as a text for users; None if it can. An
    operation that can be cancelled only because it has not begun does not begin before the
    transaction ends."""
    if operation.status not in MAY_SUCCEED:
        return f"the operation is {operation.status} already"
    if operation.initiator_type == ActorType.PLATFORM:
        return "the platform scheduled this operation itself, so it cannot be cancelled by request"
    endpoint = Endpoint.objects.filter(id=operation.endpoint_id, deleted_at=None).first()
    if operation.action == Action.SUSPEND_COMPUTE and endpoint and endpoint.disabled:
        return "the endpoint is disabled, so it must not run; enable it instead"
    details = details_of(operation.action, operation.details)
    no_way_back = rule_of(operation).no_way_back_from(details)
    if no_way_back and operation.status == OperationStatus.RUNNING and has_begun(operation):
        return no_way_back
    return _return_refusal(operation, endpoint) if endpoint else None


def cancel(project: Project, operations: Sequence[Operation]) -> None:
    """Cancel `operations`: an operation and the ones that follow it in its chain, oldest first.
    `cancel_refusal` must have returned None for each.

    The following operations never end before the first one, so a caller that waits for the last
    operation of a chain waits for the whole chain.
    """
    first = operations[0]
    ends_now = _has_done_nothing(first)
    not_run = f"not run: the operation {first.id} of the same chain was cancelled"
    for operation in operations:
        because = None if operation is first else first.id
        words = not_run if because else f"cancelled by {_actor_text()}"
        if ends_now:
            take_job_back(operation)
            withdraw([operation], OperationStatus.CANCELLED, words, because=because)
        else:
            operation.not_run_because = because
            _request_end(project, operation, words)
    for operation in operations:
        _revert_rows(project, operation)
    dispatch(project)


def _actor_text() -> str:
    actor = current_actor()
    return f'the API key "{actor.name}"' if actor.type == ActorType.USER else f"the {actor.type}"


def _has_done_nothing(operation: Operation) -> bool:
    waits = operation.status == OperationStatus.SCHEDULING or not has_begun(operation)
    return waits and not _may_be_applied(operation)


def _request_end(project: Project, operation: Operation, words: str) -> None:
    now = clock.now()
    operation.status = OperationStatus.CANCELLING
    operation.error = words
    operation.retry_at = None
    operation.updated_at = max(now, operation.updated_at)
    operation.save(update_fields=["status", "error", "not_run_because", "retry_at", "updated_at"])
    hasten_job(operation)


def _may_be_applied(operation: Operation) -> bool:
    """Return whether a compute may already have the operation's settings although the operation has
    not begun: the endpoint's row has had them since the request, and another operation may have
    started the endpoint since."""
    if "before" not in operation.details:
        return False
    others = Operation.objects.filter(
        Q(status__in=HANDED_OVER) | Q(updated_at__gt=operation.created_at),
        endpoint_id=operation.endpoint_id,
        dispatched_at__isnull=False,
    )
    return others.exclude(id=operation.id).exists()


def _revert_rows(project: Project, operation: Operation) -> None:
    """Give the endpoint the configuration and the branch that it had before the operation, and
    delete the rows that a restore was going to fill."""
    give_up_replacing(operation)
    endpoint = Endpoint.objects.filter(id=operation.endpoint_id, deleted_at=None).first()
    if endpoint is None:
        return
    go_back(operation, endpoint)
    if left := _previous_branch(operation):
        _return_to(left, endpoint, operation)
    if endpoint.current_state == EndpointState.INIT:
        now = clock.now()
        enter(project, endpoint, EndpointState.IDLE, now=now, operations=[operation])


def _previous_branch(operation: Operation) -> Branch | None:
    details = details_of(operation.action, operation.details)
    if not isinstance(details, ApplyConfigDetails) or details.from_branch_id is None:
        return None
    return Branch.objects.filter(id=details.from_branch_id).first()


def _return_refusal(operation: Operation, endpoint: Endpoint) -> str | None:
    """Return why a reassignment cannot be cancelled: the endpoint could not go back to the branch
    that it left. None if it can, or if the operation is no reassignment."""
    left = _previous_branch(operation)
    if left is None:
        return None
    if endpoint.branch_id != operation.branch_id:
        return f"the endpoint was reassigned to {endpoint.branch_id} since; cancel that first"
    if left.deleted_at is not None:
        return f"the endpoint cannot go back: the branch {left.id} was deleted"
    deletions = Operation.objects.filter(
        action=Action.DELETE_TIMELINE,
        status__in=MAY_SUCCEED,
        branch_id__in=[left.id, operation.branch_id],
    )
    if deletion := deletions.first():
        return f"the branch {deletion.branch_id} is being deleted by the operation {deletion.id}"
    if other := Endpoint.objects.filter(branch=left, deleted_at=None).first():
        return f"the endpoint cannot go back: the branch {left.id} has the endpoint {other.id} now"
    return None


def _return_to(left: Branch, endpoint: Endpoint, reassignment: Operation) -> None:
    """Put the endpoint back on the branch that it left, and with it the operations scheduled for it
    on the other branch. All of those come after the reassignment, so none of them has begun."""
    reached = endpoint.branch_id
    for waiting in Operation.objects.filter(
        endpoint=endpoint,
        branch_id=reached,
        status=OperationStatus.SCHEDULING,
        created_at__gt=reassignment.created_at,
    ):
        waiting.branch = left
        waiting.resources = [left.id if one == reached else one for one in waiting.resources]
        waiting.save(update_fields=["branch", "resources"])
    endpoint.branch = left
    endpoint.updated_at = clock.now()
    endpoint.save(update_fields=["branch", "updated_at"])
    record(endpoint_returned(reassignment, endpoint, left=reached))

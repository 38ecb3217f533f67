"""Cancels and retries operations: one with the later ones of its chain, or a whole chain."""

import uuid
from collections.abc import Sequence

from controlplane.actors import Actor, ActorType, acting_as, current_actor
from controlplane.events.changes import cancelling_requested, operation_retried
from controlplane.events.recording import record
from controlplane.models import GIVEN_UP, Account, Operation, Project
from controlplane.operations.engine.cancelling import GIVING_UP, cancel, cancel_refusal
from controlplane.operations.engine.scheduling import schedule
from controlplane.services.errors import Conflict, NotFound
from controlplane.services.projects import changing_project
from controlplane.services.retrying import retries_of, steps_again


def cancel_operation(account: Account, project_id: str, operation_id: str) -> list[Operation]:
    """Cancel the operation, and those after it in its chain that can be cancelled. Returns those
    that are or were cancelled. If the operation was cancelled before, return the same. Raises
    NotFound, Locked, Conflict if the operation cannot be cancelled."""
    with changing_project(account, project_id) as project:
        tail = _from(project, operation_id)
        if tail[0].status not in GIVING_UP:
            if reason := cancel_refusal(tail[0]):
                raise Conflict(reason)
            _cancel(project, [tail[0], *(row for row in tail[1:] if not cancel_refusal(row))])
        return _given_up(tail)


def cancel_chain(account: Account, project_id: str, chain_id: str) -> list[Operation]:
    """Cancel the operations of the chain that can be cancelled. Returns those that are or were
    cancelled.

    Raises NotFound, Locked, Conflict if there are none.
    """
    with changing_project(account, project_id) as project:
        chain = _chain(project, chain_id)
        reasons = {row.id: cancel_refusal(row) for row in chain}
        if wanted := [row for row in chain if reasons[row.id] is None]:
            _cancel(project, wanted)
        if concerned := _given_up(chain):
            return concerned
        # Give the reason for the first unfinished operation, not for one that has ended before it.
        open_ones = [row for row in chain if not row.is_finished]
        raise Conflict(
            reasons[open_ones[0].id] or "" if open_ones else "this run has already ended"
        )


def retry_operation(account: Account, project_id: str, operation_id: str) -> list[Operation]:
    """Retry the operation, and those after it in its chain that failed or were cancelled. Returns
    the new operations. While these are unfinished, a second call returns the same.

    Raises NotFound, Conflict, Locked, and everything that a request for the same work would raise.
    """
    with changing_project(account, project_id) as project:
        tail = _from(project, operation_id)
        if tail[0].status not in GIVEN_UP:
            raise Conflict(
                f"only an operation that has failed or was cancelled can be retried; this one is "
                f"{tail[0].status}"
            )
        return _retry(project, [row for row in tail if row.status in GIVEN_UP])


def retry_chain(account: Account, project_id: str, chain_id: str) -> list[Operation]:
    """As `retry_operation`, for the first operation of the chain that failed or was cancelled."""
    with changing_project(account, project_id) as project:
        chain = _chain(project, chain_id)
        if not all(row.is_finished for row in chain):
            raise Conflict("the chain's operations have not ended yet")
        given_up = [row for row in chain if row.status in GIVEN_UP]
        if not given_up:
            raise Conflict("the chain's operations have all finished")
        return _retry(project, given_up)


def _cancel(project: Project, operations: Sequence[Operation]) -> None:
    cancel(project, operations)
    record(cancelling_requested(project, operations))


def _retry(project: Project, operations: Sequence[Operation]) -> list[Operation]:
    first = operations[0]
    if under_way := retries_of(first):
        return under_way
    actor = current_actor()
    retrying = Actor(ActorType.RETRY, actor.name, actor.api_key_id, actor.address)
    steps = steps_again(project, operations)
    with acting_as(retrying):
        made = schedule(project, steps, first.kind, title=first.title)
    record(operation_retried(project, first, made))
    return made


def _from(project: Project, operation_id: str) -> list[Operation]:
    """The operation and those after it in its chain, oldest first. Raises NotFound."""
    wanted = _uuid(operation_id)
    operation = wanted and Operation.objects.filter(project=project, id=wanted).first()
    if not operation:
        raise NotFound("operation not found", fields=["operation_id"])
    chain = _operations_of(project, operation.chain)
    return [row for row in chain if row.created_at >= operation.created_at]


def _chain(project: Project, chain_id: str) -> list[Operation]:
    """All operations of the chain, oldest first. Raises NotFound."""
    wanted = _uuid(chain_id)
    chain = _operations_of(project, wanted) if wanted else []
    if not chain:
        raise NotFound("chain not found", fields=["chain_id"])
    return chain


def _operations_of(project: Project, chain: uuid.UUID) -> list[Operation]:
    rows = Operation.objects.filter(project=project, chain=chain)
    return list(rows.select_related("branch", "endpoint__branch").order_by("created_at"))


def _given_up(operations: Sequence[Operation]) -> list[Operation]:
    ids = [row.id for row in operations]
    given_up = Operation.objects.filter(id__in=ids, status__in=GIVING_UP)
    return list(given_up.order_by("created_at"))


def _uuid(text: str) -> uuid.UUID | None:
    try:
        return uuid.UUID(text)
    except ValueError:
        return None

"""Changes the rows when an operation ends: the state transitions, in one place.

Called by the engine, in the transaction that ends the operation unless a docstring says otherwise.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from django.db.models import QuerySet

from controlplane import clock
from controlplane.compute import compute
from controlplane.compute.processes.process import StopFailed
from controlplane.events.changes import branch_deleted, endpoint_deleted, endpoint_went_back
from controlplane.events.recording import differences, record
from controlplane.models import (
    MAY_SUCCEED,
    Action,
    Branch,
    BranchState,
    Endpoint,
    EndpointState,
    FormerPassword,
    HistoryChain,
    InitSource,
    Operation,
)
from controlplane.models.reading import Reading
from controlplane.operations.actions.table import details_of, rule_of
from controlplane.operations.details import ApplyConfigDetails, SuspendComputeDetails
from controlplane.operations.engine.replacing import (
    enter_replaced,
    give_up_replacing,
    replacement_of,
)
from controlplane.operations.states import enter

log = logging.getLogger(__name__)

# A condition for `Reading`.
LIVING = "WHERE t.id = %(endpoint)s AND t.deleted_at IS NULL"
LIVING_ENDPOINT = Reading(Endpoint, LIVING)


def pending_state(endpoint: Endpoint, unfinished: Sequence[Operation]) -> EndpointState | None:
    """Return the state that the endpoint's unfinished operations, oldest first, lead to; None if
    they change no state. Operations that are being cancelled do not count."""
    pending = None
    for operation in unfinished:
        if operation.endpoint_id == endpoint.id and operation.status in MAY_SUCCEED:
            pending = rule_of(operation).endpoint_after or pending
    return pending


def take_effect(operation: Operation) -> None:
    """Change the rows for an operation that has succeeded."""
    now = clock.now()
    rule, details = rule_of(operation), details_of(operation.action, operation.details)
    if rule.effect is not None:
        rule.effect(operation, details, now)
    elif replacement := replacement_of(operation):
        enter_replaced(operation, replacement, now)
    elif rule.makes_branch:
        _enter_ready(operation, now)
    elif operation.action == Action.DELETE_TIMELINE:
        _delete_branch(operation, now)
    elif operation.action == Action.DELETE_TENANT:
        _forget_history(Branch.objects.filter(project=operation.project_id))
    elif (state := rule.endpoint_after) and (endpoint := living_endpoint(operation.endpoint_id)):
        if isinstance(details, SuspendComputeDetails) and details.if_idle and _runs(endpoint):
            state = EndpointState.ACTIVE  # a client came at the last moment, so it was not stopped
        enter(operation.project, endpoint, state, now=now, operations=[operation])


def settle_compute(operation: Operation, rest: Sequence[Operation]) -> None:
    """Stop the compute of a failed chain that was going to leave its endpoint suspended.

    `rest` are the operations of the chain that will not run any more. Called outside the
    transaction, because a stop may take seconds.
    """
    branch_id = operation.branch_id
    if branch_id and any(later.action == Action.SUSPEND_COMPUTE for later in rest):
        try:
            compute.stop(branch_id)
        except StopFailed as error:
            fields = {"endpoint": operation.endpoint_id, "error": str(error)}
            log.error("compute not stopped", extra=fields)


def settle_rows(operation: Operation) -> None:
    """Give the endpoint of a failed operation the state that its compute is in, and its last
    working settings."""
    give_up_replacing(operation)
    endpoint = living_endpoint(operation.endpoint_id)
    if endpoint is None:
        return
    go_back(operation, endpoint)
    _enter_actual_state(operation, endpoint)


def settle_state(operation: Operation) -> None:
    """Give the endpoint of a cancelled operation the state that its compute is in. Its settings
    were changed back when the cancel was requested."""
    if endpoint := living_endpoint(operation.endpoint_id):
        _enter_actual_state(operation, endpoint)


def go_back(operation: Operation, endpoint: Endpoint) -> None:
    """Give the endpoint the configuration that it had before the operation, and store the requested
    one in the operation's details, for a retry."""
    details = details_of(operation.action, operation.details)
    if not isinstance(details, ApplyConfigDetails) or not details.before:
        return
    operation.details = replace(details, wanted=endpoint.configuration).as_json()
    operation.save(update_fields=["details"])
    configuration = endpoint.configuration
    # An earlier release may have stored fewer attributes; the others stay.
    changes = differences(configuration, {**configuration, **details.before})
    if changes:
        record(endpoint_went_back(operation, endpoint, changes))
        endpoint.go_back_to(details.before)


def _enter_actual_state(operation: Operation, endpoint: Endpoint) -> None:
    state = EndpointState.ACTIVE if _runs(endpoint) else EndpointState.IDLE
    if state == EndpointState.ACTIVE:
        # Its listener socket may have been hidden for a stop.
        compute.accept_clients(endpoint.id)
    now = clock.now()
    enter(operation.project, endpoint, state, now=now, operations=[operation])


def _delete_branch(operation: Operation, now: datetime) -> None:
    for endpoint in Endpoint.objects.filter(branch_id=operation.branch_id, deleted_at=None):
        record(endpoint_deleted(operation.project, endpoint, [operation]))
    Endpoint.objects.filter(branch_id=operation.branch_id, deleted_at=None).update(
        deleted_at=now, updated_at=now
    )
    assert operation.branch is not None
    if not operation.branch.hidden:
        record(branch_deleted(operation, operation.branch))
    Branch.objects.filter(id=operation.branch_id).update(deleted_at=now, updated_at=now)
    _forget_history(Branch.objects.filter(id=operation.branch_id))


def _forget_history(branches: QuerySet[Branch]) -> None:
    """Delete what is known of the history of branches whose data was removed."""
    HistoryChain.objects.filter(branch__in=branches).delete()
    FormerPassword.objects.filter(branch_id__in=branches.values("id")).delete()


def _enter_ready(operation: Operation, now: datetime) -> None:
    Branch.objects.filter(id=operation.branch_id).update(
        current_state=BranchState.READY, state_changed_at=now, updated_at=now
    )
    branch = Branch.objects.get(id=operation.branch_id)
    if branch.init_source == InitSource.SCHEMA_ONLY:
        # The copy's roles and databases were created anew, with oids other than those of the
        # source, which the rows have followed until now.
        branch.roles.update(compute_oid=None)
        branch.databases.update(compute_oid=None)


def _runs(endpoint: Endpoint) -> bool:
    return compute.running_endpoint(endpoint.branch_id) == endpoint.id


def living_endpoint(endpoint_id: str | None) -> Endpoint | None:
    return LIVING_ENDPOINT.first(endpoint=endpoint_id)

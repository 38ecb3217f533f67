"""Compute endpoints: create, list, change, start, suspend, delete (specification, section 4)."""

from collections.abc import Sequence
from dataclasses import dataclass

from controlplane import clock
from controlplane.compute.configuration import default_settings
from controlplane.compute.offered_settings import Offered, offered
from controlplane.compute.postgres_settings import from_json
from controlplane.events.changes import (
    endpoint_created,
    endpoint_deleted,
    endpoint_requested,
    endpoint_updated,
)
from controlplane.events.differences import differences
from controlplane.events.recording import record
from controlplane.events.types import EventType
from controlplane.models import (
    Account,
    Action,
    Branch,
    Configuration,
    Endpoint,
    EndpointState,
    Lane,
    Operation,
    OperationStatus,
    PostgresSettings,
    Project,
)
from controlplane.models.reading import Reading
from controlplane.operations.details import ApplyConfigDetails
from controlplane.operations.effects import pending_state
from controlplane.operations.engine import withdraw
from controlplane.operations.queue import enqueue_reconciliation
from controlplane.operations.scheduling import (
    IS_BUSY,
    Step,
    hurry,
    schedule,
    unfinished,
    unfinished_if_busy,
)
from controlplane.services.branches import (
    find_branch,
    refuse_while_deleting,
    refuse_while_replaced,
)
from controlplane.services.creation import creation_again, make_endpoint
from controlplane.services.endpoint_attributes import (
    EndpointAttributes,
    assign_attributes,
    check_endpoint,
)
from controlplane.services.errors import Conflict, EndpointDisabled, Locked, NotFound
from controlplane.services.projects import changing_project, find_project
from controlplane.services.quotas import refuse_used_up

# The events that tell of what was asked for, by the action that does it.
REQUESTS = {
    Action.START_COMPUTE: EventType.ENDPOINT_START_REQUESTED,
    Action.SUSPEND_COMPUTE: EventType.ENDPOINT_SUSPEND_REQUESTED,
}


IN_ORDER = "ORDER BY t.created_at, t.id"
ENDPOINT = Reading(
    Endpoint,
    "WHERE t.project_id = %(project)s AND t.id = %(endpoint)s AND t.deleted_at IS NULL",
    joined=["branch"],
)
# In one statement with its project: who reads an endpoint asks for nothing else.
OWN_ENDPOINT = Reading(
    Endpoint,
    """
    WHERE t.project_id = %(project)s AND t.id = %(endpoint)s AND t.deleted_at IS NULL
        AND project.account_id = %(account)s AND project.deleted_at IS NULL
    """,
    joined=["project", "project__region"],
    extra=IS_BUSY,
)
ENDPOINTS = Reading(
    Endpoint, "WHERE t.project_id = %(project)s AND t.deleted_at IS NULL " + IN_ORDER
)
ENDPOINTS_OF_BRANCH = Reading(
    Endpoint,
    "WHERE t.project_id = %(project)s AND t.branch_id = %(branch)s AND t.deleted_at IS NULL "
    + IN_ORDER,
)


@dataclass(frozen=True)
class EndpointChange:
    """An endpoint after a request, and the operations that take it where it is heading."""

    endpoint: Endpoint
    operations: list[Operation]


def find_endpoint(project: Project, endpoint_id: str) -> Endpoint:
    """Raises NotFound."""
    endpoint = ENDPOINT.first({"project": project}, project=project.id, endpoint=endpoint_id)
    if endpoint is None:
        raise NotFound("endpoint not found")
    return endpoint


def get_endpoint(account: Account, project_id: str, endpoint_id: str) -> Endpoint:
    """The endpoint, with its pending state. Raises NotFound."""
    endpoint = OWN_ENDPOINT.first(project=project_id, endpoint=endpoint_id, account=account.id)
    if endpoint is None:
        return find_endpoint(find_project(account, project_id), endpoint_id)
    endpoint.pending_state = pending_state(endpoint, unfinished_if_busy(endpoint))
    return endpoint


def list_pg_settings(account: Account, project_id: str, endpoint_id: str) -> list[Offered]:
    """What the endpoint may be given in its `pg_settings`. Raises NotFound."""
    endpoint = OWN_ENDPOINT.first(project=project_id, endpoint=endpoint_id, account=account.id)
    if endpoint is None:
        endpoint = find_endpoint(find_project(account, project_id), endpoint_id)
    size, storage = endpoint.autoscaling_limit_max_cu, account.branch_size_limit
    return offered(
        max_cu=size,
        storage=storage,
        known=from_json(PostgresSettings.known_in(endpoint.project.region_id)),
        defaults=default_settings(
            min_cu=endpoint.autoscaling_limit_min_cu, max_cu=size, storage=storage
        ),
    )


def list_endpoints(
    account: Account, project_id: str, *, branch_id: str | None = None
) -> list[Endpoint]:
    """All endpoints of the project, or of one of its branches; oldest first. Raises NotFound."""
    project = find_project(account, project_id)
    if branch_id is None:
        return ENDPOINTS.rows({"project": project}, project=project.id)
    branch = find_branch(project, branch_id)
    return ENDPOINTS_OF_BRANCH.rows({"project": project}, project=project.id, branch=branch.id)


def create_endpoint(
    account: Account, project_id: str, *, branch_id: str, asked: EndpointAttributes
) -> EndpointChange:
    """Create an endpoint and start it, unless it is disabled (rule 1).

    Raises NotFound, Conflict, Locked, Invalid, Unprocessable.
    """
    with changing_project(account, project_id) as project:
        earlier = unfinished(project.id)
        branch = _free_branch(project, branch_id, earlier)
        endpoint, steps = make_endpoint(project, branch, asked)
        operations = schedule(project, [*creation_again(branch, earlier), *steps]) if steps else []
        record(endpoint_created(project, endpoint, operations))
        return EndpointChange(endpoint, operations)


def update_endpoint(
    account: Account,
    project_id: str,
    endpoint_id: str,
    *,
    branch_id: str | None,
    asked: EndpointAttributes,
) -> EndpointChange:
    """Change what differs: reassign, reconfigure, disable, enable (rule 2).

    What is the same already is no change: sending all attributes back does nothing. Raises
    NotFound, Conflict, Locked, Invalid, Unprocessable.
    """
    with changing_project(account, project_id) as project:
        endpoint = find_endpoint(project, endpoint_id)
        operations = unfinished(project.id)
        pending = pending_state(endpoint, operations)
        left = endpoint.branch
        configuration = endpoint.configuration
        replaced = assign_attributes(endpoint, asked)
        reassigned = branch_id not in (None, left.id)
        if not replaced and not reassigned:
            endpoint.pending_state = pending
            return EndpointChange(endpoint, [])
        check_endpoint(endpoint, replaced)
        refuse_while_deleting(left, operations)
        before = configuration if endpoint.configuration != configuration else None
        if before:
            refuse_while_configured(endpoint, operations)
        if branch_id is not None and reassigned:
            refuse_while_replaced(left, operations)
            endpoint.branch = _free_branch(project, branch_id, operations)
        endpoint.updated_at = clock.now()
        endpoint.save(update_fields=[*replaced, "branch", "updated_at"])
        steps = _steps(endpoint, left, before, pending or endpoint.current_state)
        change = _scheduled(project, endpoint, operations, steps)
        was = {**replaced, "branch_id": left.id}
        changes = differences(was, {name: getattr(endpoint, name) for name in was})
        record(endpoint_updated(project, endpoint, changes, change.operations))
        return change


def _free_branch(project: Project, branch_id: str, operations: Sequence[Operation]) -> Branch:
    """The branch, which stays and has no endpoint yet. Raises NotFound, Locked, Conflict."""
    branch = find_branch(project, branch_id)
    refuse_while_deleting(branch, operations)
    refuse_while_replaced(branch, operations)
    refuse_occupied(branch)
    return branch


def _steps(
    endpoint: Endpoint, left: Branch, before: Configuration | None, heading_for: str
) -> list[Step]:
    """The operations that a change asks for, in order."""
    reassigned = endpoint.branch_id != left.id
    steps = []
    if reassigned or before:
        steps.append(
            Step(
                Action.APPLY_CONFIG,
                branch=endpoint.branch,
                endpoint=endpoint,
                also_holds=[left] if reassigned else [],
                details=ApplyConfigDetails(
                    from_branch_id=left.id if reassigned else None, before=before
                ),
            )
        )
    was_idle = heading_for == EndpointState.IDLE
    # A configuration is proved on a running compute; one that slept goes back to sleep.
    if reassigned or (steps and was_idle) or (endpoint.disabled and not was_idle):
        steps.append(Step(Action.SUSPEND_COMPUTE, branch=endpoint.branch, endpoint=endpoint))
    return steps


def start_endpoint(account: Account, project_id: str, endpoint_id: str) -> EndpointChange:
    """Start an endpoint; one start serves all who ask while it is under way.

    Raises NotFound, EndpointDisabled, Locked, QuotaExceeded.
    """
    with changing_project(account, project_id) as project:
        endpoint = find_endpoint(project, endpoint_id)
        if endpoint.disabled:
            raise EndpointDisabled("endpoint is disabled")
        return head_for(project, endpoint, EndpointState.ACTIVE, Action.START_COMPUTE)


def suspend_endpoint(account: Account, project_id: str, endpoint_id: str) -> EndpointChange:
    """Suspend an endpoint. Raises NotFound, Locked."""
    with changing_project(account, project_id) as project:
        endpoint = find_endpoint(project, endpoint_id)
        return head_for(project, endpoint, EndpointState.IDLE, Action.SUSPEND_COMPUTE)


def restart_endpoint(account: Account, project_id: str, endpoint_id: str) -> EndpointChange:
    """Suspend and start again. Raises NotFound, EndpointDisabled, Locked, QuotaExceeded."""
    with changing_project(account, project_id) as project:
        endpoint = find_endpoint(project, endpoint_id)
        if endpoint.disabled:
            raise EndpointDisabled("endpoint is disabled")
        refuse_used_up(project, endpoint.branch)
        operations = unfinished(project.id)
        refuse_while_deleting(endpoint.branch, operations)
        actions = (Action.SUSPEND_COMPUTE, Action.START_COMPUTE)
        steps = [Step(action, branch=endpoint.branch, endpoint=endpoint) for action in actions]
        change = _scheduled(project, endpoint, operations, steps)
        kind = EventType.ENDPOINT_RESTART_REQUESTED
        record(endpoint_requested(kind, project, endpoint, change.operations))
        return change


def delete_endpoint(account: Account, project_id: str, endpoint_id: str) -> Endpoint:
    """Delete the endpoint for good and return it as it was (rule 3).

    Its compute is stopped by the reconciler, at once. Raises NotFound.
    """
    with changing_project(account, project_id) as project:
        endpoint = find_endpoint(project, endpoint_id)
        waiting = Operation.objects.filter(endpoint=endpoint, status=OperationStatus.SCHEDULING)
        withdraw(list(waiting), OperationStatus.FAILED, "the endpoint was deleted")
        now = clock.now()
        # Counts the time it ran; the caller still gets it as it was.
        Endpoint.objects.get(id=endpoint.id).enter(EndpointState.IDLE, now=now)
        Endpoint.objects.filter(id=endpoint.id).update(deleted_at=now)
        enqueue_reconciliation(endpoint.branch_id, project)
        record(endpoint_deleted(project, endpoint))
    return endpoint


def refuse_occupied(branch: Branch) -> None:
    """Raises Conflict where the branch has its endpoint already (specification, section 8)."""
    if occupant := Endpoint.objects.filter(branch=branch, deleted_at=None).first():
        raise Conflict(
            f'read_write endpoint already exists; branch_id:"{branch.id}", '
            f'endpoint_id:"{occupant.id}"',
            code="ENDPOINTS_LIMIT_EXCEEDED",
        )


def head_for(
    project: Project,
    endpoint: Endpoint,
    state: EndpointState,
    action: Action,
    *,
    lane: Lane = Lane.REQUESTS,
) -> EndpointChange:
    """Schedule `action` in the `lane` unless the endpoint is in `state`, or under way to it. Raises
    Locked, QuotaExceeded."""
    operations = unfinished(project.id)
    pending = pending_state(endpoint, operations)
    if (pending or endpoint.current_state) == state:
        under_way = [row for row in operations if row.endpoint_id == endpoint.id]
        hurry(project, under_way, lane)
        endpoint.pending_state = pending
        return EndpointChange(endpoint, under_way)
    refuse_while_deleting(endpoint.branch, operations)
    if action == Action.START_COMPUTE:
        refuse_used_up(project, endpoint.branch)
    step = Step(action, branch=endpoint.branch, endpoint=endpoint)
    change = _scheduled(project, endpoint, operations, [step], lane=lane)
    record(endpoint_requested(REQUESTS[action], project, endpoint, change.operations))
    return change


def _scheduled(
    project: Project,
    endpoint: Endpoint,
    earlier: Sequence[Operation],
    steps: Sequence[Step],
    *,
    lane: Lane | None = None,
) -> EndpointChange:
    """The change with its steps scheduled behind the project's `earlier` unfinished operations.

    The caller holds the project's lock since before it read those: they are still as they were.
    """
    again = creation_again(endpoint.branch, earlier)
    if again and any(step.action != Action.SUSPEND_COMPUTE for step in steps):
        # A branch whose creation has failed is made now that somebody asks for it. Nobody else's
        # wake waits for the copy.
        steps, lane = [*again, *steps], None
    operations = schedule(project, steps, lane=lane) if steps else []
    endpoint.pending_state = pending_state(endpoint, [*earlier, *operations])
    return EndpointChange(endpoint, operations)


def refuse_while_configured(endpoint: Endpoint, operations: Sequence[Operation]) -> None:
    """Raises Locked where a change of the endpoint's configuration is under way.

    Where Postgres refuses a configuration, the one before it comes back; with two changes
    under way there would be no telling which that is.
    """
    for row in operations:
        if row.endpoint_id == endpoint.id and row.action == Action.APPLY_CONFIG:
            raise Locked

"""Compute endpoints: create, list, change, start, suspend, delete (specification, section 4)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from controlplane import clock
from controlplane.compute.settings.configuration import default_settings
from controlplane.compute.settings.offered_settings import Offered, offered
from controlplane.compute.settings.postgres_settings import from_json
from controlplane.events.changes import (
    endpoint_created,
    endpoint_deleted,
    endpoint_requested,
    endpoint_updated,
)
from controlplane.events.recording import differences, record
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
    RequestKind,
)
from controlplane.models.reading import Reading
from controlplane.operations.details import ApplyConfigDetails
from controlplane.operations.engine.effects import pending_state
from controlplane.operations.engine.execution import withdraw
from controlplane.operations.engine.scheduling import (
    IS_BUSY,
    Step,
    expedite,
    schedule,
    unfinished,
    unfinished_if_busy,
)
from controlplane.operations.queue.jobs import enqueue_reconciliation
from controlplane.services.branches import (
    find_branch,
    refuse_while_busy,
    refuse_while_deleting,
    refuse_while_replaced,
)
from controlplane.services.creation import creation_steps, make_endpoint
from controlplane.services.errors import Conflict, EndpointDisabled, FieldError, Locked, NotFound
from controlplane.services.projects import changing_project, find_project
from controlplane.services.rules.endpoint_attributes import (
    EndpointAttributes,
    assign_attributes,
    check_endpoint,
)
from controlplane.services.rules.plan_limits import refuse_used_up

# The type of the event for a request, by the action that it schedules.
REQUESTS = {
    Action.START_COMPUTE: EventType.ENDPOINT_START_REQUESTED,
    Action.SUSPEND_COMPUTE: EventType.ENDPOINT_SUSPEND_REQUESTED,
}
# The operations of a restart.
RESTART = (Action.SUSPEND_COMPUTE, Action.START_COMPUTE)

ENDPOINT = Reading(
    Endpoint,
    "WHERE t.project_id = %(project)s AND t.id = %(endpoint)s AND t.deleted_at IS NULL",
    joined=["branch"],
)
# Reads the endpoint and its project in one statement, the only one of most requests for one.
OWN_ENDPOINT = Reading(
    Endpoint,
    """
    WHERE t.project_id = %(project)s AND t.id = %(endpoint)s AND t.deleted_at IS NULL
        AND project.account_id = %(account)s AND project.deleted_at IS NULL
    """,
    joined=["project", "project__host", "project__region"],
    extra=IS_BUSY,
)
# Without those that read a past moment for a while (`history.time_travel`).
IN_LISTS = """
    t.project_id = %(project)s AND t.deleted_at IS NULL AND t.branch_id NOT IN (
        SELECT id FROM controlplane_branch
        WHERE project_id = %(project)s AND hidden AND deleted_at IS NULL)
"""
IN_ORDER = "ORDER BY t.created_at, t.id"
ENDPOINTS = Reading(Endpoint, f"WHERE {IN_LISTS} {IN_ORDER}")
# Those of a project or, if `branch` is given, of that branch, with what responses tell of each.
LISTED = Reading(
    Endpoint,
    f"""
    JOIN controlplane_project project ON project.id = t.project_id
    JOIN controlplane_region region ON region.id = project.region_id
    WHERE {IN_LISTS} AND project.account_id = %(account)s AND project.deleted_at IS NULL
        AND t.branch_id = coalesce(%(branch)s, t.branch_id)
    {IN_ORDER}
    """,
    extra={
        "host": "t.id || '.' || region.host",
        "region_id": "region.id",
        "proxy_host": "region.host",
    },
    without=["host", "pg_release", "starts", "check_due_at", "deleted_at"],
)


@dataclass(frozen=True)
class EndpointChange:
    """An endpoint after a request, and the operations that lead to its pending state."""

    endpoint: Endpoint
    operations: list[Operation]


def find_endpoint(project: Project, endpoint_id: str) -> Endpoint:
    """The project's endpoint with this id, with its branch. Raises NotFound."""
    endpoint = ENDPOINT.first({"project": project}, project=project.id, endpoint=endpoint_id)
    if endpoint is None:
        raise NotFound("endpoint not found", fields=["endpoint_id"])
    return endpoint


def own_endpoint(account: Account, project_id: str, endpoint_id: str) -> Endpoint:
    """The endpoint, with its project. Raises NotFound."""
    endpoint = OWN_ENDPOINT.first(project=project_id, endpoint=endpoint_id, account=account.id)
    if endpoint is None:
        # This raises, and says which of the two does not exist.
        return find_endpoint(find_project(account, project_id), endpoint_id)
    return endpoint


def get_endpoint(account: Account, project_id: str, endpoint_id: str) -> Endpoint:
    """The endpoint, with its pending state. Raises NotFound."""
    endpoint = own_endpoint(account, project_id, endpoint_id)
    endpoint.pending_state = pending_state(endpoint, unfinished_if_busy(endpoint))
    return endpoint


def list_pg_settings(account: Account, project_id: str, endpoint_id: str) -> list[Offered]:
    """The settings that the endpoint's `pg_settings` may contain. Raises NotFound."""
    endpoint = own_endpoint(account, project_id, endpoint_id)
    size, storage = endpoint.autoscaling_limit_max_cu, account.branch_size_limit
    return offered(
        max_cu=size,
        storage=storage,
        known=from_json(PostgresSettings.known_to(endpoint.project)),
        defaults=default_settings(
            min_cu=endpoint.autoscaling_limit_min_cu, max_cu=size, storage=storage
        ),
    )


def list_endpoints(
    account: Account, project_id: str, *, branch_id: str | None = None
) -> list[dict[str, Any]]:
    """All endpoints of the project, or of one of its branches; oldest first. Each is a dict of the
    fields of responses. Raises NotFound."""
    listed = LISTED.values(account=account.id, project=project_id, branch=branch_id)
    if not listed:
        project = find_project(account, project_id)
        if branch_id is not None:
            find_branch(project, branch_id)
    return listed


def create_endpoint(
    account: Account, project_id: str, *, branch_id: str, requested: EndpointAttributes
) -> EndpointChange:
    """Create an endpoint and start it, unless it is disabled (rule 1).

    Raises NotFound, Conflict, Locked, Invalid, Unprocessable.
    """
    with changing_project(account, project_id) as project:
        earlier = unfinished(project.id)
        branch = _free_branch(project, branch_id, earlier)
        endpoint, steps = make_endpoint(project, branch, requested)
        steps = [*creation_steps(branch, earlier), *steps] if steps else []
        kind = RequestKind.CREATE_ENDPOINT
        operations = schedule(project, steps, kind, earlier=earlier) if steps else []
        record(endpoint_created(project, endpoint, operations))
        return EndpointChange(endpoint, operations)


def update_endpoint(
    account: Account,
    project_id: str,
    endpoint_id: str,
    *,
    branch_id: str | None,
    requested: EndpointAttributes,
) -> EndpointChange:
    """Change the attributes that differ from the present ones: reassign, reconfigure, disable or
    enable the endpoint (rule 2).

    If nothing differs, as when a client sends all attributes back, nothing is done. Raises
    NotFound, Conflict, Locked, Invalid, Unprocessable.
    """
    with changing_project(account, project_id) as project:
        endpoint = find_endpoint(project, endpoint_id)
        operations = unfinished(project.id)
        pending = pending_state(endpoint, operations)
        left = endpoint.branch
        configuration = endpoint.configuration
        replaced = assign_attributes(endpoint, requested)
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
        was = {**replaced, "branch_id": left.id}
        changes = differences(was, {name: getattr(endpoint, name) for name in was})
        names = ", ".join(name.rpartition(".")[2] for name in changes)
        title = f"Change endpoint {endpoint.id}: {names}"
        kind = RequestKind.CHANGE_ENDPOINT
        change = _scheduled(project, endpoint, operations, steps, kind, title=title)
        record(endpoint_updated(project, endpoint, changes, change.operations))
        return change


def _free_branch(project: Project, branch_id: str, operations: Sequence[Operation]) -> Branch:
    """The branch. Raises NotFound, Locked if it is being deleted or its data is being replaced,
    Conflict if it has an endpoint."""
    branch = find_branch(project, branch_id)
    refuse_while_busy(branch, operations)
    refuse_occupied(branch)
    return branch


def _steps(
    endpoint: Endpoint, left: Branch, before: Configuration | None, heading_for: str
) -> list[Step]:
    """The steps that a change of an endpoint takes, in order. `left` is its branch before the
    change; `before` is its configuration before the change, None if that stays; `heading_for` is
    its pending or present state."""
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
    # A configuration is tested on a running compute. An idle endpoint is suspended again after
    # that.
    if reassigned or (steps and was_idle) or (endpoint.disabled and not was_idle):
        steps.append(Step(Action.SUSPEND_COMPUTE, branch=endpoint.branch, endpoint=endpoint))
    return steps


def start_endpoint(account: Account, project_id: str, endpoint_id: str) -> EndpointChange:
    """Start an endpoint. If a start is under way, return its operations.

    Raises NotFound, EndpointDisabled, Locked, QuotaExceeded.
    """
    with changing_project(account, project_id) as project:
        endpoint = find_endpoint(project, endpoint_id)
        if endpoint.disabled:
            raise EndpointDisabled("endpoint is disabled")
        return ensure_state(project, endpoint, EndpointState.ACTIVE, Action.START_COMPUTE)


def suspend_endpoint(account: Account, project_id: str, endpoint_id: str) -> EndpointChange:
    """Suspend an endpoint. Raises NotFound, Locked."""
    with changing_project(account, project_id) as project:
        endpoint = find_endpoint(project, endpoint_id)
        return ensure_state(project, endpoint, EndpointState.IDLE, Action.SUSPEND_COMPUTE)


def restart_endpoint(account: Account, project_id: str, endpoint_id: str) -> EndpointChange:
    """Suspend the endpoint and start it again. If a restart is the last that was asked of the
    endpoint, and has not begun, return its operations.

    Raises NotFound, EndpointDisabled, Locked, QuotaExceeded.
    """
    with changing_project(account, project_id) as project:
        endpoint = find_endpoint(project, endpoint_id)
        if endpoint.disabled:
            raise EndpointDisabled("endpoint is disabled")
        refuse_used_up(project, endpoint.branch)
        operations = unfinished(project.id)
        refuse_while_deleting(endpoint.branch, operations)
        if waiting := _waiting_restart(endpoint, operations):
            endpoint.pending_state = pending_state(endpoint, operations)
            return EndpointChange(endpoint, waiting)
        steps = [Step(action, branch=endpoint.branch, endpoint=endpoint) for action in RESTART]
        restart = RequestKind.RESTART_ENDPOINT
        change = _scheduled(project, endpoint, operations, steps, restart)
        kind = EventType.ENDPOINT_RESTART_REQUESTED
        record(endpoint_requested(kind, project, endpoint, change.operations))
        return change


def _waiting_restart(endpoint: Endpoint, operations: Sequence[Operation]) -> list[Operation]:
    """The endpoint's last two of the unfinished operations if they restart it and have not begun;
    else none."""
    last = [row for row in operations if row.endpoint_id == endpoint.id][-2:]
    is_waiting = all(
        row.kind == RequestKind.RESTART_ENDPOINT
        and row.status == OperationStatus.SCHEDULING
        and row.chain == last[-1].chain
        for row in last
    )
    return last if is_waiting and tuple(row.action for row in last) == RESTART else []


def delete_endpoint(account: Account, project_id: str, endpoint_id: str) -> Endpoint:
    """Delete the endpoint and return it as it was (rule 3).

    The reconciler, which is notified at once, stops its compute. Raises NotFound, Locked.
    """
    with changing_project(account, project_id) as project:
        endpoint = find_endpoint(project, endpoint_id)
        waiting = Operation.objects.filter(endpoint=endpoint, status=OperationStatus.SCHEDULING)
        withdraw(list(waiting), OperationStatus.FAILED, "the endpoint was deleted")
        now = clock.now()
        # This counts the active time until now. It uses another object, because the caller gets the
        # endpoint as it was.
        Endpoint.objects.get(id=endpoint.id).enter(EndpointState.IDLE, now=now)
        Endpoint.objects.filter(id=endpoint.id).update(deleted_at=now)
        enqueue_reconciliation(endpoint.branch_id, project)
        record(endpoint_deleted(project, endpoint))
    return endpoint


def refuse_occupied(branch: Branch) -> None:
    """Raises Conflict if the branch has an endpoint already (specification, section 8)."""
    if occupant := Endpoint.objects.filter(branch=branch, deleted_at=None).first():
        words = (
            f'the branch "{branch.name}" already has the endpoint {occupant.id}, and a branch has '
            "at most one: choose another branch, or first reassign or delete that endpoint"
        )
        # Clients of Neon know the beginning.
        raise Conflict(
            f'read_write endpoint already exists; branch_id:"{branch.id}", '
            f'endpoint_id:"{occupant.id}"; {words}',
            code="ENDPOINTS_LIMIT_EXCEEDED",
            errors=[FieldError("branch_id", words)],
        )


def ensure_state(
    project: Project,
    endpoint: Endpoint,
    state: EndpointState,
    action: Action,
    *,
    lane: Lane = Lane.REQUESTS,
) -> EndpointChange:
    """Schedule `action` in the `lane`, unless the endpoint is in `state` or its unfinished
    operations lead to it; these are then moved to the `lane` if it is more urgent. Raises Locked,
    QuotaExceeded, HostAway."""
    operations = unfinished(project.id)
    pending = pending_state(endpoint, operations)
    if (pending or endpoint.current_state) == state:
        under_way = [row for row in operations if row.endpoint_id == endpoint.id]
        expedite(project, under_way, lane)
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
    kind: str = "",
    *,
    title: str = "",
    lane: Lane | None = None,
) -> EndpointChange:
    """Schedule the steps after the project's `earlier` unfinished operations.

    The caller has held the project's lock since before it read these, so they are up to date.
    """
    again = creation_steps(endpoint.branch, earlier)
    if again and any(step.action != Action.SUSPEND_COMPUTE for step in steps):
        # The branch's creation has failed; create it again. The chain does not run in the lane of
        # wakes, because the wakes of other clients must not wait for a copy.
        steps, lane = [*again, *steps], None
    operations: list[Operation] = []
    if steps:
        operations = schedule(project, steps, kind, title=title, lane=lane, earlier=earlier)
    endpoint.pending_state = pending_state(endpoint, [*earlier, *operations])
    return EndpointChange(endpoint, operations)


def refuse_while_configured(endpoint: Endpoint, operations: Sequence[Operation]) -> None:
    """Raises Locked if one of the unfinished `operations` changes the endpoint's configuration.

    If Postgres refuses a configuration, the previous one is restored. With two changes under way it
    would not be clear which one that is.
    """
    for row in operations:
        if row.endpoint_id == endpoint.id and row.action == Action.APPLY_CONFIG:
            raise Locked

"""Compute endpoints: create, list, change, start, suspend, delete (specification, section 4)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import IntegrityError
from django.db.models import QuerySet
from django.utils import timezone

from controlplane.models import (
    Account,
    Action,
    Branch,
    Configuration,
    Endpoint,
    EndpointState,
    Lane,
    Operation,
    Project,
)
from controlplane.operations.details import ApplyConfigDetails
from controlplane.operations.effects import pending_state
from controlplane.operations.engine import Step, cancel, hurry, schedule, unfinished
from controlplane.operations.queue import enqueue_reconciliation
from controlplane.services.branches import find_branch, refuse_while_deleting
from controlplane.services.endpoint_settings import check_limits, check_pg_settings
from controlplane.services.errors import (
    Conflict,
    EndpointDisabled,
    Invalid,
    Locked,
    NotFound,
    Unprocessable,
)
from controlplane.services.projects import changing_project, find_project, new_endpoint

# Changing one of these is an operation: the compute must take it in.
CONFIGURATION = (
    "settings",
    "autoscaling_limit_min_cu",
    "autoscaling_limit_max_cu",
    "pooler_enabled",
)


@dataclass(frozen=True)
class EndpointChange:
    """An endpoint after a request, and the operations that take it where it is heading."""

    endpoint: Endpoint
    operations: list[Operation]


def find_endpoint(project: Project, endpoint_id: str) -> Endpoint:
    """Raises NotFound."""
    endpoint = (
        Endpoint.objects.select_related("branch")
        .filter(project=project, id=endpoint_id, deleted_at=None)
        .first()
    )
    if endpoint is None:
        raise NotFound("endpoint not found")
    endpoint.project = project
    return endpoint


def get_endpoint(account: Account, project_id: str, endpoint_id: str) -> Endpoint:
    """The endpoint, with its pending state. Raises NotFound."""
    project = find_project(account, project_id)
    endpoint = find_endpoint(project, endpoint_id)
    endpoint.pending_state = pending_state(endpoint, unfinished(project.id))
    return endpoint


def list_endpoints(
    account: Account, project_id: str, *, branch_id: str | None = None
) -> QuerySet[Endpoint]:
    """All endpoints of the project, or of one of its branches; oldest first. Raises NotFound."""
    project = find_project(account, project_id)
    endpoints = Endpoint.objects.select_related("project__region").filter(
        project=project, deleted_at=None
    )
    if branch_id is not None:
        endpoints = endpoints.filter(branch=find_branch(project, branch_id))
    return endpoints.order_by("created_at", "id")


def create_endpoint(
    account: Account, project_id: str, *, branch_id: str, attributes: Mapping[str, Any]
) -> EndpointChange:
    """Create an endpoint and start it (rule 1).

    Raises NotFound, Conflict, Locked, Invalid, Unprocessable.
    """
    with changing_project(account, project_id) as project:
        if attributes.get("region_id", project.region_id) != project.region_id:
            raise Unprocessable(
                f'the endpoint must be in its project\'s region "{project.region_id}"'
            )
        branch = find_branch(project, branch_id)
        refuse_while_deleting(project, branch)
        refuse_occupied(branch)
        endpoint = new_endpoint(project, branch)
        for name, value in attributes.items():
            if name != "region_id":
                setattr(endpoint, name, value)
        _check(account, project, endpoint, attributes)
        try:
            endpoint.save(force_insert=True)
        except IntegrityError as error:
            raise Conflict("read_write endpoint already exists") from error
        if endpoint.disabled:
            endpoint.enter(EndpointState.IDLE, now=endpoint.created_at)
            return EndpointChange(endpoint, [])
        return _scheduled(
            project, endpoint, [Step(Action.START_COMPUTE, branch=branch, endpoint=endpoint)]
        )


def update_endpoint(
    account: Account, project_id: str, endpoint_id: str, attributes: Mapping[str, Any]
) -> EndpointChange:
    """Change what differs: reassign, reconfigure, disable, enable (rule 2).

    What is the same already is no change: sending all attributes back does nothing. Raises
    NotFound, Conflict, Locked, Invalid, Unprocessable.
    """
    with changing_project(account, project_id) as project:
        endpoint = find_endpoint(project, endpoint_id)
        changes = {
            name: value for name, value in attributes.items() if getattr(endpoint, name) != value
        }
        operations = unfinished(project.id)
        pending = pending_state(endpoint, operations)
        if not changes:
            endpoint.pending_state = pending
            return EndpointChange(endpoint, [])
        refuse_while_deleting(project, endpoint.branch)
        before = endpoint.configuration if set(CONFIGURATION) & set(changes) else None
        if before and _is_being_configured(endpoint, operations):
            # A refusal by Postgres brings the settings before it back; with two changes
            # under way there would be no telling which those are.
            raise Locked
        left = endpoint.branch
        if "branch_id" in changes:
            branch = find_branch(project, changes["branch_id"])
            refuse_while_deleting(project, branch)
            refuse_occupied(branch)
            endpoint.branch = branch
        for name, value in changes.items():
            setattr(endpoint, name, value)
        _check(account, project, endpoint, changes)
        endpoint.updated_at = timezone.now()
        endpoint.save(update_fields=[*changes, "updated_at"])
        heading_for = pending or endpoint.current_state
        return _scheduled(project, endpoint, _steps(endpoint, left, before, heading_for))


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

    Raises NotFound, EndpointDisabled, Locked.
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
    """Suspend and start again. Raises NotFound, EndpointDisabled, Locked."""
    with changing_project(account, project_id) as project:
        endpoint = find_endpoint(project, endpoint_id)
        if endpoint.disabled:
            raise EndpointDisabled("endpoint is disabled")
        refuse_while_deleting(project, endpoint.branch)
        actions = (Action.SUSPEND_COMPUTE, Action.START_COMPUTE)
        steps = [Step(action, branch=endpoint.branch, endpoint=endpoint) for action in actions]
        return _scheduled(project, endpoint, steps)


def delete_endpoint(account: Account, project_id: str, endpoint_id: str) -> Endpoint:
    """Delete the endpoint for good and return it as it was (rule 3).

    Its compute is stopped by the reconciler, at once. Raises NotFound.
    """
    with changing_project(account, project_id) as project:
        endpoint = find_endpoint(project, endpoint_id)
        waiting = [row for row in unfinished(project.id) if row.endpoint_id == endpoint.id]
        cancel(waiting, "the endpoint was deleted")
        now = timezone.now()
        # Counts the time it ran; the caller still gets it as it was.
        Endpoint.objects.get(id=endpoint.id).enter(EndpointState.IDLE, now=now)
        Endpoint.objects.filter(id=endpoint.id).update(deleted_at=now)
        enqueue_reconciliation(endpoint.branch_id, project)
    return endpoint


def refuse_occupied(branch: Branch) -> None:
    """Raises Conflict where the branch has its endpoint already (section 8)."""
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
    """Schedule `action` in the `lane` unless the endpoint is in `state`, or under way to it."""
    operations = unfinished(project.id)
    pending = pending_state(endpoint, operations)
    if (pending or endpoint.current_state) == state:
        under_way = [row for row in operations if row.endpoint_id == endpoint.id]
        hurry(project, under_way, lane)
        endpoint.pending_state = pending
        return EndpointChange(endpoint, under_way)
    refuse_while_deleting(project, endpoint.branch)
    steps = [Step(action, branch=endpoint.branch, endpoint=endpoint)]
    return _scheduled(project, endpoint, steps, lane=lane)


def _scheduled(
    project: Project, endpoint: Endpoint, steps: Sequence[Step], *, lane: Lane | None = None
) -> EndpointChange:
    operations = schedule(project, steps, lane=lane) if steps else []
    endpoint.pending_state = pending_state(endpoint, unfinished(project.id))
    return EndpointChange(endpoint, operations)


def _is_being_configured(endpoint: Endpoint, operations: Sequence[Operation]) -> bool:
    return any(
        row.endpoint_id == endpoint.id and row.action == Action.APPLY_CONFIG for row in operations
    )


def _check(
    account: Account, project: Project, endpoint: Endpoint, changes: Mapping[str, Any]
) -> None:
    check_limits(account, endpoint.autoscaling_limit_min_cu, endpoint.autoscaling_limit_max_cu)
    if "settings" in changes:
        if "pg_settings" not in endpoint.settings:
            raise Invalid("settings must not be nil")
        check_pg_settings(endpoint.settings["pg_settings"])
    if changes.get("pooler_enabled") and not project.region.pooling_available:
        raise Unprocessable(
            f'pooling is not available in the region "{project.region_id}": '
            "PgBouncer is not installed on its host"
        )

"""What the proxy asks for: an endpoint that runs, because somebody connects to it."""

import uuid
from datetime import timedelta

from controlplane import clock
from controlplane.models import Action, Endpoint, EndpointState, Lane, Operation, OperationStatus
from controlplane.models.reading import Reading
from controlplane.operations.actions import STARTS
from controlplane.operations.effects import LIVING, living_endpoint
from controlplane.operations.locks import locked_project
from controlplane.operations.reconcile import reconcile_branch
from controlplane.operations.scheduling import RegionAway
from controlplane.services.endpoints import head_for
from controlplane.services.errors import EndpointDisabled, NotFound, ServiceError

LONGEST_PAUSE = 300  # seconds
# One that somebody has cancelled says nothing of how the endpoint fares.
TELLS_NOTHING = [OperationStatus.CANCELLING, OperationStatus.CANCELLED]

WITH_BRANCH = Reading(
    Endpoint,
    LIVING,
    joined=["branch"],
    # Whether its newest start that told of anything has failed: mostly none has, and whoever waits
    # to be let in need not wait for another statement.
    extra={
        "failed_last": """
            SELECT status = 'failed' FROM controlplane_operation
            WHERE endpoint_id = t.id AND action = ANY(%(starts)s) AND status <> ALL(%(nothing)s)
            ORDER BY created_at DESC LIMIT 1
        """
    },
)


class WakePostponed(ServiceError):
    """The endpoint cannot be started now, but may be later: its last start failed lately, or
    nobody is there to start it."""


def start_for_client(endpoint_id: str) -> list[uuid.UUID]:
    """Have the endpoint start; returns the ids of the operations to wait for, if any.

    After a failed start the next is tried only after a pause that grows with each failure.
    Raises NotFound, EndpointDisabled, Locked, WakePostponed, QuotaExceeded.
    """
    found = living_endpoint(endpoint_id)
    if found is None:
        raise NotFound("endpoint not found")
    with locked_project(found.project_id) as project:
        endpoint = WITH_BRANCH.first(
            {"project": project}, endpoint=endpoint_id, starts=STARTS, nothing=TELLS_NOTHING
        )
        if endpoint is None or project.deleted_at is not None:
            raise NotFound("endpoint not found")
        if endpoint.disabled:
            raise EndpointDisabled("endpoint is disabled")
        endpoint.branch.project = project
        if endpoint.current_state != EndpointState.ACTIVE and endpoint.__dict__["failed_last"]:
            _refuse_too_early(endpoint)
        try:
            change = head_for(
                project, endpoint, EndpointState.ACTIVE, Action.START_COMPUTE, lane=Lane.WAKES
            )
        except RegionAway as error:
            raise WakePostponed(str(error)) from error
    return [operation.id for operation in change.operations]


def notice_death(endpoint_id: str) -> None:
    """Look whether the endpoint's compute, which did not answer, has died.

    Raises filesystem.LockTimeout where an operation is at work on the branch.
    """
    endpoint = living_endpoint(endpoint_id)
    if endpoint is not None:
        reconcile_branch(endpoint.branch_id, timeout=1)


def _refuse_too_early(endpoint: Endpoint) -> None:
    """Raises WakePostponed."""
    starts = Operation.objects.filter(endpoint=endpoint, action__in=STARTS).exclude(
        status__in=TELLS_NOTHING
    )
    failures = []
    for operation in starts.order_by("-created_at")[:10]:
        if operation.status != OperationStatus.FAILED:
            break
        failures.append(operation)
    if not failures:
        return
    pause = timedelta(seconds=min(2 ** len(failures), LONGEST_PAUSE))
    wait = failures[0].updated_at + pause - clock.now()
    if wait > timedelta(0):
        raise WakePostponed(
            f"endpoint could not start: {failures[0].error} "
            f"(tried again in {wait.total_seconds():.0f} s)"
        )

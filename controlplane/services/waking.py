"""Wakes endpoints for the proxy, because a client connects to them."""

from collections.abc import Sequence
from datetime import timedelta
from itertools import takewhile

from controlplane import clock
from controlplane.models import Action, Endpoint, EndpointState, Lane, Operation, OperationStatus
from controlplane.models.reading import Reading
from controlplane.operations.actions.table import STARTS
from controlplane.operations.engine.effects import LIVING, living_endpoint
from controlplane.operations.engine.scheduling import HostAway
from controlplane.operations.locks import locked_project
from controlplane.operations.rounds.reconcile import reconcile_branch
from controlplane.services.endpoints import ensure_state
from controlplane.services.errors import EndpointDisabled, NotFound, ServiceError

MAX_RETRY_DELAY = 300  # seconds
# A cancelled start does not show whether the endpoint can start, so it is ignored.
TELLS_NOTHING = [OperationStatus.CANCELLING, OperationStatus.CANCELLED]

WITH_BRANCH = Reading(
    Endpoint,
    LIVING,
    joined=["branch"],
    # Whether its newest start that was not cancelled has failed. Usually it has not, and then the
    # waiting client need not wait for another statement.
    extra={
        "failed_last": """
            SELECT status = 'failed' FROM controlplane_operation
            WHERE endpoint_id = t.id AND action = ANY(%(starts)s) AND status <> ALL(%(nothing)s)
            ORDER BY created_at DESC LIMIT 1
        """,
        "account_disabled": """
            SELECT a.disabled_at IS NOT NULL FROM controlplane_account a
            JOIN controlplane_project p ON p.account_id = a.id WHERE p.id = t.project_id
        """,
    },
)


class WakePostponed(ServiceError):
    """The endpoint cannot be started now, but maybe later: its last start failed recently, or the
    host is away."""


class HostWaits(WakePostponed):
    """The host's worker gives no sign of life."""


def start_for_client(endpoint_id: str) -> Sequence[Operation]:
    """Start the endpoint. Returns the operations to wait for; none if it is active.

    After a failed start the next one is only allowed after a pause, which grows with each failure.
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
        if endpoint.disabled or endpoint.__dict__["account_disabled"]:
            raise EndpointDisabled("endpoint is disabled")
        endpoint.branch.project = project
        if endpoint.current_state != EndpointState.ACTIVE and endpoint.__dict__["failed_last"]:
            _refuse_too_early(endpoint)
        try:
            change = ensure_state(
                project, endpoint, EndpointState.ACTIVE, Action.START_COMPUTE, lane=Lane.WAKES
            )
        except HostAway as error:
            raise HostWaits(str(error)) from error
    return change.operations


def notice_death(endpoint_id: str) -> None:
    """Check whether the endpoint's compute, which did not answer the proxy, has died, and correct
    the rows if so.

    Raises filesystem.LockTimeout if another process holds the branch's lock, such as a running
    operation.
    """
    endpoint = living_endpoint(endpoint_id)
    if endpoint is not None:
        reconcile_branch(endpoint.branch_id, timeout=1)


def _refuse_too_early(endpoint: Endpoint) -> None:
    """Raises WakePostponed while the pause after the last failed starts is not over."""
    starts = Operation.objects.filter(endpoint=endpoint, action__in=STARTS).exclude(
        status__in=TELLS_NOTHING
    )
    newest = starts.order_by("-created_at")[:10]
    failures = [*takewhile(lambda one: one.status == OperationStatus.FAILED, newest)]
    if not failures:
        return
    pause = timedelta(seconds=min(2 ** len(failures), MAX_RETRY_DELAY))
    wait = failures[0].updated_at + pause - clock.now()
    if wait > timedelta(0):
        raise WakePostponed(
            f"endpoint could not start: {failures[0].error} "
            f"(the next start is possible in {wait.total_seconds():.0f} s)"
        )

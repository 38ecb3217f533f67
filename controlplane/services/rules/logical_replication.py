"""Makes a project's computes log what logical replication needs."""

from django.db.models import F

from controlplane.events.changes import endpoint_requested
from controlplane.events.recording import record
from controlplane.events.types import EventType
from controlplane.models import Action, Branch, Endpoint, EndpointState, Operation, Project
from controlplane.operations.engine.effects import pending_state
from controlplane.operations.engine.scheduling import Step, schedule, unfinished


def suspend_for_logical_replication(project: Project) -> list[Operation]:
    """Make every endpoint of the project start anew, with `wal_level=logical` and roles that may
    replicate. Endpoints that are active, or are being started, are suspended; the next client wakes
    them.

    The caller holds the project's lock, and has changed the project's setting. Raises HostAway.
    """
    # With a new revision, the next start of each compute applies the roles again.
    Branch.objects.filter(project=project, deleted_at=None).update(
        catalog_revision=F("catalog_revision") + 1
    )
    earlier = unfinished(project.id)
    endpoints = Endpoint.objects.select_related("branch").filter(project=project, deleted_at=None)
    operations = []
    for endpoint in endpoints.order_by("created_at", "id"):
        endpoint.project = project
        heading_for = pending_state(endpoint, earlier) or endpoint.current_state
        if heading_for == EndpointState.ACTIVE:
            # Each suspend is its own chain, so that a failed one does not prevent the others.
            step = Step(Action.SUSPEND_COMPUTE, branch=endpoint.branch, endpoint=endpoint)
            suspends = schedule(project, [step])
            kind = EventType.ENDPOINT_SUSPEND_REQUESTED
            record(endpoint_requested(kind, project, endpoint, suspends))
            operations += suspends
    return operations

"""Turns a project's computes over to logging what logical replication needs."""

from django.db.models import F

from controlplane.events.changes import endpoint_requested
from controlplane.events.recording import record
from controlplane.events.types import EventType
from controlplane.models import Action, Branch, Endpoint, EndpointState, Operation, Project
from controlplane.operations.effects import pending_state
from controlplane.operations.scheduling import Step, schedule, unfinished


def suspend_for_logical_replication(project: Project) -> list[Operation]:
    """Have every endpoint of the project start anew, with `wal_level=logical` and roles that may
    replicate: those that run, or are about to, are suspended until somebody connects.

    The caller holds the project's lock, and has given it the setting. Raises RegionAway.
    """
    # What has no start under way applies its roles anew with the next one.
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
            # A chain for each: one that does not stop keeps no other from being suspended.
            step = Step(Action.SUSPEND_COMPUTE, branch=endpoint.branch, endpoint=endpoint)
            suspends = schedule(project, [step])
            kind = EventType.ENDPOINT_SUSPEND_REQUESTED
            record(endpoint_requested(kind, project, endpoint, suspends))
            operations += suspends
    return operations

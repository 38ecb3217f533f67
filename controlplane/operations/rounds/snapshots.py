"""Deletes snapshots whose `expires_at` has passed."""

from controlplane import clock
from controlplane.actors import EXPIRY, acting_as
from controlplane.events.changes import snapshot_expired
from controlplane.events.recording import record
from controlplane.models import Action, Host, Operation, Project, RequestKind, Snapshot
from controlplane.operations.engine.scheduling import Step, schedule
from controlplane.operations.locks import apart, locked_project

# The most snapshots that one round handles; the next round continues.
BATCH_SIZE = 50


def schedule_snapshot_deletion(project: Project, snapshot: Snapshot) -> list[Operation]:
    """Schedule the removal of the snapshot's data. The caller holds the project's lock."""
    step = Step(Action.DELETE_TIMELINE, branch=snapshot.data_branch)
    title = f"Delete snapshot {snapshot.name}"
    return schedule(project, [step], RequestKind.DELETE_SNAPSHOT, title=title)


def expire_snapshots(host: Host) -> None:
    """Delete the snapshots that are due, each with an operation that removes its data."""
    due = Snapshot.objects.filter(
        expires_at__lte=clock.now(), project__host=host, project__deleted_at=None
    )
    for snapshot_id, project_id in due.values_list("id", "project_id")[:BATCH_SIZE]:
        with apart(project_id), acting_as(EXPIRY), locked_project(project_id) as project:
            # It may have been deleted or given more time meanwhile, or its project deleted.
            found = due.select_related("data_branch").filter(id=snapshot_id).first()
            if found is not None:
                operations = schedule_snapshot_deletion(project, found)
                record(snapshot_expired(project, found, operations))
                found.delete()

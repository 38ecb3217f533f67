"""Moves operations to the lane of the more urgent ones that wait for them. Callers hold the
project's lock (`locks.locked_project`)."""

from collections.abc import Sequence

from controlplane.models import HANDED_OVER, Lane, Operation, Project
from controlplane.operations.queue.jobs import move_job


def move_ahead(project: Project, operations: Sequence[Operation]) -> None:
    """Give each of the project's unfinished operations, oldest first, the lane of the most urgent
    operation that waits for it, so that no operation waits for a less urgent lane."""
    # For each resource, the lane of the most urgent operation so far that holds it. The project's
    # id stands for all resources of the project.
    wanted: dict[str, Lane] = {}
    for operation in reversed(operations):
        holds_all = project.id in operation.resources
        held = wanted.keys() if holds_all else {project.id, *operation.resources}
        lane = min(
            (Lane(operation.lane), *(wanted[one] for one in held if one in wanted)),
            key=list(Lane).index,
        )
        if lane != operation.lane:
            enter_lane(project, operation, lane)
        for one in operation.resources:
            wanted[one] = lane


def enter_lane(project: Project, operation: Operation, lane: Lane) -> None:
    """Move an operation to a lane. If a worker has begun it, only its next attempt is moved."""
    operation.lane = lane
    operation.save(update_fields=["lane"])
    if operation.status in HANDED_OVER and operation.dispatched_at:
        move_job(operation, project)

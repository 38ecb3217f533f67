"""What the engine puts into the queue, in its own transaction. All raise django.db.Error."""

import uuid
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.contrib.postgres.functions import TransactionNow
from django.db import connection
from django.db.models import F, QuerySet
from django.db.models.functions import Greatest

from controlplane.models import HANDED_OVER, Job, JobTask, Lane, Operation, Project, SchemaReading

# The row lock keeps every worker from taking the job before the transaction ends.
HOLD = """
SELECT taken_by IS NULL AND runs = '[]' FROM controlplane_job
WHERE task = 'run_operation' AND subject = %s FOR UPDATE
"""
# A job for a worker of the previous release. For `has_begun`, it may have begun.
ENQUEUE_FORMERLY = """
INSERT INTO procrastinate_jobs (queue_name, task_name, lock, args)
VALUES (%s, 'controlplane.' || %s, %s, jsonb_build_object(%s, %s, 'account', %s))
"""
SUBJECTS = {
    JobTask.RUN_OPERATION: "operation_id",
    JobTask.RECONCILE_BRANCH: "branch_id",
    JobTask.READ_SCHEMA: "reading_id",
}


def enqueue_operation(
    operation: Operation, project: Project, *, at: datetime | None = None
) -> None:
    """Enqueue a job that runs the operation on its host and in its lane, immediately or not before
    `at`."""
    _enqueue(
        JobTask.RUN_OPERATION,
        str(operation.id),
        project,
        Lane(operation.lane),
        action=operation.action,
        at=at,
    )


def enqueue_reconciliation(branch_id: str, project: Project) -> None:
    """Enqueue a job that checks whether what runs on the branch should run."""
    _enqueue(JobTask.RECONCILE_BRANCH, branch_id, project, Lane.REQUESTS)


def enqueue_reading(reading: SchemaReading, project: Project) -> None:
    """Enqueue a job that reads the schema."""
    _enqueue(JobTask.READ_SCHEMA, str(reading.id), project, Lane.REQUESTS)


def _enqueue(task: JobTask, subject: str, project: Project, lane: Lane, **more: Any) -> None:
    host, account_id = project.host, project.account_id
    queue = host.queue(lane)
    if host.version == host.jobs_version:
        Job.enqueue(queue, task=task, subject=subject, account_id=account_id, **more)
        return
    with connection.cursor() as cursor:
        named = (queue, str(task), subject, SUBJECTS[task], subject)
        cursor.execute(ENQUEUE_FORMERLY, [*named, account_id])


def has_begun(operation: Operation) -> bool:
    """Return whether a worker has taken the job of an operation that was dispatched, now or
    earlier; that earlier run may have ended because the worker died or the database failed. If
    False, no worker takes the job before the transaction ends."""
    with connection.cursor() as cursor:
        cursor.execute(HOLD, [str(operation.id)])
        return cursor.fetchall() != [(True,)] or operation.failures_count > 0


# If a worker takes the job at the same moment, the row lock decides: either the worker does not
# find it, or these find it taken and change nothing.


def take_job_back(operation: Operation) -> None:
    """Remove the operation's job from the queue, unless a worker has taken it."""
    _waiting(operation).delete()


def hasten_job(operation: Operation) -> None:
    """Make the operation's job run now, if it waits for the time of the next attempt."""
    _waiting(operation).update(due_at=TransactionNow())


def move_job(operation: Operation, project: Project) -> None:
    """Move the operation's job to the queue of the operation's lane, unless a worker has taken
    it."""
    queue = project.host.queue(operation.lane)
    _waiting(operation).update(queue=queue, due_at=Greatest(F("due_at"), TransactionNow()))


def _waiting(operation: Operation) -> QuerySet[Job]:
    return Job.objects.filter(
        task=JobTask.RUN_OPERATION, subject=str(operation.id), taken_by__isnull=True
    )


def picked_up_at(operation_id: uuid.UUID) -> datetime | None:
    """Return when the worker that executes the operation now took its job; None if none does."""
    taken = Job.objects.filter(subject=str(operation_id), taken_by__isnull=False)
    return taken.values_list("taken_at", flat=True).first()


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

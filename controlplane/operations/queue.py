"""The door to Procrastinate: what the engine puts into the queue, in its own transaction.

A job that waits is a row of the queue and nothing else: it holds no thread and no slot, and can
still be moved. One that a worker has taken has begun.
"""

from datetime import datetime

from django.db import connection
from procrastinate.contrib.django import app

from controlplane.models import Lane, Operation, Project

TAKE_BACK = """
DELETE FROM procrastinate_jobs
WHERE status = 'todo' AND task_name = 'controlplane.run_operation' AND lock = %s
RETURNING scheduled_at, attempts
"""
# Nobody takes the job before the transaction ends.
HOLD = """
SELECT status = 'todo' AND attempts = 0 FROM procrastinate_jobs
WHERE status IN ('todo', 'doing') AND task_name = 'controlplane.run_operation' AND lock = %s
FOR UPDATE
"""
KEEP_ATTEMPTS = "UPDATE procrastinate_jobs SET attempts = %s WHERE id = %s"


def enqueue_operation(operation: Operation, project: Project, *, at: datetime | None = None) -> int:
    """Have the region's worker run the operation in its lane, at once or not before `at`. Returns
    the job's id."""
    job_id: int = app.configure_task(
        "controlplane.run_operation",
        queue=project.region.queue(operation.lane),
        schedule_at=at,
        lock=str(operation.id),
    ).defer(operation_id=str(operation.id), account=project.account_id)
    return job_id


def has_begun(operation: Operation) -> bool:
    """Whether a worker has taken the job of an operation that was handed over, now or earlier: it
    may have died, or the database have failed it. Where none has, none does before the
    transaction ends."""
    with connection.cursor() as cursor:
        cursor.execute(HOLD, [str(operation.id)])
        return cursor.fetchall() != [(True,)] or operation.failures_count > 0


def take_job_back(operation: Operation) -> None:
    """Have nobody run the operation, unless a worker has taken it."""
    with connection.cursor() as cursor:
        cursor.execute(TAKE_BACK, [str(operation.id)])


def hasten_job(operation: Operation, project: Project) -> None:
    """Have the operation run now that was to wait for another attempt."""
    _enqueue_anew(operation, project, waits=False)


def move_job(operation: Operation, project: Project) -> None:
    """Have the operation's job wait in the queue of its lane, unless a worker has taken it.

    A job that is taken at this moment is locked by whoever comes first: either the worker finds
    it gone, or we find it taken.
    """
    _enqueue_anew(operation, project, waits=True)


def _enqueue_anew(operation: Operation, project: Project, *, waits: bool) -> None:
    with connection.cursor() as cursor:
        cursor.execute(TAKE_BACK, [str(operation.id)])
        for scheduled_at, attempts in cursor.fetchall():
            job_id = enqueue_operation(operation, project, at=scheduled_at if waits else None)
            if attempts:
                cursor.execute(KEEP_ATTEMPTS, [attempts, job_id])


def enqueue_reconciliation(branch_id: str, project: Project) -> None:
    """Have the region's worker look whether what runs on the branch should."""
    app.configure_task(
        "controlplane.reconcile_branch", queue=project.region.queue(Lane.REQUESTS)
    ).defer(branch_id=branch_id, account=project.account_id)

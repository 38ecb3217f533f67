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
RETURNING scheduled_at
"""


def enqueue_operation(
    operation: Operation, project: Project, *, at: datetime | None = None
) -> None:
    """Have the region's worker run the operation in its lane, at once or not before `at`."""
    app.configure_task(
        "controlplane.run_operation",
        queue=project.region.queue(operation.lane),
        schedule_at=at,
        lock=str(operation.id),
    ).defer(operation_id=str(operation.id), account=project.account_id)


def move_job(operation: Operation, project: Project) -> None:
    """Have the operation's job wait in the queue of its lane, unless a worker has taken it.

    A job that is taken at this moment is locked by whoever comes first: either the worker finds
    it gone, or we find it taken.
    """
    with connection.cursor() as cursor:
        cursor.execute(TAKE_BACK, [str(operation.id)])
        waiting = cursor.fetchall()
    for (scheduled_at,) in waiting:
        enqueue_operation(operation, project, at=scheduled_at)


def enqueue_reconciliation(branch_id: str, project: Project) -> None:
    """Have the region's worker look whether what runs on the branch should."""
    app.configure_task(
        "controlplane.reconcile_branch", queue=project.region.queue(Lane.REQUESTS)
    ).defer(branch_id=branch_id, account=project.account_id)

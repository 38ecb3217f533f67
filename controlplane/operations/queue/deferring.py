"""The interface to Procrastinate: what the engine puts into the queue, in its own transaction.

A job that waits is only a row of the queue: it occupies no thread and no slot, and it can still be
moved. A job that a worker has taken has begun.
"""

import uuid
from dataclasses import dataclass
from datetime import datetime

from django.db import connection
from procrastinate.contrib.django import app
from procrastinate.jobs import Job

from controlplane.database.queue_errors import database_errors
from controlplane.models import Lane, Operation, Project, SchemaReading

TAKE_BACK = """
DELETE FROM procrastinate_jobs
WHERE status = 'todo' AND task_name = 'controlplane.run_operation' AND lock = %s
RETURNING scheduled_at, attempts
"""
RUNS = """
SELECT type, at FROM procrastinate_events
WHERE job_id = %s AND type IN ('started', 'deferred_for_retry') ORDER BY id
"""
STARTED = """
SELECT max(event.at) FROM procrastinate_jobs job
JOIN procrastinate_events event ON event.job_id = job.id AND event.type = 'started'
WHERE job.lock = %s AND job.status = 'doing'
"""
# The row lock keeps every worker from taking the job before the transaction ends.
HOLD = """
SELECT status = 'todo' AND attempts = 0 FROM procrastinate_jobs
WHERE status IN ('todo', 'doing') AND task_name = 'controlplane.run_operation' AND lock = %s
FOR UPDATE
"""
KEEP_ATTEMPTS = "UPDATE procrastinate_jobs SET attempts = %s WHERE id = %s"


@dataclass(frozen=True)
class Run:
    """A run of a job that did not end it, because its worker died or the database failed."""

    picked_up_at: datetime
    put_back_at: datetime


def enqueue_operation(operation: Operation, project: Project, *, at: datetime | None = None) -> int:
    """Enqueue a job that runs the operation on its host and in its lane, immediately or not before
    `at`. Returns the job's id. Raises django.db.Error."""
    task = app.configure_task(
        "controlplane.run_operation",
        queue=project.host.queue(operation.lane),
        schedule_at=at,
        lock=str(operation.id),
    )
    with database_errors():
        job_id: int = task.defer(operation_id=str(operation.id), account=project.account_id)
    return job_id


def has_begun(operation: Operation) -> bool:
    """Return whether a worker has taken the job of an operation that was dispatched, now or
    earlier; that earlier run may have ended because the worker died or the database failed. If
    False, no worker takes the job before the transaction ends."""
    with connection.cursor() as cursor:
        cursor.execute(HOLD, [str(operation.id)])
        return cursor.fetchall() != [(True,)] or operation.failures_count > 0


def take_job_back(operation: Operation) -> None:
    """Remove the operation's job from the queue, unless a worker has taken it."""
    with connection.cursor() as cursor:
        cursor.execute(TAKE_BACK, [str(operation.id)])


def hasten_job(operation: Operation, project: Project) -> None:
    """Make the operation's job run now, if it waits for the time of the next attempt."""
    _enqueue_anew(operation, project, waits=False)


def move_job(operation: Operation, project: Project) -> None:
    """Move the operation's job to the queue of the operation's lane, unless a worker has taken it.

    If a worker takes the job at the same moment, the row lock decides: either the worker finds the
    job gone, or this function finds it taken.
    """
    _enqueue_anew(operation, project, waits=True)


def _enqueue_anew(operation: Operation, project: Project, *, waits: bool) -> None:
    with connection.cursor() as cursor:
        cursor.execute(TAKE_BACK, [str(operation.id)])
        for scheduled_at, attempts in cursor.fetchall():
            job_id = enqueue_operation(operation, project, at=scheduled_at if waits else None)
            if attempts:
                cursor.execute(KEEP_ATTEMPTS, [attempts, job_id])


def earlier_runs(job: Job) -> list[Run]:
    """Return the runs of this job before the present one, oldest first."""
    if not job.attempts:
        return []
    with connection.cursor() as cursor:
        cursor.execute(RUNS, [job.id])
        events = cursor.fetchall()
    runs, began = [], None
    for kind, at in events:
        if kind == "started":
            began = at
        elif began is not None:
            runs.append(Run(began, at))
            began = None
    return runs


def picked_up_at(operation_id: uuid.UUID) -> datetime | None:
    """Return when the worker that executes the operation now took its job; None if none does."""
    with connection.cursor() as cursor:
        cursor.execute(STARTED, [str(operation_id)])
        row = cursor.fetchone()
    return row[0] if row else None


def enqueue_reconciliation(branch_id: str, project: Project) -> None:
    """Enqueue a job that checks whether what runs on the branch should run. Raises
    django.db.Error."""
    queue = project.host.queue(Lane.REQUESTS)
    with database_errors():
        app.configure_task("controlplane.reconcile_branch", queue=queue).defer(
            branch_id=branch_id, account=project.account_id
        )


def enqueue_reading(reading: SchemaReading, project: Project) -> None:
    """Enqueue a job that reads the schema. Raises django.db.Error."""
    queue = project.host.queue(Lane.REQUESTS)
    with database_errors():
        app.configure_task("controlplane.read_schema", queue=queue).defer(
            reading_id=str(reading.id), account=project.account_id
        )

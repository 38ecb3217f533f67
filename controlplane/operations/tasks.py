"""What the queue's jobs do. A job that raises is retried without a limit: an operation that cannot
be done ends as `failed` in its row, and not here."""

import uuid

from controlplane.features import features
from controlplane.models import Job, JobTask
from controlplane.operations.actions import readings
from controlplane.operations.engine import execution
from controlplane.operations.rounds import reconcile
from controlplane.operations.rounds.at_rest import active


def do(job: Job) -> None:
    """Do what the job is for. Raises if it is to be done again."""
    for feature in features():
        if job.task in feature.jobs:
            feature.jobs[JobTask(job.task)](job.subject)
            return
    with active():
        if job.task == JobTask.RUN_OPERATION:
            execution.run(uuid.UUID(job.subject), runs=job.earlier_runs)
        elif job.task == JobTask.RECONCILE_BRANCH:
            reconcile.reconcile_branch(job.subject)
        else:
            assert job.task == JobTask.READ_SCHEMA, job
            readings.read_schema(uuid.UUID(job.subject))

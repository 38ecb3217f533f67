"""The queue's jobs. A job that raises is retried without a limit: an operation that cannot be done
ends as `failed` in its row, and not here.

`account` is the account whose slots a job takes (`lane_jobs`); jobs of an earlier version have
none.
"""

import uuid

from procrastinate import JobContext, RetryStrategy
from procrastinate.contrib.django import app

from controlplane.operations.actions import readings
from controlplane.operations.engine import execution
from controlplane.operations.queue.deferring import earlier_runs
from controlplane.operations.rounds import reconcile
from controlplane.operations.rounds.at_rest import active

RETRY_STRATEGY = RetryStrategy(wait=1)  # seconds


@app.task(name="controlplane.run_operation", retry=RETRY_STRATEGY, pass_context=True)
def run_operation(context: JobContext, operation_id: str, account: int | None = None) -> None:
    with active():
        execution.run(uuid.UUID(operation_id), runs=earlier_runs(context.job))


@app.task(name="controlplane.reconcile_branch", retry=RETRY_STRATEGY)
def reconcile_branch(branch_id: str, account: int | None = None) -> None:
    with active():
        reconcile.reconcile_branch(branch_id)


@app.task(name="controlplane.read_schema", retry=RETRY_STRATEGY)
def read_schema(reading_id: str, account: int | None = None) -> None:
    with active():
        readings.read_schema(uuid.UUID(reading_id))

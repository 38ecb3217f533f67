"""The door to Procrastinate: what the engine puts into the queue, in its own transaction."""

import uuid
from datetime import datetime

from procrastinate.contrib.django import app


def enqueue_operation(operation_id: uuid.UUID, *, queue: str, at: datetime | None = None) -> None:
    """Have the region's worker run the operation, at once or not before `at`."""
    app.configure_task(
        "controlplane.run_operation", queue=queue, schedule_at=at, lock=str(operation_id)
    ).defer(operation_id=str(operation_id))


def enqueue_reconciliation(branch_id: str, *, queue: str) -> None:
    """Have the region's worker look whether what runs on the branch should."""
    app.configure_task("controlplane.reconcile_branch", queue=queue).defer(branch_id=branch_id)

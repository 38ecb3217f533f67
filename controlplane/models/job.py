"""The queue: what workers are to do. `operations.queue` says how jobs are taken."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib.postgres.functions import TransactionNow
from django.db import models

from controlplane.models.rules import index, unique


class JobTask(models.TextChoices):
    RUN_OPERATION = "run_operation", "Run an operation"
    RECONCILE_BRANCH = "reconcile_branch", "Check whether what runs on a branch should run"
    READ_SCHEMA = "read_schema", "Read a schema"
    SEND_DELIVERIES = "send_deliveries", "Send the due deliveries of a webhook"


@dataclass(frozen=True)
class Run:
    """A run of a job that did not end it, because its worker died or the database failed."""

    picked_up_at: datetime
    put_back_at: datetime


class Job(models.Model):
    """Something that a worker is to do once.

    A job that waits is only this row: it occupies no thread, and it can still be moved or deleted.
    A job that a worker has taken has begun. At its end the row is deleted. All times are those of
    the database's clock. A trigger notifies the workers of the queue of each job that can be taken
    (migration `0069_jobs`).
    """

    queue = models.CharField(max_length=63)
    task = models.CharField(max_length=32, choices=JobTask.choices)
    # The id of the operation, branch, reading or webhook. Only one job of each runs at a time.
    subject = models.CharField(max_length=64)
    # The action of an operation; "" for the other tasks.
    action = models.CharField(max_length=32, default="", db_default="")
    # The account whose slots it takes. No foreign key: the job may outlast the account.
    account_id = models.BigIntegerField()
    # It is not taken before, and has waited since then.
    due_at = models.DateTimeField(db_default=TransactionNow())
    # The id of the process that has taken it (`operations.queue.runner`), if one has, when it did,
    # and its last sign of life.
    taken_by = models.UUIDField(null=True)
    taken_at = models.DateTimeField(null=True)
    seen_at = models.DateTimeField(null=True)
    # The earlier runs that did not end it: pairs of the times of a `Run`.
    runs = models.JSONField(default=list, db_default=models.Value([], models.JSONField()))

    class Meta:
        constraints = (
            unique("one_taken_job_of_a_subject", "task", "subject", taken_by__isnull=False),
        )
        indexes = (
            index("waiting_jobs", "queue", "id", taken_by=None),
            index("jobs_of_a_subject", "subject"),
        )

    def __str__(self) -> str:
        return f"{self.task} {self.subject}"

    @classmethod
    def enqueue(cls, queue: str, *, at: datetime | None = None, **attributes: Any) -> None:
        """Add a job that is taken at once, or not before `at`. Raises django.db.Error."""
        if at is not None:
            attributes["due_at"] = at
        cls.objects.create(queue=queue, **attributes)

    @property
    def earlier_runs(self) -> list[Run]:
        """Oldest first."""
        return [Run(*map(datetime.fromisoformat, times)) for times in self.runs]

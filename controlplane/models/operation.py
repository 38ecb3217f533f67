"""What a worker does for callers. An operation is a piece of work that takes time, from its request
to its end (specification, 2.2). A reading gets an answer for a waiting request. A job is an
entry of the queue, from which workers take both; `operations.queue` says how."""

import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.functions import TransactionNow
from django.db import models

from controlplane import clock
from controlplane.actors import Actor, ActorType
from controlplane.models.branch import Branch
from controlplane.models.endpoint import Endpoint
from controlplane.models.project import Project
from controlplane.models.rules import index, one_of, unique


class Action(models.TextChoices):
    CREATE_TIMELINE = "create_timeline", "Create a project with its primary branch"
    CREATE_BRANCH = "create_branch", "Create a branch"
    START_COMPUTE = "start_compute", "Start an endpoint"
    SUSPEND_COMPUTE = "suspend_compute", "Suspend an endpoint"
    APPLY_CONFIG = "apply_config", "Apply a new configuration"
    CHECK_AVAILABILITY = "check_availability", "Check that data is sound and an endpoint starts"
    DELETE_TIMELINE = "delete_timeline", "Delete a branch's data"
    DELETE_TENANT = "delete_tenant", "Delete a project's data"
    UPGRADE_PROJECT = "upgrade_project", "Move a project to another major version of Postgres"
    RESTORE_FROM_STORE = "restore_from_store", "Restore a branch of a lost host from the store"
    MOVE_PROJECT = "move_project", "Move a project to another host of its region"


class OperationStatus(models.TextChoices):
    SCHEDULING = "scheduling", "Waits for an earlier operation"
    RUNNING = "running", "Handed to the engine"
    CANCELLING = "cancelling", "Being brought to a safe end, as somebody has asked for"
    FINISHED = "finished", "Done"
    FAILED = "failed", "Given up; `error` says why"
    CANCELLED = "cancelled", "Ended before it was done, as somebody has asked for"


class RequestKind(models.TextChoices):
    """What a request or round wants that schedules a chain of operations, with the title of the
    chain. Callers of `schedule` give another title where names say more."""

    CREATE_PROJECT = "create_project", "Create the project with branch {branch}"
    DELETE_PROJECT = "delete_project", "Delete the project"
    UPGRADE_PROJECT = "upgrade_project", "Upgrade the project"
    MOVE_PROJECT = "move_project", "Move the project to another host"
    CREATE_BRANCH = "create_branch", "Create branch {branch}"
    DELETE_BRANCH = "delete_branch", "Delete branch {branch}"
    RESET_BRANCH = "reset_branch", "Reset branch {branch} from its parent"
    RESTORE_BRANCH = "restore_branch", "Restore branch {branch}"
    RESTORE_LOST_BRANCH = "restore_lost_branch", "Restore branch {branch} of a lost host"
    CHANGE_CATALOG = "change_catalog", "Apply the roles and databases of branch {branch}"
    CREATE_SNAPSHOT = "create_snapshot", "Create a snapshot"
    DELETE_SNAPSHOT = "delete_snapshot", "Delete a snapshot"
    READ_PAST = "read_past", "Query the past of a branch"
    REMOVE_DATA = "remove_data", "Remove data that nothing needs any more"
    CREATE_ENDPOINT = "create_endpoint", "Create endpoint {endpoint}"
    CHANGE_ENDPOINT = "change_endpoint", "Change endpoint {endpoint}"
    START_ENDPOINT = "start_endpoint", "Start endpoint {endpoint}"
    SUSPEND_ENDPOINT = "suspend_endpoint", "Suspend endpoint {endpoint}"
    RESTART_ENDPOINT = "restart_endpoint", "Restart endpoint {endpoint}"
    CHECK_ENDPOINT = "check_endpoint", "Check endpoint {endpoint}"


class Lane(models.TextChoices):
    """The lanes, most urgent first, by who waits for an operation. Each lane has its own slots."""

    WAKES = "wakes", "A client that wants to connect"
    REQUESTS = "requests", "Whoever sent a request"
    UPKEEP = "upkeep", "Nobody: checks, idle suspends, the removal of what was deleted"

    def is_ahead_of(self, other: "Lane | str") -> bool:
        order = list(Lane)
        return order.index(self) < order.index(Lane(other))


# The columns that define the kind of an operation: lists are filtered by them (`operation_pages`).
KIND = ("action", "status", "initiator_type")
UNFINISHED = (OperationStatus.SCHEDULING, OperationStatus.RUNNING, OperationStatus.CANCELLING)
# Operations that have a job in the queue, if `dispatched_at` is set.
HANDED_OVER = (OperationStatus.RUNNING, OperationStatus.CANCELLING)
# Operations that may still succeed.
MAY_SUCCEED = (OperationStatus.SCHEDULING, OperationStatus.RUNNING)
# Operations that have ended without success.
GIVEN_UP = (OperationStatus.FAILED, OperationStatus.CANCELLED)


class Operation(models.Model):
    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    # These three need no index of their own, because each is the first column of an index below.
    project = models.ForeignKey(
        Project, on_delete=models.PROTECT, related_name="operations", db_index=False
    )
    branch = models.ForeignKey(
        Branch, null=True, on_delete=models.PROTECT, related_name="operations", db_index=False
    )
    endpoint = models.ForeignKey(
        Endpoint, null=True, on_delete=models.PROTECT, related_name="operations", db_index=False
    )
    action = models.CharField(max_length=32, choices=Action.choices)
    status = models.CharField(max_length=16, choices=OperationStatus.choices)
    # The id that the operations of one request or round share. If one fails, those after it fail
    # too.
    chain = models.UUIDField()
    # The kind of that request, and what it was in words; "" if an earlier release scheduled it.
    kind = models.CharField(max_length=32, default="", db_default="")
    title = models.TextField(default="", db_default="")
    # The actor that scheduled the operation (`controlplane.actors`). The database has the defaults
    # too, here and below, for writers that do not set the columns.
    initiator_type = models.CharField(
        max_length=16, default=ActorType.PLATFORM.value, db_default=ActorType.PLATFORM.value
    )
    initiator_name = models.CharField(max_length=200, default="", db_default="")
    initiator_key_id = models.BigIntegerField(null=True)
    initiator_address = models.CharField(max_length=64, default="", db_default="")
    # The failed or cancelled operation that this one retries.
    retry_of = models.ForeignKey("self", null=True, on_delete=models.SET_NULL, related_name="+")
    # Its steps so far: objects of {name, started_at, finished_at, detail}, oldest first. Only
    # `operations.engine.step_history` reads and writes them.
    steps = models.JSONField(default=list, db_default=models.Value([], models.JSONField()))
    # The id, in the log, of the request or the client's connection that scheduled it; "" for an
    # operation that a round scheduled.
    request_id = models.CharField(max_length=64, default="", db_default="")
    # The lane whose slots it runs in. It moves to a more urgent lane when a client or request of
    # that lane begins to wait for it.
    lane = models.CharField(
        max_length=8, choices=Lane.choices, default=Lane.REQUESTS, db_default=Lane.REQUESTS
    )
    # The ids of the resources that it holds: endpoints and branches, or its project's id, which
    # stands for all of the project's.
    resources = ArrayField(models.CharField(max_length=60))
    # Parameters of the action that are not in other rows. Read through `operations.details` only.
    details = models.JSONField(default=dict)
    error = models.TextField(null=True)
    # The id of the operation before it in its chain that failed or was cancelled, so that this one
    # was never begun. No foreign key, as the row may be removed earlier.
    not_run_because = models.UUIDField(null=True)
    failures_count = models.PositiveIntegerField(default=0)
    retry_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField(default=clock.now)
    updated_at = models.DateTimeField(default=clock.now)
    # When it was dispatched. Durations are counted from here.
    dispatched_at = models.DateTimeField(null=True)

    # Whether a failure needs no attention any more, if that was read (`services.operations`).
    superseded: bool | None = None

    class Meta:
        constraints = (
            one_of("operation_action_is_known", "action", *Action.values),
            one_of("operation_status_is_known", "status", *OperationStatus.values),
            one_of("operation_initiator_is_known", "initiator_type", *map(str, ActorType)),
            one_of("operation_lane_is_known", "lane", *Lane.values),
            # The list's cursor is created_at alone, so no two operations may have the same.
            unique("operations_of_a_project_in_order", "project", "created_at"),
        )
        indexes = (
            index("unfinished_operations", "project", "created_at", status__in=UNFINISHED),
            index("operations_of_an_endpoint", "endpoint", "action", "-created_at"),
            # For `operation_pages`: by project, endpoint or branch, with the kind or without it.
            index("operations_of_a_kind", "project", *KIND, "-created_at"),
            index("kinds_of_an_endpoint", "endpoint", *KIND, "-created_at"),
            index("kinds_of_a_branch", "branch", *KIND, "-created_at"),
            index("operations_of_a_branch", "branch", "-created_at"),
            index("operations_of_a_chain", "chain"),
        )

    def __str__(self) -> str:
        return f"{self.action} {self.id}"

    @property
    def is_finished(self) -> bool:
        return self.status not in UNFINISHED

    @property
    def waits_to_be_handed_over(self) -> bool:
        """Whether the operation waits to be dispatched. One that was cancelled before that is
        dispatched too if its status is `cancelling`: the engine has something to settle for it."""
        return self.status == OperationStatus.SCHEDULING or (
            self.status == OperationStatus.CANCELLING and self.dispatched_at is None
        )

    @property
    def initiator(self) -> Actor:
        return Actor(
            ActorType(self.initiator_type),
            name=self.initiator_name,
            api_key_id=self.initiator_key_id,
            address=self.initiator_address,
        )

    def duration_ms(self, now: datetime) -> int:
        """Milliseconds from its dispatch until its end, or until `now` if it is unfinished; 0
        before its dispatch."""
        return self.duration_ms_until(self.updated_at if self.is_finished else now)

    def duration_ms_until(self, end: datetime) -> int:
        """The same for an operation that ends at this moment."""
        if self.dispatched_at is None:
            return 0
        return max(0, round((end - self.dispatched_at).total_seconds() * 1000))


class SchemaFormat(models.TextChoices):
    SQL = "sql", "The statements that make it"
    JSON = "json", "Its tables, with their columns and constraints"
    # No schema: the commits around the moment.
    MOMENT = "moment", "What the moment names"
    # Nor this. `database_name` is the log's, or "" for all logs.
    LOGS = "logs", "The last lines of the branch's logs"
    SESSIONS = "sessions", "The clients' sessions in the compute"


class SchemaReading(models.Model):
    """A requested reading. The row is deleted when the request has taken the answer, or has stopped
    waiting for it."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    branch = models.ForeignKey(Branch, on_delete=models.CASCADE, related_name="+")
    # The database's name in the branch's data, which differs while a rename is not applied yet.
    database_name = models.CharField(max_length=63)
    format = models.CharField(max_length=8, choices=SchemaFormat.choices)
    # The past moment to read, in one of two forms; the present without either.
    at_time = models.DateTimeField(null=True)
    at_lsn = models.BigIntegerField(null=True)
    created_at = models.DateTimeField(default=clock.now, db_index=True)
    finished_at = models.DateTimeField(null=True)
    answer = models.TextField(default="")
    # Why there is no answer, as a message for the user.
    error = models.TextField(default="")

    @property
    def subject(self) -> str:
        """What is read, in words."""
        subjects = {SchemaFormat.LOGS: "log", SchemaFormat.SESSIONS: "list of sessions"}
        return subjects.get(SchemaFormat(self.format), "schema")

    @property
    def is_of_the_past(self) -> bool:
        return self.at_time is not None or self.at_lsn is not None

    def __str__(self) -> str:
        return f"schema of {self.database_name} on {self.branch_id}"


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

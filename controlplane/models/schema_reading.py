"""A reading of the schema of a branch's database, of what a past moment names, of a branch's logs,
or of the sessions in its compute, which the worker makes for a waiting request."""

import uuid

from django.db import models

from controlplane import clock
from controlplane.models.branch import Branch


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

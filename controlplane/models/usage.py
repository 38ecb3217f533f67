"""What branches have used: rows by the hour, the day and the month, and the meters that run on.

Written by the functions of migration 0021 alone, most of them called by triggers: no writer of an
endpoint's state or of a branch's size can forget it. Read through `consumption`.
"""

from django.db import models

from controlplane.models.account import Account
from controlplane.models.branch import Branch


class Span(models.TextChoices):
    """How long they are kept stands in the migration's `perch_spans`."""

    HOUR = "hour", "For the last 168 hours"
    DAY = "day", "For the last 60 days"
    MONTH = "month", "The consumption periods, for a year"


class Usage(models.Model):
    """What one branch used in one hour, one day or one month; nothing of what its meter still runs
    for. Without foreign keys to branch and project: it outlives them."""

    account = models.ForeignKey(Account, on_delete=models.CASCADE, related_name="+", db_index=False)
    project_id = models.CharField(max_length=60)
    branch_id = models.CharField(max_length=60)
    # Whether the branch has no parent.
    of_root = models.BooleanField()
    span = models.CharField(max_length=5, choices=Span.choices)
    # UTC.
    start = models.DateTimeField()
    active_seconds = models.FloatField(db_default=0)
    # Seconds times compute units.
    compute_seconds = models.FloatField(db_default=0)
    written_bytes = models.BigIntegerField(db_default=0)
    transferred_bytes = models.BigIntegerField(db_default=0)
    # Bytes times hours.
    storage_byte_hours = models.FloatField(db_default=0)

    class Meta:
        constraints = (
            models.UniqueConstraint(
                name="one_usage_of_a_span", fields=["branch_id", "span", "start"]
            ),
        )
        indexes = (
            models.Index(name="usage_of_a_project", fields=["project_id", "span", "start"]),
            models.Index(name="usage_of_an_account", fields=["account", "span", "start"]),
        )

    def __str__(self) -> str:
        return f"{self.branch_id} in the {self.span} from {self.start}"


class Meter(models.Model):
    """What a branch uses by the second, and since when: settled into rows when it changes, and
    added to them whenever somebody reads. So an endpoint that runs for days, and a branch that only
    lies there, cost nothing meanwhile."""

    branch = models.OneToOneField(
        Branch, primary_key=True, on_delete=models.CASCADE, related_name="meter"
    )
    # Of its active endpoint; 0 without one.
    compute_units = models.FloatField()
    active_since = models.DateTimeField()
    # Its logical size; 0 once it, or its project, is deleted.
    stored_bytes = models.BigIntegerField()
    stored_since = models.DateTimeField()
    # How far its write-ahead log had come when that was last noted, in bytes, and in which data:
    # a copy's position says nothing of what was written to the copy.
    written_position = models.BigIntegerField(null=True)
    written_data = models.CharField(max_length=64, db_default="")

    def __str__(self) -> str:
        return f"of {self.branch_id}"


class TrafficReporter(models.Model):
    """A process of a proxy that reports traffic, and its last report that was counted: the same
    one, sent again because its answer was lost, counts no more."""

    id = models.UUIDField(primary_key=True)
    report = models.BigIntegerField()
    reported_at = models.DateTimeField(db_index=True)

    def __str__(self) -> str:
        return str(self.id)

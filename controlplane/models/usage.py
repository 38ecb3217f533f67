"""What branches have consumed: rows for each hour, day and month, and meters of what is counted
since then.

Only the functions of migrations 0021 and 0080 write these tables. Triggers call most of them, so no
code that changes an endpoint's state or a branch's size can forget it. `consumption` reads the
tables.
"""

from django.db import models

from controlplane.models.account import Account
from controlplane.models.branch import Branch


class Span(models.TextChoices):
    """The periods that usage is summed for. The migration's function `perch_spans` says how long
    their rows are kept."""

    HOUR = "hour", "For the last 168 hours"
    DAY = "day", "For the last 60 days"
    MONTH = "month", "The consumption periods, for a year"


class Usage(models.Model):
    """What one branch consumed in one hour, day or month, without what its meter has counted since.
    It has no foreign keys to branch and project, because it outlives them."""

    account = models.ForeignKey(Account, on_delete=models.CASCADE, related_name="+", db_index=False)
    project_id = models.CharField(max_length=60)
    branch_id = models.CharField(max_length=60)
    # Whether the branch has no parent.
    of_root = models.BooleanField()
    span = models.CharField(max_length=5, choices=Span.choices)
    # The start of the hour, day or month in UTC.
    start = models.DateTimeField()
    active_seconds = models.FloatField(db_default=0)
    # Seconds times compute units.
    compute_seconds = models.FloatField(db_default=0)
    written_bytes = models.BigIntegerField(db_default=0)
    transferred_bytes = models.BigIntegerField(db_default=0)
    # Bytes times hours.
    storage_byte_hours = models.FloatField(db_default=0)
    # The same of its history.
    history_byte_hours = models.FloatField(db_default=0)

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
    """What a branch consumes per second at present, and since when. When that changes, what was
    consumed until then is added to the rows of Usage. A reader adds what was consumed since. So an
    endpoint that runs for days, and a branch that is only stored, need no writes meanwhile."""

    branch = models.OneToOneField(
        Branch, primary_key=True, on_delete=models.CASCADE, related_name="meter"
    )
    # Compute units of its active endpoint; 0 if it has none.
    compute_units = models.FloatField()
    active_since = models.DateTimeField()
    # Its logical size; 0 once the branch or its project is deleted.
    stored_bytes = models.BigIntegerField()
    # The same of its history.
    history_bytes = models.BigIntegerField(db_default=0)
    # When one of the two last changed.
    stored_since = models.DateTimeField()
    # The position of its write-ahead log, in bytes, when it was last noted, and the id of the data
    # directory in which that was. In other data, such as a copy, the difference of positions says
    # nothing about what was written.
    written_position = models.BigIntegerField(null=True)
    written_data = models.CharField(max_length=64, db_default="")

    def __str__(self) -> str:
        return f"of {self.branch_id}"


class TrafficReporter(models.Model):
    """A process of a proxy that reports traffic, and its last report that was counted. A report
    that is sent again, because its answer was lost, is not counted twice."""

    id = models.UUIDField(primary_key=True)
    report = models.BigIntegerField()
    reported_at = models.DateTimeField(db_index=True)

    def __str__(self) -> str:
        return str(self.id)

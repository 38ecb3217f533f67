"""What branches have consumed, and what samples of their endpoints' running computes have shown.

Consumption has rows for each hour, day and month, and meters of what is counted since then. Only
functions of migrations 0001 and 0030 write these tables. Triggers call most of them, so no
code that changes an endpoint's state or a branch's size can forget it. `consumption` reads the
tables.

A sample is taken once a minute. Its row is kept for some hours; then five minutes become one row,
which is kept for two weeks (`usage.sampling`).
"""

from django.db import models

from controlplane.models.account import Account
from controlplane.models.branch import Branch
from controlplane.models.endpoint import Endpoint
from controlplane.models.rules import index, unique


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
        constraints = (unique("one_usage_of_a_span", "branch_id", "span", "start"),)
        indexes = (
            index("usage_of_a_project", "project_id", "span", "start"),
            index("usage_of_an_account", "account", "span", "start"),
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


# What a sample shows of its moment. Of several samples, the highest value counts.
GAUGES = (
    "connections_active",
    "connections_idle",
    "connections_idle_in_transaction",
    "active_queries",
    "memory_bytes",
    "database_bytes",
)
# What has been counted since the sample before. Of several samples, the sum counts.
COUNTERS = (
    "cpu_milliseconds",
    "cache_hits",
    "cache_misses",
    "rows_read",
    "rows_written",
    "deadlocks",
    "log_bytes",
    "wakes",
)
# The numbers of a row, beginning with how many samples it sums up.
FIELDS = ("samples", *GAUGES, *COUNTERS)
# The same for SQL, and what several rows add up to.
COLUMNS = ", ".join(FIELDS)
MERGED = ", ".join(
    f"max({name})" if name in GAUGES else f"least(sum({name}), {1 << 62})::bigint"
    for name in FIELDS
)


class EndpointSample(models.Model):
    """What the samples of a minute, or of five, add up to."""

    pk = models.CompositePrimaryKey("endpoint_id", "at")
    endpoint = models.ForeignKey(
        Endpoint, on_delete=models.CASCADE, related_name="+", db_index=False
    )
    # The begin of the time that the row is of, and its length in seconds.
    at = models.DateTimeField()
    seconds = models.SmallIntegerField()
    samples = models.SmallIntegerField()
    connections_active = models.IntegerField()
    connections_idle = models.IntegerField()
    connections_idle_in_transaction = models.IntegerField()
    active_queries = models.IntegerField()
    memory_bytes = models.BigIntegerField()
    database_bytes = models.BigIntegerField()
    cpu_milliseconds = models.BigIntegerField()
    cache_hits = models.BigIntegerField()
    cache_misses = models.BigIntegerField()
    rows_read = models.BigIntegerField()
    rows_written = models.BigIntegerField()
    deadlocks = models.BigIntegerField()
    log_bytes = models.BigIntegerField()
    wakes = models.BigIntegerField()

    class Meta:
        # For what is to be merged or deleted.
        indexes = (index("samples_by_age", "seconds", "at"),)

    def __str__(self) -> str:
        return f"{self.endpoint_id} at {self.at}"


class LastSample(models.Model):
    """The last sample of an endpoint, by which the next one knows what was added. The table is
    unlogged (migration 0047), because the row changes every minute: if the database crashes, the
    next sample is like an endpoint's first."""

    endpoint = models.OneToOneField(
        Endpoint, primary_key=True, on_delete=models.CASCADE, related_name="+"
    )
    # When it was taken, and which data directory and process its counts were of
    # (`usage.sampling.Sample`).
    sampled_at = models.DateTimeField()
    data = models.CharField(max_length=64)
    process = models.CharField(max_length=64)
    # The gauges, and the counts as they were read, by their names.
    values = models.JSONField()
    # All that was ever added to each counter.
    totals = models.JSONField()

    def __str__(self) -> str:
        return f"{self.endpoint_id} at {self.sampled_at}"

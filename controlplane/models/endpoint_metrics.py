"""The metrics of endpoints: what samples of their running computes have shown.

A sample is taken once a minute. Its row is kept for some hours; then five minutes become one row,
which is kept for two weeks (`usage.sampling`).
"""

from django.db import models

from controlplane.models.endpoint import Endpoint

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
        indexes = (models.Index(fields=["seconds", "at"], name="samples_by_age"),)

    def __str__(self) -> str:
        return f"{self.endpoint_id} at {self.at}"


class LastSample(models.Model):
    """The last sample of an endpoint, by which the next one knows what was added. The table is
    unlogged (migration 0066), because the row changes every minute: if the database crashes, the
    next sample is like an endpoint's first."""

    endpoint = models.OneToOneField(
        Endpoint, primary_key=True, on_delete=models.CASCADE, related_name="+"
    )
    # When it was taken, and which data directory and process its counts were of
    # (`usage.samples.Sample`).
    sampled_at = models.DateTimeField()
    data = models.CharField(max_length=64)
    process = models.CharField(max_length=64)
    # The gauges, and the counts as they were read, by their names.
    values = models.JSONField()
    # All that was ever added to each counter.
    totals = models.JSONField()

    def __str__(self) -> str:
        return f"{self.endpoint_id} at {self.sampled_at}"

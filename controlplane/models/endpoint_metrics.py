"""The metrics of endpoints: what samples of their running computes have shown.

A sample is taken once a minute. Storing each one as a row would take a hundred times the room, so
a row holds many samples, packed by `packed_samples`: as they were taken, which is kept for some
hours, or in steps of five minutes, which is kept for two weeks.
"""

from datetime import timedelta

from django.db import models

from controlplane.models.endpoint import Endpoint

# The time that a row is of, in UTC. A row so small is stored in one piece, so that a new version
# takes the place of an older one, and the tables do not grow by their changes.
RECENT_SPAN, PAST_SPAN = timedelta(minutes=20), timedelta(hours=6)


class RecentMetrics(models.Model):
    """Samples as they were taken. The table is unlogged (migration 0040), because a row changes
    every minute: if the database crashes, the samples of the present hour are lost."""

    endpoint = models.ForeignKey(
        Endpoint, on_delete=models.CASCADE, related_name="+", db_index=False
    )
    start = models.DateTimeField()
    # When the last sample was taken, and which data directory and process its counts were of
    # (`compute.samples.Sample`).
    sampled_at = models.DateTimeField()
    data = models.CharField(max_length=64)
    process = models.CharField(max_length=64)
    # What the last sample has shown: a packed `packed_samples.State`.
    state = models.BinaryField()
    samples = models.BinaryField()
    # Whether the samples are also in the row of the past.
    is_packed = models.BooleanField(default=False, db_default=False)

    class Meta:
        constraints = (
            models.UniqueConstraint(name="one_row_of_recent_metrics", fields=["endpoint", "start"]),
        )

    def __str__(self) -> str:
        return f"{self.endpoint_id} from {self.start}"


class PastMetrics(models.Model):
    """Samples in steps of five minutes."""

    endpoint = models.ForeignKey(
        Endpoint, on_delete=models.CASCADE, related_name="+", db_index=False
    )
    start = models.DateTimeField()
    block = models.BinaryField()

    class Meta:
        constraints = (
            models.UniqueConstraint(name="one_row_of_past_metrics", fields=["endpoint", "start"]),
        )

    def __str__(self) -> str:
        return f"{self.endpoint_id} from {self.start}"

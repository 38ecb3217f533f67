"""A region: the host name its endpoints share, and the queues its worker takes jobs from."""

from django.db import models


class Region(models.Model):
    id = models.CharField(primary_key=True, max_length=60)
    name = models.CharField(max_length=64)
    # Endpoints are reached as `<endpoint_id>.<host>`.
    host = models.CharField(max_length=200)
    # Where its proxy listens; connection strings leave out Postgres's own 5432.
    port = models.PositiveIntegerField(default=5432)
    default = models.BooleanField(default=False)
    # Published by the region's worker: what its host has.
    pooling_available = models.BooleanField(default=False)
    pg_version = models.PositiveSmallIntegerField(null=True)
    # Published by the region's proxy and worker while they run; /healthz reads them.
    worker_seen_at = models.DateTimeField(null=True)
    proxy_seen_at = models.DateTimeField(null=True)

    class Meta:
        constraints = (
            models.UniqueConstraint(
                name="one_default_region", fields=["default"], condition=models.Q(default=True)
            ),
        )

    def __str__(self) -> str:
        return self.id

    def queue(self, lane: str) -> str:
        """The Procrastinate queue of one of this region's lanes (`models.Lane`)."""
        return f"region-{self.id}-{lane}"

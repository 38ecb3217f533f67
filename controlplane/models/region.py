"""A region: the host name its endpoints share, and the queue its worker takes jobs from."""

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
    # Published by its worker: the room on its disk, and what of it is kept back.
    disk_free_bytes = models.BigIntegerField(null=True)
    disk_reserve_bytes = models.BigIntegerField(null=True)
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

    @property
    def is_full(self) -> bool:
        """Whether its host has no room for new branches."""
        free, reserve = self.disk_free_bytes, self.disk_reserve_bytes
        return free is not None and reserve is not None and free < reserve

    @property
    def queue(self) -> str:
        """The Procrastinate queue of this region's worker."""
        return f"region-{self.id}"

"""A region: the host name its endpoints share, and the queue its worker takes jobs from."""

from typing import Any

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

    @property
    def queue(self) -> str:
        """The Procrastinate queue of this region's worker."""
        return f"region-{self.id}"


class PostgresSettings(models.Model):
    """What the Postgres of a region's host knows of its settings; published by the worker."""

    region = models.OneToOneField(
        Region, primary_key=True, on_delete=models.CASCADE, related_name="postgres_settings"
    )
    # As "18.1".
    version = models.CharField(max_length=32)
    # {name: {vartype, unit, min, max, values}}; see `compute.postgres_settings`.
    known = models.JSONField()

    def __str__(self) -> str:
        return f"{self.region_id}: {self.version}"

    @classmethod
    def known_in(cls, region_id: str) -> dict[str, Any]:
        """`known` of a region; nothing where its worker has not come up yet."""
        row = cls.objects.filter(region=region_id).first()
        return dict(row.known) if row else {}

"""The settings that the Postgres of a region's host has; published by the region's worker."""

from typing import Any

from django.db import models

from controlplane.models.region import Region


class PostgresSettings(models.Model):
    region = models.OneToOneField(
        Region, primary_key=True, on_delete=models.CASCADE, related_name="postgres_settings"
    )
    # As "18.1".
    version = models.CharField(max_length=32)
    # {name: {vartype, unit, min, max, values, default, about}}; see `compute.postgres_settings`.
    known = models.JSONField()

    def __str__(self) -> str:
        return f"{self.region_id}: {self.version}"

    @classmethod
    def known_in(cls, region_id: str) -> dict[str, Any]:
        """`known` of the region; empty if its worker has not started yet."""
        row = cls.objects.filter(region=region_id).first()
        return dict(row.known) if row else {}

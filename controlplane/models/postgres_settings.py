"""The settings that a Postgres of a region's host has; published by the region's worker."""

from typing import Any

from django.db import models

from controlplane.models.project import Project
from controlplane.models.region import Region


class PostgresSettings(models.Model):
    region = models.ForeignKey(
        Region, on_delete=models.CASCADE, related_name="postgres_settings", db_index=False
    )
    major = models.PositiveSmallIntegerField(db_default=0)
    # As "18.1".
    version = models.CharField(max_length=32)
    # {name: {vartype, unit, min, max, values, default, about}}; see `compute.postgres_settings`.
    known = models.JSONField()

    class Meta:
        constraints = (
            models.UniqueConstraint(name="settings_of_a_major", fields=["region", "major"]),
        )

    def __str__(self) -> str:
        return f"{self.region_id}: {self.version}"

    @classmethod
    def known_to(cls, project: Project) -> dict[str, Any]:
        """`known` of the project's Postgres; empty if its region's worker has not started yet."""
        row = cls.objects.filter(region=project.region_id, major=project.pg_version).first()
        return dict(row.known) if row else {}

"""The settings that a Postgres of a host has; published by its worker."""

from typing import Any

from django.db import models

from controlplane.models.host import Host
from controlplane.models.project import Project


class PostgresSettings(models.Model):
    host = models.ForeignKey(
        Host, on_delete=models.CASCADE, related_name="postgres_settings", db_index=False
    )
    major = models.PositiveSmallIntegerField(db_default=0)
    # As "18.1".
    version = models.CharField(max_length=32)
    # {name: {vartype, unit, min, max, values, default, about}}; see
    # `compute.settings.postgres_settings`.
    known = models.JSONField()

    class Meta:
        constraints = (
            models.UniqueConstraint(name="settings_of_a_major", fields=["host", "major"]),
        )

    def __str__(self) -> str:
        return f"{self.host_id}: {self.version}"

    @classmethod
    def known_to(cls, project: Project) -> dict[str, Any]:
        """`known` of the project's Postgres; empty if its host's worker has not started yet."""
        row = cls.objects.filter(host=project.host_id, major=project.pg_version).first()
        return dict(row.known) if row else {}

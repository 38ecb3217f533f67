"""A snapshot: a copy of a branch that does not change, until it is deleted or expires."""

from django.db import models

from controlplane import clock
from controlplane.models.branch import Branch
from controlplane.models.names import new_snapshot_id
from controlplane.models.project import Project


class Snapshot(models.Model):
    id = models.CharField(primary_key=True, max_length=60, default=new_snapshot_id)
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="snapshots")
    # A hidden branch with the data, the roles and the databases.
    data_branch = models.OneToOneField(Branch, on_delete=models.CASCADE, related_name="snapshot")
    # None once the branch's row is removed.
    source_branch = models.ForeignKey(
        Branch, null=True, on_delete=models.SET_NULL, related_name="snapshots"
    )
    name = models.CharField(max_length=256)
    # The caller's own id for it, unique in the project; None if that is `id`.
    slug = models.CharField(max_length=63, null=True)
    created_at = models.DateTimeField(default=clock.now)
    # When it is deleted automatically; None for never.
    expires_at = models.DateTimeField(null=True)

    class Meta:
        constraints = (
            models.UniqueConstraint(
                name="snapshot_slug_is_unique",
                fields=["project", "slug"],
                condition=models.Q(slug__isnull=False),
            ),
        )
        indexes = (
            models.Index(
                name="snapshots_by_expiry",
                fields=["expires_at"],
                condition=models.Q(expires_at__isnull=False),
            ),
        )

    def __str__(self) -> str:
        return self.id

"""A project: branches and endpoints of one account in one region."""

from django.db import models
from django.utils import timezone

from controlplane.models.account import Account
from controlplane.models.consumed import NOTHING, Consumed
from controlplane.models.names import new_project_id
from controlplane.models.region import Region


class Project(models.Model):
    id = models.CharField(primary_key=True, max_length=60, default=new_project_id)
    account = models.ForeignKey(Account, on_delete=models.PROTECT, related_name="projects")
    region = models.ForeignKey(Region, on_delete=models.PROTECT, related_name="projects")
    name = models.CharField(max_length=256)
    pg_version = models.PositiveSmallIntegerField()
    # {autoscaling_limit_min_cu, autoscaling_limit_max_cu, suspend_timeout_seconds, pg_settings}
    default_endpoint_settings = models.JSONField(default=dict)
    settings = models.JSONField(default=dict)
    history_retention_seconds = models.PositiveIntegerField(default=86400)
    store_passwords = models.BooleanField(default=True)
    created_at = models.DateTimeField(default=timezone.now)
    updated_at = models.DateTimeField(default=timezone.now)
    # Set by the request that deletes it; delete_tenant then removes the data.
    deleted_at = models.DateTimeField(null=True)

    # What its branches used in the consumption period; set by the services that looked.
    consumed: Consumed = NOTHING

    class Meta:
        indexes = (
            models.Index(
                name="projects_of_an_account",
                fields=["account", "-created_at", "id"],
                condition=models.Q(deleted_at=None),
            ),
        )

    def __str__(self) -> str:
        return self.id

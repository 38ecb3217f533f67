"""A branch: a data directory, and the roles and databases that live in it."""

from django.db import models
from django.utils import timezone

from controlplane.models.names import new_branch_id
from controlplane.models.project import Project


class BranchState(models.TextChoices):
    INIT = "init", "Being created, or its creation failed: not available for querying"
    READY = "ready", "Its data directory is complete"


class Branch(models.Model):
    id = models.CharField(primary_key=True, max_length=60, default=new_branch_id)
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="branches")
    parent = models.ForeignKey("self", null=True, on_delete=models.PROTECT, related_name="children")
    name = models.CharField(max_length=256)
    current_state = models.CharField(
        max_length=8, choices=BranchState.choices, default=BranchState.INIT
    )
    default = models.BooleanField(default=False)
    protected = models.BooleanField(default=False)
    # Seconds that computes ran on this branch, and the same weighted by compute units.
    active_seconds = models.FloatField(default=0)
    compute_seconds = models.FloatField(default=0)
    # Bytes of its databases, as last measured on a running compute.
    logical_size = models.BigIntegerField(null=True)
    # Counts changes of roles and databases; the compute applies what it has not yet seen.
    catalog_revision = models.PositiveIntegerField(default=0)
    applied_catalog_revision = models.PositiveIntegerField(default=0)
    created_at = models.DateTimeField(default=timezone.now)
    updated_at = models.DateTimeField(default=timezone.now)
    state_changed_at = models.DateTimeField(default=timezone.now)
    deleted_at = models.DateTimeField(null=True)
    # When another branch's data last took the place of its own.
    last_reset_at = models.DateTimeField(null=True)
    # Whether it is the platform's own: the data of a snapshot, or what a restore has left to be
    # removed. No caller sees it, and no plan counts it; on disk it is a branch as any other.
    hidden = models.BooleanField(default=False, db_default=False)

    # Where its unfinished operations lead; set by the services that looked.
    pending_state: BranchState | None = None
    # Whether one of them puts other data in the place of its own.
    is_resetting = False

    class Meta:
        constraints = (
            models.CheckConstraint(
                name="branch_state_is_known",
                condition=models.Q(current_state__in=BranchState.values),
            ),
            models.UniqueConstraint(
                name="branch_name_is_unique",
                fields=["project", "name"],
                condition=models.Q(deleted_at=None, hidden=False),
            ),
            models.UniqueConstraint(
                name="one_default_branch",
                fields=["project"],
                condition=models.Q(default=True, deleted_at=None),
            ),
            # What the composite foreign keys of endpoints and children point at.
            models.UniqueConstraint(name="branch_of_its_project", fields=["id", "project"]),
        )
        indexes = (
            # Looked through again and again for those that nobody wants.
            models.Index(
                name="hidden_branches",
                fields=["project"],
                condition=models.Q(hidden=True, deleted_at=None),
            ),
        )

    def __str__(self) -> str:
        return self.id

    @property
    def is_over_limit(self) -> bool:
        """Whether it was larger, when last measured, than its account's plan allows."""
        limit = self.project.account.branch_size_limit
        return limit is not None and (self.logical_size or 0) > limit

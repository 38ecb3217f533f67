"""A branch: a data directory, and the roles and databases that live in it."""

from django.db import models

from controlplane import clock
from controlplane.models.consumed import NOTHING, Consumed
from controlplane.models.names import new_branch_id
from controlplane.models.project import Project


class BranchState(models.TextChoices):
    INIT = "init", "Being created, or its creation failed: not available for querying"
    READY = "ready", "Its data directory is complete"


class InitSource(models.TextChoices):
    PARENT_DATA = "parent-data", "All that is committed on its parent"
    SCHEMA_ONLY = "schema-only", "Roles, databases and their schemas, and no rows"


# The mark of a catalog that ended, with its compute, before anybody could read it.
CATALOG_UNREAD = "unread"


class Branch(models.Model):
    id = models.CharField(primary_key=True, max_length=60, default=new_branch_id)
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="branches")
    parent = models.ForeignKey("self", null=True, on_delete=models.PROTECT, related_name="children")
    # Whose schema it was made with, where it has no rows. It is no parent: the two share nothing
    # once it is made, and either may go before the other.
    schema_of = models.ForeignKey("self", null=True, on_delete=models.SET_NULL, related_name="+")
    init_source = models.CharField(
        max_length=16,
        choices=InitSource.choices,
        default=InitSource.PARENT_DATA,
        db_default=InitSource.PARENT_DATA,
    )
    name = models.CharField(max_length=256)
    current_state = models.CharField(
        max_length=8, choices=BranchState.choices, default=BranchState.INIT
    )
    default = models.BooleanField(default=False)
    protected = models.BooleanField(default=False)
    # When it is to go by itself, in whole seconds, and how many seconds ahead that was when it was
    # set; both or neither.
    expires_at = models.DateTimeField(null=True)
    ttl_interval_seconds = models.BigIntegerField(null=True)
    # {key: value}, both text: what its maker has noted about it.
    annotation_value = models.JSONField(
        default=dict, db_default=models.Value({}, models.JSONField())
    )
    # Bytes of its databases, as last measured on a running compute. A trigger counts them as
    # stored (`usage`).
    logical_size = models.BigIntegerField(null=True)
    # Bytes beside its databases that its clients have made, measured with them: temporary files,
    # what replication slots hold of the log. They count towards the plan's limit alone.
    auxiliary_size = models.BigIntegerField(default=0, db_default=0)
    # Counts changes of roles and databases; the compute applies what it has not yet seen.
    catalog_revision = models.PositiveIntegerField(default=0)
    applied_catalog_revision = models.PositiveIntegerField(default=0)
    # Of the compute's catalog as it was when the rows were last brought to what SQL did in it;
    # "" before. See `compute.catalog_reading`.
    catalog_mark = models.TextField(default="", db_default="")
    created_at = models.DateTimeField(default=clock.now)
    updated_at = models.DateTimeField(default=clock.now)
    state_changed_at = models.DateTimeField(default=clock.now)
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
    # What it used in the consumption period; set by the services that looked.
    consumed: Consumed = NOTHING

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
            models.CheckConstraint(
                name="branch_init_source_is_known",
                condition=models.Q(init_source__in=InitSource.values),
            ),
            # What the composite foreign keys of endpoints, children and `schema_of` point at.
            models.UniqueConstraint(name="branch_of_its_project", fields=["id", "project"]),
        )
        indexes = (
            models.Index(
                name="branches_that_expire",
                fields=["expires_at"],
                condition=models.Q(deleted_at=None, expires_at__isnull=False),
            ),
            # What pages of a project's branches are read by; by name, the constraint's.
            models.Index(
                name="branches_by_change",
                fields=["project", "updated_at", "id"],
                condition=models.Q(deleted_at=None),
            ),
            models.Index(
                name="branches_by_age",
                fields=["project", "created_at", "id"],
                condition=models.Q(deleted_at=None),
            ),
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
    def source(self) -> "Branch | None":
        """The branch that its data is made from; None for a project's first."""
        return self.schema_of if self.init_source == InitSource.SCHEMA_ONLY else self.parent

    @property
    def is_over_limit(self) -> bool:
        """Whether it was larger, when last measured, than its account's plan allows."""
        limit = self.project.account.branch_size_limit
        return limit is not None and self.stored_size > limit

    @property
    def stored_size(self) -> int:
        """Bytes, as last measured, that count towards the limit of its account's plan."""
        return (self.logical_size or 0) + self.auxiliary_size

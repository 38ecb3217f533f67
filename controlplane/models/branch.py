"""A branch: a data directory with its roles and databases."""

from django.db import models

from controlplane import clock
from controlplane.models.consumed import NOTHING, Consumed
from controlplane.models.names import new_branch_id
from controlplane.models.project import Project, host_of_project
from controlplane.models.rules import DELETED, LIVING, index, one_of, unique


class BranchState(models.TextChoices):
    INIT = "init", "Being created, or its creation failed: not available for querying"
    READY = "ready", "Its data directory is complete"


class InitSource(models.TextChoices):
    PARENT_DATA = "parent-data", "All that is committed on its parent"
    SCHEMA_ONLY = "schema-only", "Roles, databases and their schemas, and no rows"


# The `catalog_mark` of a branch whose compute ended by itself. SQL may have changed the catalog
# after the worker last read it.
CATALOG_UNREAD = "unread"


class Branch(models.Model):
    id = models.CharField(primary_key=True, max_length=60, default=new_branch_id)
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="branches")
    host = host_of_project()
    parent = models.ForeignKey("self", null=True, on_delete=models.PROTECT, related_name="children")
    # The source, if the branch is schema-only. The source is not its parent: the two share nothing
    # once the branch is made, and either may be deleted before the other.
    schema_of = models.ForeignKey("self", null=True, on_delete=models.SET_NULL, related_name="+")
    init_source = models.CharField(
        max_length=16,
        choices=InitSource.choices,
        default=InitSource.PARENT_DATA,
        db_default=InitSource.PARENT_DATA,
    )
    # The past moment of its parent that it was created from, if one was named: a time, or a
    # position in the log.
    parent_timestamp = models.DateTimeField(null=True)
    parent_lsn = models.BigIntegerField(null=True)
    name = models.CharField(max_length=256)
    current_state = models.CharField(
        max_length=8, choices=BranchState.choices, default=BranchState.INIT
    )
    default = models.BooleanField(default=False)
    protected = models.BooleanField(default=False)
    # When the branch is deleted automatically, in whole seconds, and how many seconds ahead that
    # was when it was set. Both are set or neither is.
    expires_at = models.DateTimeField(null=True)
    ttl_interval_seconds = models.BigIntegerField(null=True)
    # {key: value}, both text: notes of the caller who created the branch.
    annotation_value = models.JSONField(
        default=dict, db_default=models.Value({}, models.JSONField())
    )
    # Bytes of its databases, as last measured on a running compute. A trigger accounts for them as
    # storage (`usage`).
    logical_size = models.BigIntegerField(null=True)
    # Bytes outside of its databases that its clients caused, measured together with `logical_size`:
    # all other files of its compute, and write-ahead log that replication slots retain. They count
    # only towards the plan's limit.
    auxiliary_size = models.BigIntegerField(default=0, db_default=0)
    # Bytes of the disk that its history takes, as last published. A trigger accounts for them as
    # the storage of history (`usage`).
    history_bytes = models.BigIntegerField(default=0, db_default=0)
    # The number of changes of roles and databases, and the number that the compute has applied.
    catalog_revision = models.PositiveIntegerField(default=0)
    applied_catalog_revision = models.PositiveIntegerField(default=0)
    # Identifies the state of the compute's catalog when the rows were last brought to what SQL
    # changed in it; "" before the first time. See `compute.catalog.reading`.
    catalog_mark = models.TextField(default="", db_default="")
    created_at = models.DateTimeField(default=clock.now)
    updated_at = models.DateTimeField(default=clock.now)
    state_changed_at = models.DateTimeField(default=clock.now)
    deleted_at = models.DateTimeField(null=True)
    # When another branch's data last replaced its own.
    last_reset_at = models.DateTimeField(null=True)
    # The state directories of lost hosts that it has lived on, the newest first: the store may have
    # copies of it by each.
    copied_by = models.JSONField(default=list, db_default=models.Value([], models.JSONField()))
    # If it was restored from the store after its host was lost: of how many seconds its commits may
    # be lost.
    lost_seconds = models.FloatField(null=True)
    # The id of the branch that it replaces when its restore from a snapshot is finalized; None if
    # it does not wait for that.
    restores_over = models.CharField(max_length=60, null=True)
    # The id of the masked branch whose data it has or was copied from, its own if it was masked
    # itself; None if its values are not masked (`Masking`).
    masked_as = models.CharField(max_length=60, null=True)
    # Whether it is a hidden branch: the data of a snapshot, data that a restore replaced and that
    # waits to be removed, or a past moment that clients read. Callers do not see it, and it does
    # not count towards the plan's limit of branches. On disk it is a branch like any other.
    hidden = models.BooleanField(default=False, db_default=False)
    # Whether it is hidden and shows a past moment of its parent until its endpoint is suspended.
    is_time_travel = models.BooleanField(default=False, db_default=False)

    # The state that its unfinished operations lead to. Not stored; set by services that need it.
    pending_state: BranchState | None = None
    # Whether an unfinished operation replaces its data. Not stored, as above.
    is_resetting = False
    # What it consumed in the present consumption period. Not stored, as above.
    consumed: Consumed = NOTHING

    class Meta:
        constraints = (
            one_of("branch_state_is_known", "current_state", *BranchState.values),
            unique("branch_name_is_unique", "project", "name", deleted_at=None, hidden=False),
            unique("one_default_branch", "project", default=True, deleted_at=None),
            one_of("branch_init_source_is_known", "init_source", *InitSource.values),
            # The target of the composite foreign keys of endpoints, children and `schema_of`.
            unique("branch_of_its_project", "id", "project"),
        )
        indexes = (
            index("branches_that_expire", "expires_at", deleted_at=None, expires_at__isnull=False),
            # The pages of a project's branches are read by these two, or, sorted by name, by the
            # index of the constraint `branch_name_is_unique`.
            index("branches_by_change", "project", "updated_at", "id", **LIVING),
            index("branches_by_age", "project", "created_at", "id", **LIVING),
            # For the round that searches for hidden branches that are not needed any more.
            index("hidden_branches", "project", hidden=True, deleted_at=None),
            # For the rounds of a host: those that sample its branches, look at the ones that were
            # reset lately or whose catalog is unread, and forget the deleted ones.
            index("branches_of_a_host", "host", "id", **LIVING),
            index("reset_branches", "host", "last_reset_at", last_reset_at__isnull=False),
            index(
                "branches_with_unread_catalog", "host", catalog_mark=CATALOG_UNREAD, deleted_at=None
            ),
            index("deleted_branches", "host", "deleted_at", **DELETED),
            index("masked_branches", "masked_as", masked_as__isnull=False),
        )

    def __str__(self) -> str:
        return self.id

    @property
    def source(self) -> "Branch | None":
        """The parent, or the source of a schema-only branch; None for a project's first branch, and
        for one that is restored from a snapshot."""
        return self.schema_of if self.init_source == InitSource.SCHEMA_ONLY else self.parent

    @property
    def is_of_the_past(self) -> bool:
        """Whether it was created from a past moment of its parent."""
        return self.parent_timestamp is not None or self.parent_lsn is not None

    @property
    def is_recovered_past(self) -> bool:
        """Whether it has the data of a past moment that a restore switches to."""
        is_for_restore = self.hidden and self.is_of_the_past and not self.is_time_travel
        return is_for_restore and not hasattr(self, "snapshot")

    @property
    def is_over_limit(self) -> bool:
        """Whether the branch, as last measured, is larger than its account's plan allows."""
        limit = self.project.account.branch_size_limit
        return limit is not None and self.stored_size > limit

    @property
    def stored_size(self) -> int:
        """The bytes, as last measured, that count towards the limit of its account's plan."""
        return (self.logical_size or 0) + self.auxiliary_size


class CatalogRow(models.Model):
    """A row that stands for an object in the compute's catalog."""

    created_at = models.DateTimeField(default=clock.now)
    # When it was last changed or deleted: the change that the compute must apply.
    updated_at = models.DateTimeField(default=clock.now)
    # Kept until the compute has dropped it from the catalog.
    deleted_at = models.DateTimeField(null=True)
    # Why the row could not be applied to the compute, as Postgres's message, and the `created_at`
    # of the operation that failed because of it; null if none has yet.
    catalog_error = models.TextField(default="")
    catalog_error_of = models.DateTimeField(null=True)
    # The oid of the object in the branch's data, which stays the same if SQL renames the object.
    # Null until the object was seen there. A copy of the data has the same oids.
    compute_oid = models.BigIntegerField(null=True)

    class Meta:
        abstract = True


class Role(CatalogRow):
    branch = models.ForeignKey(Branch, on_delete=models.CASCADE, related_name="roles")
    name = models.CharField(max_length=63)
    # What the proxy authenticates against: SCRAM-SHA-256$<iterations>:<salt>$<keys>; "" if no
    # password is accepted.
    verifier = models.TextField()
    # The password, encrypted, for reveal_password; "" if it is not stored.
    encrypted_password = models.TextField(default="")
    protected = models.BooleanField(default=False)
    no_login = models.BooleanField(default=False)
    # When the password expires; null for never.
    valid_until = models.DateTimeField(null=True)
    # Whether SQL created the role in the compute. The platform then does not change its privileges.
    made_by_sql = models.BooleanField(default=False, db_default=False)
    # Whether the API has set a password that was not applied to the compute yet. It then replaces
    # any password that SQL has set there.
    password_is_newer = models.BooleanField(default=False, db_default=False)
    # Sessions of the role that began before this time are ended; null for none.
    sessions_end_at = models.DateTimeField(null=True)

    # The password in plain text, only for the answer to the request that created it. Not stored.
    password: str | None = None

    class Meta:
        constraints = (unique("role_name_is_unique", "branch", "name", **LIVING),)

    def __str__(self) -> str:
        return self.name

    @classmethod
    def login_names(cls, branch_id: str) -> list[str]:
        """The names of the branch's roles that may log in."""
        roles = cls.objects.filter(branch_id=branch_id, deleted_at=None, no_login=False)
        return list(roles.values_list("name", flat=True))


class Database(CatalogRow):
    branch = models.ForeignKey(Branch, on_delete=models.CASCADE, related_name="databases")
    name = models.CharField(max_length=63)
    # The name that it has in the compute's catalog, which differs from `name` until a rename is
    # applied; null until it exists there.
    applied_name = models.CharField(max_length=63, null=True)
    owner_name = models.CharField(max_length=63)
    # The owner that it last had in the catalog; null until that was read.
    applied_owner = models.CharField(max_length=63, null=True)

    class Meta:
        constraints = (unique("database_name_is_unique", "branch", "name", **LIVING),)

    def __str__(self) -> str:
        return self.name


class Masking(models.Model):
    """Of one masked branch; branches that were copied from it name it too (`Branch.masked_as`). It
    is removed when no branch does."""

    # That of the branch.
    id = models.CharField(primary_key=True, max_length=60)
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="maskings")
    # As in the API: [{database_name, schema_name, table_name, column_name, masking_function or
    # masking_value}].
    rules = models.JSONField(default=list)
    # What was masked and scanned, signed (`masked_data`); None before the data was made.
    attestation = models.JSONField(null=True)
    created_at = models.DateTimeField(default=clock.now)
    updated_at = models.DateTimeField(default=clock.now)

    def __str__(self) -> str:
        return self.id

"""Roles and databases of a branch, as rows. The compute's catalog is brought to match them."""

from django.db import models

from controlplane import clock
from controlplane.models.branch import Branch
from controlplane.models.rules import LIVING, unique


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

"""Roles and databases of a branch: what the compute's catalog is made to hold."""

from django.db import models

from controlplane import clock
from controlplane.models.branch import Branch


class CatalogRow(models.Model):
    """What stands for something in the compute's catalog."""

    created_at = models.DateTimeField(default=clock.now)
    # Of its last change, deletion included: that is what the compute is to take in.
    updated_at = models.DateTimeField(default=clock.now)
    # Kept until the compute has dropped it from the catalog.
    deleted_at = models.DateTimeField(null=True)
    # Why the compute does not hold it as it stands here, in Postgres's words, and the
    # `created_at` of the operation that has failed for it; null where none has yet.
    catalog_error = models.TextField(default="")
    catalog_error_of = models.DateTimeField(null=True)
    # What Postgres numbers it by in the branch's data, whatever SQL calls it there; null until it
    # was seen there. A copy of the data has the same numbers.
    compute_oid = models.BigIntegerField(null=True)

    class Meta:
        abstract = True


class Role(CatalogRow):
    branch = models.ForeignKey(Branch, on_delete=models.CASCADE, related_name="roles")
    name = models.CharField(max_length=63)
    # What the proxy authenticates against: SCRAM-SHA-256$<iterations>:<salt>$<keys>; "" where no
    # password fits.
    verifier = models.TextField()
    # The password itself, encrypted, for reveal_password; "" where it is not stored.
    encrypted_password = models.TextField(default="")
    protected = models.BooleanField(default=False)
    no_login = models.BooleanField(default=False)
    # From when on the password holds no more; null for never.
    valid_until = models.DateTimeField(null=True)
    # SQL made it in the compute: what it may do is none of the platform's business.
    made_by_sql = models.BooleanField(default=False, db_default=False)
    # The API has given it a password since the compute was last brought to it: any that SQL has
    # set there is older.
    password_is_newer = models.BooleanField(default=False, db_default=False)
    # Sessions that were begun before end.
    sessions_end_at = models.DateTimeField(null=True)

    # In clear only in the answer to the request that made it.
    password: str | None = None

    class Meta:
        constraints = (
            models.UniqueConstraint(
                name="role_name_is_unique",
                fields=["branch", "name"],
                condition=models.Q(deleted_at=None),
            ),
        )

    def __str__(self) -> str:
        return self.name

    @classmethod
    def that_may_connect(cls, branch_id: str) -> list[str]:
        """The names of the branch's roles with a login."""
        roles = cls.objects.filter(branch_id=branch_id, deleted_at=None, no_login=False)
        return list(roles.values_list("name", flat=True))


class Database(CatalogRow):
    branch = models.ForeignKey(Branch, on_delete=models.CASCADE, related_name="databases")
    name = models.CharField(max_length=63)
    # The name the catalog still knows it by, while a rename waits to be applied.
    applied_name = models.CharField(max_length=63, null=True)
    owner_name = models.CharField(max_length=63)
    # The owner that the catalog last had; null until it was looked at.
    applied_owner = models.CharField(max_length=63, null=True)

    class Meta:
        constraints = (
            models.UniqueConstraint(
                name="database_name_is_unique",
                fields=["branch", "name"],
                condition=models.Q(deleted_at=None),
            ),
        )

    def __str__(self) -> str:
        return self.name

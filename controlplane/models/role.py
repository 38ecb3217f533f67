"""Roles and databases of a branch: what the compute's catalog is made to hold."""

from django.db import models
from django.utils import timezone

from controlplane.models.branch import Branch


class CatalogRow(models.Model):
    """What stands for something in the compute's catalog."""

    created_at = models.DateTimeField(default=timezone.now)
    # Of its last change, deletion included: that is what the compute is to take in.
    updated_at = models.DateTimeField(default=timezone.now)
    # Kept until the compute has dropped it from the catalog.
    deleted_at = models.DateTimeField(null=True)
    # Why the compute does not hold it as it stands here, in Postgres's words, and the
    # `created_at` of the operation that has failed for it.
    catalog_error = models.TextField(default="")
    catalog_error_of = models.DateTimeField(null=True)

    class Meta:
        abstract = True


class Role(CatalogRow):
    branch = models.ForeignKey(Branch, on_delete=models.CASCADE, related_name="roles")
    name = models.CharField(max_length=63)
    # What the proxy authenticates against: SCRAM-SHA-256$<iterations>:<salt>$<keys>.
    verifier = models.TextField()
    # The password itself, encrypted, for reveal_password; "" where it is not stored.
    encrypted_password = models.TextField(default="")
    protected = models.BooleanField(default=False)
    no_login = models.BooleanField(default=False)

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

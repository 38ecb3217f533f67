"""Who calls: accounts, and the API keys that speak for them."""

import hashlib
import secrets
from datetime import datetime

from django.conf import settings
from django.db import models

from controlplane import clock
from controlplane.models.plans import LIMITS, Plan, PlanLimits


class Account(models.Model):
    name = models.CharField(max_length=64, unique=True)
    plan = models.CharField(max_length=16, choices=Plan.choices, default=Plan.FREE)
    created_at = models.DateTimeField(default=clock.now)

    class Meta:
        constraints = (
            models.CheckConstraint(
                name="account_plan_is_known", condition=models.Q(plan__in=Plan.values)
            ),
        )

    def __str__(self) -> str:
        return self.name

    @property
    def organization_id(self) -> str:
        """Of the one organization that stands for the account to clients that want one."""
        return f"org-account-{self.id:08d}"

    @property
    def is_operator(self) -> bool:
        """Whether its keys may see how the service itself fares."""
        return self.name in settings.OPERATORS

    @property
    def limits(self) -> PlanLimits:
        return LIMITS[self.plan]

    @property
    def largest_compute(self) -> float:
        """The most compute units one endpoint of this account may have."""
        return self.limits.largest_compute

    @property
    def branch_size_limit(self) -> int | None:
        """Bytes that the databases of one branch may have; None for any number."""
        return self.limits.branch_bytes


class ApiKey(models.Model):
    """A bearer key. The key itself is shown once; what is kept is its SHA-256.

    A key is 256 random bits, so a plain digest is as good as a slow one, and the unique
    index on it finds the key in a time that tells nothing about other keys.
    """

    account = models.ForeignKey(Account, on_delete=models.CASCADE, related_name="api_keys")
    name = models.CharField(max_length=64)
    digest = models.CharField(max_length=64, unique=True)
    # The one project that it reaches; None for all of the account's. A key goes with its project:
    # without it, it must never come to reach the others.
    project = models.ForeignKey(
        "controlplane.Project", null=True, on_delete=models.CASCADE, related_name="api_keys"
    )
    # It changes nothing and sees no password. The default is the database's too: others may
    # write rows.
    read_only = models.BooleanField(default=False, db_default=False)
    # From then on it is as good as revoked; None for never.
    expires_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField(default=clock.now)
    last_used_at = models.DateTimeField(null=True)
    last_used_from_addr = models.CharField(max_length=64, default="")
    revoked_at = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return self.name

    @staticmethod
    def digest_of(key: str) -> str:
        return hashlib.sha256(key.encode()).hexdigest()

    @classmethod
    def issue(
        cls,
        account: Account,
        name: str,
        *,
        project_id: str | None = None,
        read_only: bool = False,
        expires_at: datetime | None = None,
    ) -> tuple["ApiKey", str]:
        """Make a key; returns its row and the key itself, which is not kept."""
        key = f"perch_{secrets.token_hex(32)}"
        row = cls.objects.create(
            account=account,
            name=name,
            digest=cls.digest_of(key),
            project_id=project_id,
            read_only=read_only,
            expires_at=expires_at,
        )
        return row, key

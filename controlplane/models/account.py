"""Who calls: accounts, their plans, and the API keys that speak for them."""

import hashlib
import secrets
from collections.abc import Mapping

from django.db import models
from django.utils import timezone


class Plan(models.TextChoices):
    FREE = "free", "At most 1 compute unit per endpoint (specification, section 8)"
    UNLIMITED = "unlimited", "No limit but the host's"


# Bytes that the databases of one branch may have, by plan; where none is named, any number.
BRANCH_SIZE_LIMITS: Mapping[str, int] = {Plan.FREE: 512 << 20}


class Account(models.Model):
    name = models.CharField(max_length=64, unique=True)
    plan = models.CharField(max_length=16, choices=Plan.choices, default=Plan.UNLIMITED)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints = (
            models.CheckConstraint(
                name="account_plan_is_known", condition=models.Q(plan__in=Plan.values)
            ),
        )

    def __str__(self) -> str:
        return self.name

    @property
    def largest_compute(self) -> float:
        """The most compute units one endpoint of this account may have."""
        return 1.0 if self.plan == Plan.FREE else 56.0

    @property
    def branch_size_limit(self) -> int | None:
        """Bytes that the databases of one branch may have; None for any number."""
        return BRANCH_SIZE_LIMITS.get(self.plan)


class ApiKey(models.Model):
    """A bearer key. The key itself is shown once; what is kept is its SHA-256.

    A key is 256 random bits, so a plain digest is as good as a slow one, and the unique
    index on it finds the key in a time that tells nothing about other keys.
    """

    account = models.ForeignKey(Account, on_delete=models.CASCADE, related_name="api_keys")
    name = models.CharField(max_length=64)
    digest = models.CharField(max_length=64, unique=True)
    created_at = models.DateTimeField(default=timezone.now)
    last_used_at = models.DateTimeField(null=True)
    last_used_from_addr = models.CharField(max_length=64, default="")
    revoked_at = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return self.name

    @staticmethod
    def digest_of(key: str) -> str:
        return hashlib.sha256(key.encode()).hexdigest()

    @classmethod
    def issue(cls, account: Account, name: str) -> tuple["ApiKey", str]:
        """Make a key; returns its row and the key itself, which is not kept."""
        key = f"perch_{secrets.token_hex(32)}"
        row = cls.objects.create(account=account, name=name, digest=cls.digest_of(key))
        return row, key

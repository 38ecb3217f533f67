"""Accounts, the API keys that authenticate their callers, and what is stored of the keys' requests:
the answers to those with an idempotency key, and their rates."""

import hashlib
import secrets
from datetime import datetime

from django.conf import settings
from django.db import models

from controlplane import clock
from controlplane.models.plans import LIMITS, Plan, PlanLimits
from controlplane.models.rules import index, one_of, unique


class Account(models.Model):
    name = models.CharField(max_length=64, unique=True)
    plan = models.CharField(max_length=16, choices=Plan.choices, default=Plan.FREE)
    created_at = models.DateTimeField(default=clock.now)
    # Since then no key and no connection of the account is accepted; null if they are. A deleted
    # account is disabled too: what was deleted since can be recovered with it.
    disabled_at = models.DateTimeField(null=True)
    deleted_at = models.DateTimeField(null=True)
    # Until when a deleted account can be recovered; null if it cannot be.
    recoverable_until = models.DateTimeField(null=True)

    # The number of its projects that are not deleted, if `services.account_management` has read it.
    living: int

    class Meta:
        constraints = (one_of("account_plan_is_known", "plan", *Plan.values),)

    def __str__(self) -> str:
        return self.name

    @property
    def organization_id(self) -> str:
        """The id of the organization that represents the account to clients that expect one."""
        return f"org-account-{self.id:08d}"

    @property
    def is_operator(self) -> bool:
        """Whether its keys may read the status of the service itself."""
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
        """Bytes that one branch may store (`Branch.stored_size`); None for no limit."""
        return self.limits.branch_bytes


class ApiKey(models.Model):
    """A bearer key. The key itself is shown once; only its SHA-256 digest is stored.

    A key is 256 random bits, so a fast digest is as safe as a slow one. The duration of a lookup
    by the digest's unique index reveals nothing about other keys.
    """

    account = models.ForeignKey(Account, on_delete=models.CASCADE, related_name="api_keys")
    name = models.CharField(max_length=64)
    digest = models.CharField(max_length=64, unique=True)
    # The only project that the key gives access to; None for all of the account's. The key is
    # deleted with its project, because without it the key would give access to all others.
    project = models.ForeignKey(
        "controlplane.Project", null=True, on_delete=models.CASCADE, related_name="api_keys"
    )
    # A read-only key can change nothing and read no password. The database has the default too,
    # for writers that do not set the column.
    read_only = models.BooleanField(default=False, db_default=False)
    # From then on the key is refused; None for never.
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
        """Create a key. Returns its row, and the key itself, which is not stored."""
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


class IdempotentRequest(models.Model):
    """A request with an `Idempotency-Key`, and its answer; see `services.rules.idempotency`.

    Written in the transaction of the change itself, so the change and the answer are stored
    together or not at all.
    """

    api_key = models.ForeignKey(ApiKey, on_delete=models.CASCADE, related_name="+")
    key = models.CharField(max_length=255)
    # SHA-256 of the request: method, URL and body.
    fingerprint = models.CharField(max_length=64)
    status = models.PositiveSmallIntegerField()
    # The body, encrypted, because it may contain passwords and API keys.
    answer = models.TextField()
    created_at = models.DateTimeField(default=clock.now)

    class Meta:
        constraints = (unique("one_request_of_a_key", "api_key", "key"),)
        indexes = (index("idempotent_requests_by_age", "created_at"),)

    def __str__(self) -> str:
        return self.key


class RequestRate(models.Model):
    """How far the requests of an account, or of a key at one route, are ahead of their rate. Only
    `perch_take_turn` (migration 0001_squashed_0029) writes it.

    The table is UNLOGGED: after a crash of Postgres it is empty, and all rates start anew.
    """

    # `account <id>`, or `key <id> <route>`.
    name = models.CharField(primary_key=True, max_length=255)
    # When the last request would have been served if all were served at the rate's spacing.
    free_at = models.DateTimeField()

    def __str__(self) -> str:
        return self.name

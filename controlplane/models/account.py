"""Accounts, the API keys that authenticate their callers, and what is stored of the keys' requests:
the answers to those with an idempotency key, and their rates."""

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from django.conf import settings
from django.db import models

from controlplane import clock
from controlplane.models.rules import index, one_of, unique


class Plan(models.TextChoices):
    FREE = "free", "To try it out: a new account's, unless it is made with another"
    STANDARD = "standard", "For work in earnest beside other accounts"
    UNLIMITED = "unlimited", "No limit but the host's"


@dataclass(frozen=True, kw_only=True)
class PlanLimits:
    """The limits of one plan; None for no limit. When an account changes to a smaller plan,
    everything that exists stays, and can be changed in every way that adds nothing."""

    projects: int | None = None
    branches_of_project: int | None = None
    endpoints_of_project: int | None = None
    roles_of_branch: int | None = None
    databases_of_branch: int | None = None
    # Bytes that one branch stores; see `operations.rounds.sizes` for what happens beyond the limit.
    branch_bytes: int | None = None
    # Snapshots of a project. Each is a copy of a branch.
    snapshots_of_project: int | None = None
    # Of an account: deleted projects that can still be recovered, and bytes of their branches.
    # Beyond either limit, the project that was deleted first is removed; see
    # `operations.rounds.deleted_projects`.
    deleted_projects: int | None = None
    deleted_bytes: int | None = None
    # Of a project: hidden branches whose data waits to be removed, which restores or deleted
    # snapshots left.
    removed_branches_of_project: int | None = None
    # Clients' connections through the proxy, to all endpoints of the account together.
    connections: int | None = None
    # The largest `history_retention_seconds` of a project.
    history_seconds: int | None = None
    # Compute units of one endpoint.
    largest_compute: float = 56.0
    # Requests to the API with all of the account's keys together; see
    # `services.rules.request_rates`.
    requests_per_minute: int | None = None
    # Every plan has a limit, because each event of an account is matched against all its webhooks.
    webhooks: int = 50


LIMITS: Mapping[str, PlanLimits] = {
    Plan.FREE: PlanLimits(
        projects=3,
        branches_of_project=10,
        endpoints_of_project=5,
        roles_of_branch=10,
        databases_of_branch=10,
        branch_bytes=512 << 20,
        snapshots_of_project=1,
        deleted_projects=3,
        deleted_bytes=1 << 30,
        removed_branches_of_project=5,
        connections=200,
        history_seconds=86_400,
        # Specification, section 8.
        largest_compute=1.0,
        requests_per_minute=700,
        webhooks=3,
    ),
    Plan.STANDARD: PlanLimits(
        projects=50,
        branches_of_project=100,
        endpoints_of_project=50,
        roles_of_branch=100,
        databases_of_branch=100,
        branch_bytes=50 << 30,
        snapshots_of_project=10,
        deleted_projects=50,
        deleted_bytes=100 << 30,
        removed_branches_of_project=20,
        connections=2_000,
        history_seconds=7 * 86_400,
        largest_compute=8.0,
        requests_per_minute=700,
        webhooks=20,
    ),
    Plan.UNLIMITED: PlanLimits(),
}

# `branch_bytes` of the plans that limit it.
BRANCH_SIZE_LIMITS: Mapping[str, int] = {
    plan: limits.branch_bytes for plan, limits in LIMITS.items() if limits.branch_bytes is not None
}


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

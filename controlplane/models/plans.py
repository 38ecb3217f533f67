"""What each plan allows an account: the one table, which models, services, API and proxy read."""

from collections.abc import Mapping
from dataclasses import dataclass

from django.db import models


class Plan(models.TextChoices):
    FREE = "free", "To try it out: a new account's, unless it is made with another"
    STANDARD = "standard", "For work in earnest beside other accounts"
    UNLIMITED = "unlimited", "No limit but the host's"


@dataclass(frozen=True, kw_only=True)
class PlanLimits:
    """The most of each; None for any number. What was there before an account came to a smaller
    plan stays, and can be changed in every way but to more."""

    projects: int | None = None
    branches_of_project: int | None = None
    endpoints_of_project: int | None = None
    roles_of_branch: int | None = None
    databases_of_branch: int | None = None
    # Bytes of one branch's databases; see `operations.sizes` for what happens past it.
    branch_bytes: int | None = None
    # Of a project; each is a copy of a branch.
    snapshots_of_project: int | None = None
    # Of an account: deleted projects that can still be recovered, and bytes of their branches.
    # Past either the oldest goes for good; see `operations.recovery`.
    deleted_projects: int | None = None
    deleted_bytes: int | None = None
    # Of a project: branches whose data waits to be removed, after a restore or with a snapshot.
    removed_branches_of_project: int | None = None
    # Clients' connections through the proxy, to all endpoints of the account together.
    connections: int | None = None
    # Seconds of a project's `history_retention_seconds`.
    history_seconds: int | None = None
    # Compute units of one endpoint.
    largest_compute: float = 56.0
    # Of all its keys together; see `services.request_rates`.
    requests_per_minute: int | None = None
    # Of every plan: each event of an account is matched against all of them.
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

# `branch_bytes` of the plans that have it.
BRANCH_SIZE_LIMITS: Mapping[str, int] = {
    plan: limits.branch_bytes for plan, limits in LIMITS.items() if limits.branch_bytes is not None
}

"""The limits of each plan, which models, services, the API and the proxy read."""

from collections.abc import Mapping
from dataclasses import dataclass

from django.db import models


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

"""Refuses to create what exceeds the limits of the account's plan (`models.account`), and to start
an endpoint if a quota in its project's settings is used up (`operations.quotas`).

Each check of a plan runs under a lock that keeps its count correct until the transaction ends. If
the plan has no limit, nothing is counted, and nothing is locked beyond what the caller has locked.
"""

from collections.abc import Mapping
from typing import Any

from django.db.models import QuerySet

from controlplane import clock
from controlplane.models import (
    UNFINISHED,
    Account,
    Action,
    ApiKey,
    Branch,
    Database,
    Endpoint,
    Operation,
    Project,
    Role,
    Snapshot,
    Webhook,
)
from controlplane.operations.quotas import UsedUp, used_up
from controlplane.services.errors import (
    Locked,
    ServiceError,
    TooManyAtOnce,
    Unprocessable,
    locking_within_bound,
    refused_field,
)

# API keys of an account that are not revoked, on every plan. Lists contain all of them.
MAX_API_KEYS = 1_000
# What a plan limits: its words, and the name of the limit.
LIMITED: Mapping[type[Any], tuple[str, str]] = {
    Project: ("user projects", "projects"),
    Webhook: ("webhooks", "webhooks"),
    Branch: ("project branches", "branches_of_project"),
    Snapshot: ("project snapshots", "snapshots_of_project"),
    Endpoint: ("project endpoints", "endpoints_of_project"),
    Role: ("branch roles", "roles_of_branch"),
    Database: ("branch databases", "databases_of_branch"),
}


def check_projects(account: Account) -> None:
    """Check that the account may have one more project. Locks the account until the transaction
    ends, so that of two concurrent creations one counts the other. Raises Unprocessable,
    TooManyAtOnce."""
    if account.limits.projects is not None:
        _lock(account)
        check_one_more(account, Project.objects.filter(account=account, deleted_at=None))


def check_deleted_projects(account: Account) -> None:
    """Check that not too many deleted projects wait for the removal of their data, so that a caller
    who creates and deletes projects in a loop is not faster than the removal. Kept and waiting ones
    together may be up to twice the plan's `deleted_projects`. The caller has called
    `check_projects` before, whose lock this relies on. Raises Locked."""
    most = account.limits.deleted_projects
    if most is None:
        return
    kept = Project.objects.filter(account=account, recoverable_until__isnull=False).count()
    removals = Operation.objects.filter(
        project__account=account, action=Action.DELETE_TENANT, status__in=UNFINISHED
    )
    if kept + removals.count() >= 2 * most:
        raise Locked(
            f"the data of {kept + removals.count()} deleted projects of the account has not "
            "been removed yet; try again in a few seconds"
        )


def check_removed_branches(project: Project) -> None:
    """Check that one more hidden branch may wait for the removal of its data, which restores and
    deleted snapshots leave. The caller holds the project's lock. Raises Locked."""
    most = project.account.limits.removed_branches_of_project
    if most is None:
        return
    have = Branch.objects.filter(
        project=project, hidden=True, deleted_at=None, snapshot=None
    ).count()
    if have >= most:
        raise Locked(
            f"the data of {have} branches that restores and snapshots of the project have left "
            "has not been removed yet; try again in a few seconds"
        )


def check_webhooks(account: Account) -> None:
    """Check that the account may have one more webhook; those of its projects count too. Locks the
    account until the transaction ends, as `check_projects` does. Raises Unprocessable,
    TooManyAtOnce."""
    _lock(account)
    check_one_more(account, Webhook.objects.filter(account=account))


def check_api_keys(account: Account) -> None:
    """Check that the account may have one more API key. Removes its expired ones if that makes
    room. Locks the account until the transaction ends, as `check_projects` does. Raises
    Unprocessable, TooManyAtOnce."""
    _lock(account)
    keys = ApiKey.objects.filter(account=account, revoked_at=None)
    if keys.count() < MAX_API_KEYS:
        return
    keys.filter(expires_at__lte=clock.now()).delete()
    if keys.count() >= MAX_API_KEYS:
        raise Unprocessable(
            f"an account has at most {MAX_API_KEYS:,} API keys: first revoke some",
            code="API_KEYS_LIMIT_EXCEEDED",
        )


def _lock(account: Account) -> None:
    # FOR NO KEY UPDATE, so that rows that refer to the account can be inserted meanwhile. To avoid
    # deadlocks, no code locks an account while it holds a project's lock.
    words = "other requests of the account are creating resources of this kind; try again"
    with locking_within_bound(TooManyAtOnce(words)):
        Account.objects.select_for_update(no_key=True).get(id=account.id)


def check_history(account: Account, seconds: int) -> None:
    """Check that the plan allows this `history_retention_seconds`. Raises Unprocessable."""
    limit = account.limits.history_seconds
    if limit is not None and seconds > limit:
        raise refused_field(
            "history_retention_seconds",
            f'the plan "{account.plan}" allows at most {limit} seconds, got {seconds}',
            code="HISTORY_RETENTION_LIMIT_EXCEEDED",
        )


def check_one_more(account: Account, rows: QuerySet[Any]) -> None:
    """Check that the plan allows one more row of the kind of `rows`, which are all of its account,
    project or branch. The caller holds a lock that keeps their count. Raises Unprocessable, whose
    code is named by the things, such as BRANCHES_LIMIT_EXCEEDED."""
    things, name = LIMITED[rows.model]
    limit = getattr(account.limits, name)
    if limit is not None and (have := rows.count()) >= limit:
        raise Unprocessable(
            f'{things} limit of {limit} exceeded, got {have}; plan:"{account.plan}". '
            "Delete what you do not need, or ask the operator for a larger plan",
            code=f"{things.split()[-1].upper()}_LIMIT_EXCEEDED",
        )


class QuotaExceeded(ServiceError):
    """The project has used up a quota of its settings. `words` is the message that clients of
    Neon's API know."""

    def __init__(self, used_up: UsedUp) -> None:
        quota = used_up.quota
        super().__init__(
            f'{used_up.words} quota:"{quota.field}", limit:"{used_up.limit}", '
            f'used:"{used_up.used}"',
            code=quota.code,
        )
        self.words = used_up.words


def refuse_used_up(project: Project, branch: Branch) -> None:
    """Raises QuotaExceeded if a used-up quota prevents an endpoint of the branch from starting."""
    if found := used_up(project, branch):
        raise QuotaExceeded(found)

"""The limits that a project's own settings put on its use in a consumption period, and whether the
project has reached them.

`settings.quota` of the project holds a number for each field; 0 or absent means no limit.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from controlplane.models import Branch, Consumed, Project
from controlplane.models.consumed import NOTHING
from controlplane.models.consumption import consumed_by_projects


@dataclass(frozen=True)
class Quota:
    """`field` is its name in the settings, `words` its name in a refusal."""

    field: str
    words: str
    used: Callable[[Consumed], float]

    @property
    def code(self) -> str:
        return f"{self.words.upper().replace(' ', '_')}_QUOTA_EXCEEDED"


LOGICAL_SIZE = "logical_size_bytes"
WRITTEN = "written_data_bytes"
# Limits for all branches together, in the period.
QUOTAS = (
    Quota("compute_time_seconds", "compute time", lambda used: used.compute_seconds),
    Quota("active_time_seconds", "active time", lambda used: used.active_seconds),
    Quota(WRITTEN, "written data", lambda used: used.written_bytes),
    Quota("data_transfer_bytes", "data transfer", lambda used: used.transferred_bytes),
)
# A limit for each branch, at any time.
SIZE_QUOTA = Quota(LOGICAL_SIZE, "logical size", lambda used: used.stored_bytes)


@dataclass(frozen=True)
class UsedUp:
    """A quota that is used up; `limit` and `used` are in seconds or bytes."""

    quota: Quota
    limit: int
    used: int

    @property
    def words(self) -> str:
        """The message, as clients of Neon's API know it."""
        return (
            f"Your account or project has exceeded the {self.quota.words} quota. "
            "Upgrade your plan to increase limits."
        )


def quota_of(project: Project) -> Mapping[str, int]:
    """Return the limits that are set, by field."""
    stored = project.settings.get("quota")
    fields = [quota.field for quota in (*QUOTAS, SIZE_QUOTA)]
    limits = {name: stored.get(name) for name in fields} if isinstance(stored, dict) else {}
    # A value that an earlier release stored may be of any type.
    return {name: limit for name, limit in limits.items() if type(limit) is int and limit > 0}


def used_up(project: Project, branch: Branch) -> UsedUp | None:
    """Return the quota that keeps an endpoint of the branch from running; None if none does. For a
    project without quotas this makes no query."""
    limits = quota_of(project)
    if not limits:
        return None
    has_periodic = any(quota.field in limits for quota in QUOTAS)
    consumed = consumed_by_projects([project.id]) if has_periodic else {}
    return used_up_of(limits, consumed.get(project.id, NOTHING), branch)


def used_up_of(limits: Mapping[str, int], consumed: Consumed, branch: Branch) -> UsedUp | None:
    """Do the same, given what the project has consumed."""
    size = branch.logical_size
    if size is None and branch.parent:
        # The branch is not made yet, and will be as large as its parent.
        size = branch.parent.logical_size
    of_branch = Consumed(stored_bytes=size or 0)
    for quota in (*QUOTAS, SIZE_QUOTA):
        limit = limits.get(quota.field)
        used = int(quota.used(of_branch if quota is SIZE_QUOTA else consumed))
        if limit is not None and used >= limit:
            return UsedUp(quota, limit, used)
    return None

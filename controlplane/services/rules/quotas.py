"""Refuses to start an endpoint if a quota in its project's settings is used up
(`operations.quotas`)."""

from controlplane.models import Branch, Project
from controlplane.operations.quotas import UsedUp, used_up
from controlplane.services.errors import ServiceError


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

"""Numbers of endpoints and unfinished operations of an account's projects, for a dashboard."""

from collections import defaultdict
from dataclasses import dataclass, field

from django.db.models import Count

from controlplane.models import UNFINISHED, Account, Endpoint, EndpointState, Operation


@dataclass
class EndpointCounts:
    active: int = 0
    idle: int = 0
    disabled: int = 0


@dataclass
class ProjectState:
    """The numbers of one project that has an endpoint or an unfinished operation."""

    project_id: str
    endpoints: EndpointCounts = field(default_factory=EndpointCounts)
    unfinished_operations: int = 0


def list_project_states(account: Account) -> list[ProjectState]:
    """The states of the account's projects, sorted by project id. This takes two statements,
    however many projects there are. Endpoints of hidden branches, such as those that read a past
    moment, are in no list and do not count."""
    states: dict[str, ProjectState] = defaultdict(lambda: ProjectState(project_id=""))
    endpoints = (
        Endpoint.objects.filter(
            project__account=account,
            project__deleted_at=None,
            deleted_at=None,
            branch__hidden=False,
        )
        .values_list("project_id", "current_state", "disabled")
        .annotate(count=Count("id"))
        .order_by()
    )
    for project_id, current_state, disabled, count in endpoints:
        counts = states[project_id].endpoints
        if disabled:
            counts.disabled += count
        elif current_state == EndpointState.ACTIVE:
            counts.active += count
        else:
            counts.idle += count
    unfinished = (
        Operation.objects.filter(
            project__account=account, project__deleted_at=None, status__in=UNFINISHED
        )
        .values_list("project_id")
        .annotate(count=Count("id"))
        .order_by()
    )
    for project_id, count in unfinished:
        states[project_id].unfinished_operations = count
    for project_id, state in states.items():
        state.project_id = project_id
    return sorted(states.values(), key=lambda state: state.project_id)

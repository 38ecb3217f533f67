"""Numbers of endpoints and unfinished operations of an account's projects, for a dashboard."""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import cast

from django.db import connection

from controlplane.database.base import DatabaseWrapper
from controlplane.models import UNFINISHED, Account, EndpointState

ENDPOINTS = """
SELECT e.project_id, e.current_state, e.disabled, count(*)
FROM controlplane_endpoint e
JOIN controlplane_project project ON project.id = e.project_id
JOIN controlplane_branch branch ON branch.id = e.branch_id
WHERE project.account_id = %(account)s AND project.deleted_at IS NULL
    AND e.deleted_at IS NULL AND NOT branch.hidden
GROUP BY e.project_id, e.current_state, e.disabled
"""
# The statuses are written out one by one, as in the index's condition.
OPERATIONS = f"""
SELECT o.project_id, count(*)
FROM controlplane_operation o
JOIN controlplane_project project ON project.id = o.project_id
WHERE project.account_id = %(account)s AND project.deleted_at IS NULL
    AND o.status IN ('{"', '".join(UNFINISHED)}')
GROUP BY o.project_id
"""  # noqa: S608 # constants


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
    read = cast(DatabaseWrapper, connection).read
    endpoints = read(ENDPOINTS, {"account": account.id})
    for project_id, current_state, disabled, count in endpoints:
        counts = states[project_id].endpoints
        if disabled:
            counts.disabled += count
        elif current_state == EndpointState.ACTIVE:
            counts.active += count
        else:
            counts.idle += count
    unfinished = read(OPERATIONS, {"account": account.id})
    for project_id, count in unfinished:
        states[project_id].unfinished_operations = count
    for project_id, state in states.items():
        state.project_id = project_id
    return sorted(states.values(), key=lambda state: state.project_id)

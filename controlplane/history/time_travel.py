"""Reading a past moment of a branch: a short-lived endpoint on a hidden branch of the moment."""

from controlplane.events.changes import endpoint_created
from controlplane.events.recording import record
from controlplane.models import Account, Branch, RequestKind
from controlplane.operations.engine.scheduling import schedule, unfinished
from controlplane.services.branches import (
    copied_catalog,
    find_branch,
    refuse_while_deleting,
    refuse_while_replaced,
)
from controlplane.services.creation import make_branch, make_endpoint
from controlplane.services.endpoints import EndpointChange
from controlplane.services.errors import Unprocessable
from controlplane.services.passwords import give_new_passwords
from controlplane.services.projects import changing_project
from controlplane.services.rules.endpoint_attributes import EndpointAttributes
from controlplane.services.rules.history import MomentSpec


def travel(account: Account, project_id: str, branch_id: str, moment: MomentSpec) -> EndpointChange:
    """Create an endpoint to read the branch as it was at the moment, and start it. Once it is
    suspended, a round removes it with its data (`operations.rounds.expiry`). Its roles
    have the branch's present passwords, or new ones if the branch is protected.

    Raises NotFound, Locked, Unprocessable, HostFull, QuotaExceeded.
    """
    with changing_project(account, project_id) as project:
        branch = find_branch(project, branch_id)
        earlier = unfinished(project.id)
        refuse_while_deleting(branch, earlier)
        refuse_while_replaced(branch, earlier)
        past = moment.of(branch)
        if past is None:
            raise Unprocessable("send timestamp or lsn", fields=["timestamp", "lsn"])
        roles, databases = copied_catalog(branch)
        if branch.protected:
            give_new_passwords(roles, store=project.store_passwords)
        copy, creation = make_branch(
            project,
            name="",
            parent=branch,
            # So the same rules about client addresses apply.
            protected=branch.protected,
            roles=roles,
            databases=databases,
            hidden=True,
            moment=past,
            is_time_travel=True,
        )
        endpoint, start = make_endpoint(project, copy, _copied_attributes(branch))
        title = f"Query {branch.name} as of {past.words}"
        steps = [creation, *start]
        operations = schedule(project, steps, RequestKind.READ_PAST, title=title)
        record(endpoint_created(project, endpoint, operations))
    return EndpointChange(endpoint, operations)


def _copied_attributes(branch: Branch) -> EndpointAttributes:
    """As large as the branch's endpoint, and suspended after the same time, unless that is never
    suspended."""
    endpoint = branch.endpoints.filter(deleted_at=None).first()
    if endpoint is None:
        return EndpointAttributes()
    chosen = {
        name: getattr(endpoint, name)
        for name in ("autoscaling_limit_min_cu", "autoscaling_limit_max_cu")
    }
    return EndpointAttributes(
        chosen={**chosen, "suspend_timeout_seconds": max(0, endpoint.suspend_timeout_seconds)}
    )

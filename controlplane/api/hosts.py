"""Changes of a host, and the move of a project to another host: only for the accounts that operate
the service."""

from typing import Any

from controlplane.api.auth import AuthenticatedRequest
from controlplane.api.fields import Text
from controlplane.api.requests.hosts import MoveProject, UpdateHost
from controlplane.api.responses.operations import OperationsOut
from controlplane.api.responses.status import LostHost, OneHost
from controlplane.api.routing import Router
from controlplane.services import hosts, lost_hosts, moving, status
from controlplane.services.account_management import acting_for, check_operator

router = Router(tags=["status"])


@router.patch("/status/hosts/{host_id}", response=OneHost, summary="Drain or resume a host")
def update_host(request: AuthenticatedRequest, host_id: Text, body: UpdateHost) -> dict[str, Any]:
    """Decides whether new projects are placed on the host. One that is drained has its projects
    moved to the other hosts of its region, by operations. Only for the accounts that operate the
    service."""
    check_operator(request.auth)
    if body.host.draining is not None:
        host = hosts.drain_host(host_id, draining=body.host.draining)
        if body.host.draining:
            with acting_for(request.auth):
                moving.empty_host(host)
    return {"host": status.host_status(hosts.find_host(host_id))}


@router.delete("/status/hosts/{host_id}", response=OneHost, summary="Remove a host")
def delete_host(request: AuthenticatedRequest, host_id: Text) -> dict[str, Any]:
    """Removes a host that has no projects and whose worker is stopped; 409 otherwise. Returns it
    as it was. Only for the accounts that operate the service."""
    check_operator(request.auth)
    removed = status.host_status(hosts.find_host(host_id))
    hosts.remove_host(host_id)
    return {"host": removed}


@router.post(
    "/status/hosts/{host_id}/lost", response=LostHost, summary="Declare a host lost for good"
)
def declare_host_lost(request: AuthenticatedRequest, host_id: Text) -> dict[str, Any]:
    """Has the other hosts of the region restore the host's projects from the history's store; what
    was committed after the last copy is lost. The host does not serve them any more, even if it
    comes back. 409 if its worker is alive, or if nothing could be restored. Only for the accounts
    that operate the service."""
    check_operator(request.auth)
    with acting_for(request.auth):
        found = lost_hosts.declare_lost(host_id)
    return {
        "host": status.host_status(hosts.find_host(host_id)),
        "restored_elsewhere": found.taken,
        "without_copy": found.without_copy,
        "without_place": found.without_place,
    }


@router.post(
    "/projects/{project_id}/move",
    response=OperationsOut,
    exclude_none=True,
    tags=["projects"],
    summary="Move a project to another host",
)
def move_project(
    request: AuthenticatedRequest, project_id: str, body: MoveProject
) -> dict[str, Any]:
    """Moves the project, of any account, with all its branches, snapshots and history to another
    host of its region. Its active endpoints are suspended meanwhile, and started again there. Only
    for the accounts that operate the service."""
    check_operator(request.auth)
    with acting_for(request.auth):
        return {"operations": moving.move(project_id, to=body.host_id)}

"""`/status`: the state of each region, for every account. `/status/hosts`: the details of each
host, and changes of one, for the accounts that operate the service."""

from typing import Any

from controlplane.api.auth import AuthenticatedRequest
from controlplane.api.fields import Text
from controlplane.api.requests.hosts import UpdateHost
from controlplane.api.responses.status import LostHost, OneHost, ServiceDetails, ServiceStatus
from controlplane.api.routing import Router
from controlplane.services import hosts, lost_hosts, moving, status
from controlplane.services.account_management import acting_for

router = Router(tags=["status"])


@router.get("/status", response=ServiceStatus)
def get_service_status(request: AuthenticatedRequest) -> dict[str, Any]:
    """Lists the regions. `missing` names the processes that give no sign of life on some of its
    hosts. Without its worker, a host's operations wait; without its proxy, clients cannot connect
    there."""
    return {"regions": status.region_statuses()}


@router.get("/status/hosts", response=ServiceDetails, summary="Get the hosts of the service")
def get_service_details(request: AuthenticatedRequest) -> status.ServiceDetails:
    """Returns each host with its queues, computes, disk and versions. Only for the
    accounts that operate the service; other accounts are refused."""
    return status.service_details(request.auth)


@router.patch("/status/hosts/{host_id}", response=OneHost, summary="Drain or resume a host")
def update_host(request: AuthenticatedRequest, host_id: Text, body: UpdateHost) -> dict[str, Any]:
    """Decides whether new projects are placed on the host. One that is drained has its projects
    moved to the other hosts of its region, by operations. Only for the accounts that operate the
    service."""
    hosts.check_operator(request.auth)
    if body.host.draining is not None:
        host = hosts.drain_host(host_id, draining=body.host.draining)
        if body.host.draining:
            with acting_for(request.auth):
                moving.empty(host)
    return {"host": status.host_status(hosts.find_host(host_id))}


@router.delete("/status/hosts/{host_id}", response=OneHost, summary="Remove a host")
def delete_host(request: AuthenticatedRequest, host_id: Text) -> dict[str, Any]:
    """Removes a host that has no projects and whose worker is stopped; 409 otherwise. Returns it
    as it was. Only for the accounts that operate the service."""
    hosts.check_operator(request.auth)
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
    hosts.check_operator(request.auth)
    with acting_for(request.auth):
        found = lost_hosts.declare_lost(host_id)
    return {
        "host": status.host_status(hosts.find_host(host_id)),
        "restored_elsewhere": found.taken,
        "without_copy": found.without_copy,
        "without_place": found.without_place,
    }

"""`/status`: the state of each region, for every account. `/status/hosts`: the details of each
host, for the accounts that operate the service."""

from typing import Any

from controlplane.api.http.auth import AuthenticatedRequest
from controlplane.api.http.routing import Router
from controlplane.api.responses.status import ServiceDetails, ServiceStatus
from controlplane.services.monitoring import health

router = Router(tags=["status"])


@router.get("/status", response=ServiceStatus)
def get_service_status(request: AuthenticatedRequest) -> dict[str, Any]:
    """Lists the regions. `missing` names the processes that give no sign of life on some of its
    hosts. Without its worker, a host's operations wait; without its proxy, clients cannot connect
    there."""
    return {"regions": health.region_statuses()}


@router.get("/status/hosts", response=ServiceDetails, summary="Get the hosts of the service")
def get_service_details(request: AuthenticatedRequest) -> health.ServiceDetails:
    """Returns each host with its queues, computes, disk and versions. Only for the
    accounts that operate the service; other accounts are refused."""
    return health.service_details(request.auth)

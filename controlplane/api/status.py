"""`/status`: how the service fares, for everybody; `/status/hosts`, in detail, for its operator."""

from typing import Any

from controlplane.api.auth import AuthenticatedRequest
from controlplane.api.responses.status import ServiceDetails, ServiceStatus
from controlplane.api.routing import Router
from controlplane.services import status

router = Router(tags=["status"])


@router.get("/status", response=ServiceStatus)
def get_service_status(request: AuthenticatedRequest) -> dict[str, Any]:
    """Which processes of each region do not say that they are there: without its worker what is
    asked for there waits, without its proxy nobody can connect."""
    return {"regions": status.region_statuses()}


@router.get("/status/hosts", response=ServiceDetails, summary="Get the hosts of the service")
def get_service_details(request: AuthenticatedRequest) -> status.ServiceDetails:
    """Each region's host, its queues, computes, disk and versions. For the accounts that run the
    service; others are refused."""
    return status.service_details(request.auth)

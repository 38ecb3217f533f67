"""`/projects/{project_id}/endpoints`: the compute endpoints (specification, calls 1 to 4)."""

from typing import Any

from controlplane.api.auth import AuthenticatedRequest
from controlplane.api.requests.endpoints import CreateEndpoint, UpdateEndpoint
from controlplane.api.responses.endpoints import EndpointAndOperations, Endpoints, OneEndpoint
from controlplane.api.routing import Router
from controlplane.services import endpoints
from controlplane.services.endpoints import EndpointChange

router = Router(tags=["endpoints"])


@router.post(
    "/projects/{project_id}/endpoints", response={201: EndpointAndOperations}, exclude_none=True
)
def create_endpoint(
    request: AuthenticatedRequest, project_id: str, body: CreateEndpoint
) -> tuple[int, dict[str, Any]]:
    wanted = body.endpoint
    change = endpoints.create_endpoint(
        request.auth, project_id, branch_id=wanted.branch_id, asked=wanted.asked()
    )
    return 201, _changed(change)


@router.get("/projects/{project_id}/endpoints", response=Endpoints, exclude_none=True)
def list_endpoints(request: AuthenticatedRequest, project_id: str) -> dict[str, Any]:
    return {"endpoints": endpoints.list_endpoints(request.auth, project_id)}


@router.get(
    "/projects/{project_id}/endpoints/{endpoint_id}", response=OneEndpoint, exclude_none=True
)
def get_endpoint(
    request: AuthenticatedRequest, project_id: str, endpoint_id: str
) -> dict[str, Any]:
    return {"endpoint": endpoints.get_endpoint(request.auth, project_id, endpoint_id)}


@router.patch(
    "/projects/{project_id}/endpoints/{endpoint_id}",
    response=EndpointAndOperations,
    exclude_none=True,
)
def update_endpoint(
    request: AuthenticatedRequest, project_id: str, endpoint_id: str, body: UpdateEndpoint
) -> dict[str, Any]:
    wanted = body.endpoint
    change = endpoints.update_endpoint(
        request.auth,
        project_id,
        endpoint_id,
        branch_id=wanted.branch_id,
        asked=wanted.asked(),
    )
    return _changed(change)


@router.delete(
    "/projects/{project_id}/endpoints/{endpoint_id}",
    response=EndpointAndOperations,
    exclude_none=True,
)
def delete_endpoint(
    request: AuthenticatedRequest, project_id: str, endpoint_id: str
) -> dict[str, Any]:
    deleted = endpoints.delete_endpoint(request.auth, project_id, endpoint_id)
    return {"endpoint": deleted, "operations": []}


@router.post(
    "/projects/{project_id}/endpoints/{endpoint_id}/start",
    response=EndpointAndOperations,
    exclude_none=True,
)
def start_endpoint(
    request: AuthenticatedRequest, project_id: str, endpoint_id: str
) -> dict[str, Any]:
    return _changed(endpoints.start_endpoint(request.auth, project_id, endpoint_id))


@router.post(
    "/projects/{project_id}/endpoints/{endpoint_id}/suspend",
    response=EndpointAndOperations,
    exclude_none=True,
)
def suspend_endpoint(
    request: AuthenticatedRequest, project_id: str, endpoint_id: str
) -> dict[str, Any]:
    return _changed(endpoints.suspend_endpoint(request.auth, project_id, endpoint_id))


@router.post(
    "/projects/{project_id}/endpoints/{endpoint_id}/restart",
    response=EndpointAndOperations,
    exclude_none=True,
)
def restart_endpoint(
    request: AuthenticatedRequest, project_id: str, endpoint_id: str
) -> dict[str, Any]:
    return _changed(endpoints.restart_endpoint(request.auth, project_id, endpoint_id))


def _changed(change: EndpointChange) -> dict[str, Any]:
    return {"endpoint": change.endpoint, "operations": change.operations}

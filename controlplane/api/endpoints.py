"""`/projects/{project_id}/endpoints`: the compute endpoints (specification, calls 1 to 4)."""

from typing import Any

from controlplane.api.auth import AuthenticatedRequest
from controlplane.api.requests.endpoints import CreateEndpoint, UpdateEndpoint
from controlplane.api.responses.endpoints import (
    EndpointAndOperations,
    Endpoints,
    OfferedSettings,
    OneEndpoint,
)
from controlplane.api.routing import Router
from controlplane.services import endpoints
from controlplane.services.endpoints import EndpointChange

router = Router(tags=["endpoints"])


@router.post(
    "/projects/{project_id}/endpoints", response={201: EndpointAndOperations}, exclude_none=True
)
def create_project_endpoint(
    request: AuthenticatedRequest, project_id: str, body: CreateEndpoint
) -> tuple[int, dict[str, Any]]:
    """A branch's endpoint, which is then started: at most one for each branch."""
    wanted = body.endpoint
    change = endpoints.create_endpoint(
        request.auth, project_id, branch_id=wanted.branch_id, asked=wanted.asked()
    )
    return 201, _changed(change)


@router.get("/projects/{project_id}/endpoints", response=Endpoints, exclude_none=True)
def list_project_endpoints(request: AuthenticatedRequest, project_id: str) -> dict[str, Any]:
    """All endpoints of the project, the oldest first."""
    return {"endpoints": endpoints.list_endpoints(request.auth, project_id)}


@router.get(
    "/projects/{project_id}/endpoints/{endpoint_id}", response=OneEndpoint, exclude_none=True
)
def get_project_endpoint(
    request: AuthenticatedRequest, project_id: str, endpoint_id: str
) -> dict[str, Any]:
    """The endpoint; `pending_state` is there while an operation leads to another state."""
    return {"endpoint": endpoints.get_endpoint(request.auth, project_id, endpoint_id)}


@router.get(
    "/projects/{project_id}/endpoints/{endpoint_id}/pg_settings",
    response=OfferedSettings,
    exclude_none=True,
)
def list_project_endpoint_pg_settings(
    request: AuthenticatedRequest, project_id: str, endpoint_id: str
) -> dict[str, Any]:
    """What `settings.pg_settings` may hold, by name: what the endpoint's Postgres says of each, and
    the bounds that the endpoint's size sets. Settings of extensions are not listed. Empty while the
    region's worker has not come up yet."""
    return {"pg_settings": endpoints.list_pg_settings(request.auth, project_id, endpoint_id)}


@router.patch(
    "/projects/{project_id}/endpoints/{endpoint_id}",
    response=EndpointAndOperations,
    exclude_none=True,
)
def update_project_endpoint(
    request: AuthenticatedRequest, project_id: str, endpoint_id: str, body: UpdateEndpoint
) -> dict[str, Any]:
    """Changes what is sent and leaves the rest. A `branch_id` of another branch reassigns the
    endpoint to it. Where operations are answered, the change holds once the last has finished; a
    suspended endpoint is suspended again after it."""
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
def delete_project_endpoint(
    request: AuthenticatedRequest, project_id: str, endpoint_id: str
) -> dict[str, Any]:
    """For good. The answer is the endpoint as it was; its connections are dropped."""
    deleted = endpoints.delete_endpoint(request.auth, project_id, endpoint_id)
    return {"endpoint": deleted, "operations": []}


@router.post(
    "/projects/{project_id}/endpoints/{endpoint_id}/start",
    response=EndpointAndOperations,
    exclude_none=True,
)
def start_project_endpoint(
    request: AuthenticatedRequest, project_id: str, endpoint_id: str
) -> dict[str, Any]:
    """Starts the endpoint's compute; without effect on one that runs. Connecting to a suspended one
    starts it too."""
    return _changed(endpoints.start_endpoint(request.auth, project_id, endpoint_id))


@router.post(
    "/projects/{project_id}/endpoints/{endpoint_id}/suspend",
    response=EndpointAndOperations,
    exclude_none=True,
)
def suspend_project_endpoint(
    request: AuthenticatedRequest, project_id: str, endpoint_id: str
) -> dict[str, Any]:
    """Stops the endpoint's compute, until a client connects or it is started. Connections are
    dropped."""
    return _changed(endpoints.suspend_endpoint(request.auth, project_id, endpoint_id))


@router.post(
    "/projects/{project_id}/endpoints/{endpoint_id}/restart",
    response=EndpointAndOperations,
    exclude_none=True,
)
def restart_project_endpoint(
    request: AuthenticatedRequest, project_id: str, endpoint_id: str
) -> dict[str, Any]:
    """Suspends the endpoint's compute and starts it again. Connections are dropped."""
    return _changed(endpoints.restart_endpoint(request.auth, project_id, endpoint_id))


def _changed(change: EndpointChange) -> dict[str, Any]:
    return {"endpoint": change.endpoint, "operations": change.operations}

"""`/projects/{project_id}/endpoints`: the compute endpoints (specification, calls 1 to 4)."""

from typing import Any

from controlplane.api.http.auth import AuthenticatedRequest
from controlplane.api.http.routing import Router
from controlplane.api.requests.endpoints import CreateEndpoint, UpdateEndpoint
from controlplane.api.responses.endpoints import (
    EndpointAndOperations,
    Endpoints,
    OfferedSettings,
    OneEndpoint,
)
from controlplane.services import endpoints
from controlplane.services.endpoints import EndpointChange

router = Router(tags=["endpoints"])


@router.post(
    "/projects/{project_id}/endpoints", response={201: EndpointAndOperations}, exclude_none=True
)
def create_project_endpoint(
    request: AuthenticatedRequest, project_id: str, body: CreateEndpoint
) -> tuple[int, dict[str, Any]]:
    """Creates an endpoint for a branch and starts it. A branch has at most one endpoint."""
    wanted = body.endpoint
    change = endpoints.create_endpoint(
        request.auth, project_id, branch_id=wanted.branch_id, requested=wanted.attributes()
    )
    return 201, _changed(change)


@router.get("/projects/{project_id}/endpoints", response=Endpoints, exclude_none=True)
def list_project_endpoints(request: AuthenticatedRequest, project_id: str) -> dict[str, Any]:
    """Lists all endpoints of the project, oldest first."""
    return {"endpoints": endpoints.list_endpoints(request.auth, project_id)}


@router.get(
    "/projects/{project_id}/endpoints/{endpoint_id}", response=OneEndpoint, exclude_none=True
)
def get_project_endpoint(
    request: AuthenticatedRequest, project_id: str, endpoint_id: str
) -> dict[str, Any]:
    """Returns the endpoint. `pending_state` is present while an operation is changing its state."""
    return {"endpoint": endpoints.get_endpoint(request.auth, project_id, endpoint_id)}


@router.get(
    "/projects/{project_id}/endpoints/{endpoint_id}/pg_settings",
    response=OfferedSettings,
    exclude_none=True,
)
def list_project_endpoint_pg_settings(
    request: AuthenticatedRequest, project_id: str, endpoint_id: str
) -> dict[str, Any]:
    """Lists the settings that `settings.pg_settings` may contain, sorted by name. Each has the
    description from the endpoint's Postgres, and the bounds that follow from the endpoint's size.
    Settings of extensions are not listed. The list is empty until the region's worker has started
    for the first time."""
    return {"pg_settings": endpoints.list_pg_settings(request.auth, project_id, endpoint_id)}


@router.patch(
    "/projects/{project_id}/endpoints/{endpoint_id}",
    response=EndpointAndOperations,
    exclude_none=True,
)
def update_project_endpoint(
    request: AuthenticatedRequest, project_id: str, endpoint_id: str, body: UpdateEndpoint
) -> dict[str, Any]:
    """Changes the fields that are sent. Other fields keep their values. The `branch_id` of another
    branch reassigns the endpoint to that branch. If the response contains operations, the change
    takes effect once the last of them has finished. An endpoint that was suspended before is
    suspended again afterwards."""
    wanted = body.endpoint
    change = endpoints.update_endpoint(
        request.auth,
        project_id,
        endpoint_id,
        branch_id=wanted.branch_id,
        requested=wanted.attributes(),
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
    """Deletes the endpoint permanently and returns it as it was. Its connections are closed."""
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
    """Starts the endpoint's compute. This has no effect if the compute already runs. A client that
    connects to a suspended endpoint starts it too."""
    return _changed(endpoints.start_endpoint(request.auth, project_id, endpoint_id))


@router.post(
    "/projects/{project_id}/endpoints/{endpoint_id}/suspend",
    response=EndpointAndOperations,
    exclude_none=True,
)
def suspend_project_endpoint(
    request: AuthenticatedRequest, project_id: str, endpoint_id: str
) -> dict[str, Any]:
    """Stops the endpoint's compute until a client connects or the endpoint is started. Its
    connections are closed."""
    return _changed(endpoints.suspend_endpoint(request.auth, project_id, endpoint_id))


@router.post(
    "/projects/{project_id}/endpoints/{endpoint_id}/restart",
    response=EndpointAndOperations,
    exclude_none=True,
)
def restart_project_endpoint(
    request: AuthenticatedRequest, project_id: str, endpoint_id: str
) -> dict[str, Any]:
    """Stops the endpoint's compute and starts it again. Its connections are closed."""
    return _changed(endpoints.restart_endpoint(request.auth, project_id, endpoint_id))


def _changed(change: EndpointChange) -> dict[str, Any]:
    return {"endpoint": change.endpoint, "operations": change.operations}

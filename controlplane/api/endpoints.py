"""`/projects/{project_id}/endpoints`: the compute endpoints (specification, calls 1 to 4)."""

from typing import Any

from controlplane.api.http.auth import AuthenticatedRequest
from controlplane.api.http.routing import Router
from controlplane.api.requests.branches import CreateEndpoint, UpdateEndpoint
from controlplane.api.responses.endpoints import (
    EndpointAndOperations,
    Endpoints,
    OfferedSettings,
    OneEndpoint,
)
from controlplane.services import endpoints
from controlplane.services.endpoints import EndpointChange

router = Router(tags=["endpoints"])

ENDPOINTS = "/projects/{project_id}/endpoints"
ENDPOINT = ENDPOINTS + "/{endpoint_id}"


@router.post(ENDPOINTS, response={201: EndpointAndOperations})
def create_project_endpoint(
    request: AuthenticatedRequest, project_id: str, body: CreateEndpoint
) -> tuple[int, dict[str, Any]]:
    """Creates an endpoint for a branch and starts it. A branch has at most one endpoint."""
    wanted = body.endpoint
    change = endpoints.create_endpoint(
        request.auth, project_id, branch_id=wanted.branch_id, requested=wanted.attributes()
    )
    return 201, _changed(change)


@router.get(ENDPOINTS, response=Endpoints)
def list_project_endpoints(request: AuthenticatedRequest, project_id: str) -> dict[str, Any]:
    """Lists all endpoints of the project, oldest first."""
    return {"endpoints": endpoints.list_endpoints(request.auth, project_id)}


@router.get(ENDPOINT, response=OneEndpoint)
def get_project_endpoint(
    request: AuthenticatedRequest, project_id: str, endpoint_id: str
) -> dict[str, Any]:
    """Returns the endpoint. `pending_state` is present while an operation is changing its state."""
    return {"endpoint": endpoints.get_endpoint(request.auth, project_id, endpoint_id)}


@router.get(ENDPOINT + "/pg_settings", response=OfferedSettings)
def list_project_endpoint_pg_settings(
    request: AuthenticatedRequest, project_id: str, endpoint_id: str
) -> dict[str, Any]:
    """Lists the settings that `settings.pg_settings` may contain, sorted by name. Each has the
    description from the endpoint's Postgres, and the bounds that follow from the endpoint's size.
    Settings of extensions are not listed. The list is empty until the region's worker has started
    for the first time."""
    return {"pg_settings": endpoints.list_pg_settings(request.auth, project_id, endpoint_id)}


@router.patch(ENDPOINT, response=EndpointAndOperations)
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


@router.delete(ENDPOINT, response=EndpointAndOperations)
def delete_project_endpoint(
    request: AuthenticatedRequest, project_id: str, endpoint_id: str
) -> dict[str, Any]:
    """Deletes the endpoint permanently and returns it as it was. Its connections are closed."""
    deleted = endpoints.delete_endpoint(request.auth, project_id, endpoint_id)
    return {"endpoint": deleted, "operations": []}


@router.post(ENDPOINT + "/start", response=EndpointAndOperations)
def start_project_endpoint(
    request: AuthenticatedRequest, project_id: str, endpoint_id: str
) -> dict[str, Any]:
    """Starts the endpoint's compute. This has no effect if the compute already runs. A client that
    connects to a suspended endpoint starts it too."""
    return _changed(endpoints.start_endpoint(request.auth, project_id, endpoint_id))


@router.post(ENDPOINT + "/suspend", response=EndpointAndOperations)
def suspend_project_endpoint(
    request: AuthenticatedRequest, project_id: str, endpoint_id: str
) -> dict[str, Any]:
    """Stops the endpoint's compute until a client connects or the endpoint is started. Its
    connections are closed."""
    return _changed(endpoints.suspend_endpoint(request.auth, project_id, endpoint_id))


@router.post(ENDPOINT + "/restart", response=EndpointAndOperations)
def restart_project_endpoint(
    request: AuthenticatedRequest, project_id: str, endpoint_id: str
) -> dict[str, Any]:
    """Stops the endpoint's compute and starts it again. Its connections are closed. If the last
    thing asked of the endpoint is a restart that has not begun, returns that one's operations."""
    return _changed(endpoints.restart_endpoint(request.auth, project_id, endpoint_id))


def _changed(change: EndpointChange) -> dict[str, Any]:
    return {"endpoint": change.endpoint, "operations": change.operations}

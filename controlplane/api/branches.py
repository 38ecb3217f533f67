"""`/projects/{project_id}/branches`."""

from typing import Any

from ninja import Body, Router

from controlplane.api.auth import AuthenticatedRequest
from controlplane.api.projects import connection_details
from controlplane.api.requests import CreateBranch, NewBranch, UpdateBranch
from controlplane.api.responses import (
    BranchAndOperations,
    Branches,
    CreatedBranch,
    Endpoints,
    OneBranch,
)
from controlplane.models import Branch, Database, Endpoint, Role
from controlplane.services import branches, endpoints
from controlplane.services.connections import connection_to
from controlplane.services.errors import Unprocessable
from controlplane.services.passwords import decrypt

router = Router(tags=["branches"])


@router.get("/projects/{project_id}/branches", response=Branches, exclude_none=True)
def list_branches(
    request: AuthenticatedRequest, project_id: str, search: str = ""
) -> dict[str, Any]:
    return {"branches": branches.list_branches(request.auth, project_id, search=search)}


@router.post("/projects/{project_id}/branches", response={201: CreatedBranch}, exclude_none=True)
def create_branch(
    request: AuthenticatedRequest, project_id: str, body: Body[CreateBranch | None] = None
) -> tuple[int, dict[str, Any]]:
    wanted = (body and body.branch) or NewBranch()
    if wanted.parent_lsn or wanted.parent_timestamp:
        raise Unprocessable("branching from a point in the past is not available here")
    created = branches.create_branch(
        request.auth,
        project_id,
        name=wanted.name,
        parent_id=wanted.parent_id,
        protected=wanted.protected,
        endpoints=[one.given() for one in (body and body.endpoints) or []],
    )
    roles = list(Role.objects.filter(branch=created.branch, deleted_at=None))
    databases = list(Database.objects.filter(branch=created.branch, deleted_at=None))
    answer: dict[str, Any] = {
        "branch": created.branch,
        "endpoints": created.endpoints,
        "operations": created.operations,
        "roles": roles,
        "databases": databases,
    }
    if uris := _connection_uris(created.endpoints, roles, databases):
        answer["connection_uris"] = uris
    return 201, answer


@router.get("/projects/{project_id}/branches/{branch_id}", response=OneBranch, exclude_none=True)
def get_branch(request: AuthenticatedRequest, project_id: str, branch_id: str) -> dict[str, Any]:
    return {"branch": branches.get_branch(request.auth, project_id, branch_id)}


@router.patch(
    "/projects/{project_id}/branches/{branch_id}", response=BranchAndOperations, exclude_none=True
)
def update_branch(
    request: AuthenticatedRequest, project_id: str, branch_id: str, body: UpdateBranch
) -> dict[str, Any]:
    branch = branches.update_branch(request.auth, project_id, branch_id, body.branch.given())
    return _unattended(branch)


@router.delete(
    "/projects/{project_id}/branches/{branch_id}", response=BranchAndOperations, exclude_none=True
)
def delete_branch(request: AuthenticatedRequest, project_id: str, branch_id: str) -> dict[str, Any]:
    branch, operations = branches.delete_branch(request.auth, project_id, branch_id)
    return {"branch": branch, "operations": operations}


@router.post(
    "/projects/{project_id}/branches/{branch_id}/set_as_default",
    response=BranchAndOperations,
    exclude_none=True,
)
def set_as_default(
    request: AuthenticatedRequest, project_id: str, branch_id: str
) -> dict[str, Any]:
    return _unattended(branches.set_default_branch(request.auth, project_id, branch_id))


@router.post(
    "/projects/{project_id}/branches/{branch_id}/set_as_primary",
    response=BranchAndOperations,
    exclude_none=True,
)
def set_as_primary(
    request: AuthenticatedRequest, project_id: str, branch_id: str
) -> dict[str, Any]:
    """The older name of set_as_default."""
    return set_as_default(request, project_id, branch_id)


@router.get(
    "/projects/{project_id}/branches/{branch_id}/endpoints", response=Endpoints, exclude_none=True
)
def list_branch_endpoints(
    request: AuthenticatedRequest, project_id: str, branch_id: str
) -> dict[str, Any]:
    found = endpoints.list_endpoints(request.auth, project_id, branch_id=branch_id)
    return {"endpoints": list(found)}


def _unattended(branch: Branch) -> dict[str, Any]:
    """The answer to a change that takes no time."""
    return {"branch": branch, "operations": []}


def _connection_uris(
    created: list[Endpoint], roles: list[Role], databases: list[Database]
) -> list[dict[str, Any]]:
    """Only where there is no question which role and database are meant."""
    if not (len(created) == len(roles) == len(databases) == 1 and roles[0].encrypted_password):
        return []
    password = decrypt(roles[0].encrypted_password)
    return [
        connection_details(connection_to(created[0], roles[0], databases[0], password=password))
    ]

"""`/projects/{project_id}/branches`."""

from typing import Any

from ninja import Body, Query, Router

from controlplane.api.auth import AuthenticatedRequest
from controlplane.api.fields import Text
from controlplane.api.pagination import BranchesQuery
from controlplane.api.projects import connection_details
from controlplane.api.requests.branches import CreateBranch, UpdateBranch
from controlplane.api.responses.branches import (
    AnnotatedBranch,
    Annotation,
    BranchAndOperations,
    BranchCount,
    Branches,
    CreatedBranch,
    annotations_of,
)
from controlplane.api.responses.endpoints import Endpoints
from controlplane.models import Branch
from controlplane.services import branch_pages, branches, connections, endpoints

router = Router(tags=["branches"])


@router.get(
    "/projects/{project_id}/branches",
    response=Branches,
    exclude_none=True,
    summary="List a project's branches",
    description="A page, sorted. `pagination.next` is the `cursor` of the next one; without it "
    "there is none.",
)
def list_branches(
    request: AuthenticatedRequest, project_id: str, query: Query[BranchesQuery]
) -> dict[str, Any]:
    page = branch_pages.list_branches(request.auth, project_id, query.asked())
    return {
        "branches": page.branches,
        "annotations": annotations_of(page.branches),
        "pagination": {
            "next": page.next,
            "sort_by": page.sort_by,
            "sort_order": page.sort_order.upper(),
        },
    }


@router.get(
    "/projects/{project_id}/branches/count",
    response=BranchCount,
    summary="Count a project's branches",
)
def count_branches(
    request: AuthenticatedRequest, project_id: str, search: Text = ""
) -> dict[str, Any]:
    return {"count": branch_pages.count_branches(request.auth, project_id, search=search)}


@router.post("/projects/{project_id}/branches", response={201: CreatedBranch}, exclude_none=True)
def create_branch(
    request: AuthenticatedRequest, project_id: str, body: Body[CreateBranch | None] = None
) -> tuple[int, dict[str, Any]]:
    created = branches.create_branch(request.auth, project_id, (body or CreateBranch()).spec())
    answer: dict[str, Any] = {
        "branch": created.branch,
        "endpoints": created.endpoints,
        "operations": created.operations,
        "roles": created.roles,
        "databases": created.databases,
    }
    if connection := connections.connection_to_new(created):
        answer["connection_uris"] = [connection_details(connection)]
    return 201, answer


@router.get(
    "/projects/{project_id}/branches/{branch_id}", response=AnnotatedBranch, exclude_none=True
)
def get_branch(request: AuthenticatedRequest, project_id: str, branch_id: str) -> dict[str, Any]:
    branch = branches.get_branch(request.auth, project_id, branch_id)
    return {"branch": branch, "annotation": Annotation.of(branch)}


@router.patch(
    "/projects/{project_id}/branches/{branch_id}", response=BranchAndOperations, exclude_none=True
)
def update_branch(
    request: AuthenticatedRequest, project_id: str, branch_id: str, body: UpdateBranch
) -> dict[str, Any]:
    changes = body.branch.changes()
    return _unattended(branches.update_branch(request.auth, project_id, branch_id, changes))


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
    return {"endpoints": found}


def _unattended(branch: Branch) -> dict[str, Any]:
    """The answer to a change that takes no time."""
    return {"branch": branch, "operations": []}

"""What clients look for before they go on, and this server never has any of: lists that are empty,
once the caller's project or branch was found.

A branch's `credentials` are not among them: where that list answers, `neonctl env pull` goes on to
make one, and where it is not offered, does without.
"""

from typing import Any

from ninja import Schema

from controlplane.api.auth import AuthenticatedRequest
from controlplane.api.routing import Router
from controlplane.services.branches import find_branch
from controlplane.services.projects import find_project

router = Router(tags=["projects"])
BRANCH = "/projects/{project_id}/branches/{branch_id}"


class Nothing(Schema):
    """Of which there is never one."""


class Permissions(Schema):
    project_permissions: list[Nothing]


class Functions(Schema):
    functions: list[Nothing]


class Buckets(Schema):
    buckets: list[Nothing]


@router.get(
    "/projects/{project_id}/permissions",
    response=Permissions,
    summary="List whom the project is shared with",
)
def list_project_permissions(request: AuthenticatedRequest, project_id: str) -> dict[str, Any]:
    """Nobody: an API key that is limited to the project is how another gets at it."""
    find_project(request.auth, project_id)
    return {"project_permissions": []}


@router.get(f"{BRANCH}/functions", response=Functions, summary="List the branch's functions")
def list_project_branch_functions(
    request: AuthenticatedRequest, project_id: str, branch_id: str
) -> dict[str, Any]:
    """There are none: this server runs none."""
    find_branch(find_project(request.auth, project_id), branch_id)
    return {"functions": []}


@router.get(f"{BRANCH}/buckets", response=Buckets, summary="List the branch's buckets")
def list_project_branch_buckets(
    request: AuthenticatedRequest, project_id: str, branch_id: str
) -> dict[str, Any]:
    """There are none: this server stores no objects."""
    find_branch(find_project(request.auth, project_id), branch_id)
    return {"buckets": []}

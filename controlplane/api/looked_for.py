"""Lists that clients request before they go on, and that are always empty on this server. The
project or branch must exist.

A branch's `credentials` are deliberately not among them. If that list answered, `neonctl env pull`
would try to create a credential; as the list is not offered, it continues without one.
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
    """A resource that this server never has."""


class Permissions(Schema):
    project_permissions: list[Nothing]


class Functions(Schema):
    functions: list[Nothing]


class Buckets(Schema):
    buckets: list[Nothing]


@router.get(
    "/projects/{project_id}/permissions",
    response=Permissions,
    summary="List the accounts that the project is shared with",
)
def list_project_permissions(request: AuthenticatedRequest, project_id: str) -> dict[str, Any]:
    """Always empty: projects cannot be shared. To give somebody else access to a project, create
    an API key that is limited to it."""
    find_project(request.auth, project_id)
    return {"project_permissions": []}


@router.get(f"{BRANCH}/functions", response=Functions, summary="List the branch's functions")
def list_project_branch_functions(
    request: AuthenticatedRequest, project_id: str, branch_id: str
) -> dict[str, Any]:
    """Always empty: this server runs no functions."""
    find_branch(find_project(request.auth, project_id), branch_id)
    return {"functions": []}


@router.get(f"{BRANCH}/buckets", response=Buckets, summary="List the branch's buckets")
def list_project_branch_buckets(
    request: AuthenticatedRequest, project_id: str, branch_id: str
) -> dict[str, Any]:
    """Always empty: this server stores no objects."""
    find_branch(find_project(request.auth, project_id), branch_id)
    return {"buckets": []}

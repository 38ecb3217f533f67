"""Lists of Neon's API that are always empty on this server: clients request some of them before
they go on. The project, branch or organization must exist.

A branch's `credentials` are deliberately not among them. If that list answered, `neonctl env pull`
would try to create a credential; as the list is not offered, it continues without one.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

from ninja import Field, Query, Schema
from pydantic import create_model

from controlplane.api.auth import AuthenticatedRequest
from controlplane.api.pagination import PageQuery
from controlplane.api.routing import Router
from controlplane.services import regions
from controlplane.services.branches import find_branch
from controlplane.services.errors import NotFound
from controlplane.services.organizations import check_organization
from controlplane.services.projects import find_project

router = Router()


class Nothing(Schema):
    """A resource that this server never has."""


def _project(request: AuthenticatedRequest, project_id: str) -> None:
    find_project(request.auth, project_id)


def _branch(request: AuthenticatedRequest, project_id: str, branch_id: str) -> None:
    find_branch(find_project(request.auth, project_id), branch_id)


def _paged(
    request: AuthenticatedRequest, project_id: str, branch_id: str, query: Query[PageQuery]
) -> None:
    _branch(request, project_id, branch_id)


def _organization(request: AuthenticatedRequest, org_id: str) -> None:
    check_organization(request.auth, org_id)


def _region(request: AuthenticatedRequest, org_id: str, region_id: str) -> None:
    check_organization(request.auth, org_id)
    if region_id not in [region.id for region in regions.list_regions()]:
        raise NotFound("region not found", fields=["region_id"])


# What checks the ids, the rest of the path, the list's field, the call's id, and the reason.
EMPTY = (
    (_project, "permissions", "project_permissions", "listProjectPermissions",
     "projects cannot be shared. To give somebody else access to a project, create an API key that "
     "is limited to it."),
    (_project, "available_preload_libraries", "libraries", "getAvailablePreloadLibraries",
     "callers cannot choose libraries. Every endpoint loads pg_stat_statements where its Postgres "
     "has it."),
    (_project, "jwks", "jwks", "getProjectJWKS", "clients sign in with the password of a role."),
    (_project, "vpc_endpoints", "endpoints", "listProjectVPCEndpoints",
     "this server has no VPC endpoints."),
    (_paged, "functions", "functions", "listProjectBranchFunctions",
     "this server runs no functions."),
    (_branch, "triggers", "triggers", "listProjectBranchTriggers",
     "this server runs no functions, which triggers would call."),
    (_paged, "custom-domains", "custom_domains", "listProjectBranchCustomDomains",
     "this server runs no functions, which custom domains would lead to."),
    (_branch, "buckets", "buckets", "listProjectBranchBuckets",
     "this server stores no objects."),
    (_organization, "invitations", "invitations", "getOrganizationInvitations",
     "the account is its organization's only member."),
    (_organization, "vpc/vpc_endpoints", "endpoints", "listOrganizationVPCEndpointsAllRegions",
     "this server has no VPC endpoints."),
    (_region, "vpc_endpoints", "endpoints", "listOrganizationVPCEndpoints",
     "this server has no VPC endpoints."),
)  # fmt: skip
PLACES = {
    _project: ("/projects/{project_id}", "projects"),
    _branch: ("/projects/{project_id}/branches/{branch_id}", "branches"),
    _paged: ("/projects/{project_id}/branches/{branch_id}", "branches"),
    _organization: ("/organizations/{org_id}", "organizations"),
    _region: ("/organizations/{org_id}/vpc/region/{region_id}", "organizations"),
}


def _add(check: Callable[..., None], rest: str, field: str, call: str, reason: str) -> None:
    @wraps(check)
    def empty(request: AuthenticatedRequest, **parameters: Any) -> dict[str, Any]:
        check(request, **parameters)
        return {field: []}

    place, tag = PLACES[check]
    listed: Any = (list[Nothing], Field(description="Always empty"))
    router.get(
        f"{place}/{rest}",
        response=create_model(f"{call[0].upper()}{call[1:]}", __base__=Schema, **{field: listed}),
        operation_id=call,
        summary=f"List {rest.split('/')[-1].replace('_', ' ')}",
        description=f"Always empty: {reason}",
        tags=[tag],
    )(empty)


for _one in EMPTY:
    _add(*_one)

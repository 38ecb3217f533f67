"""Lists of Neon's API that are always empty on this server: clients request some of them before
they go on. The project, branch, organization or region must exist.

A branch's `credentials` are deliberately not among them. If that list answered, `neonctl env pull`
would try to create a credential; as the list is not offered, it continues without one.
"""

import re
from inspect import Parameter, Signature
from typing import Any

from ninja import Field, Query, Schema
from pydantic import create_model

from controlplane.api.http.auth import AuthenticatedRequest
from controlplane.api.http.pagination import PageQuery
from controlplane.api.http.routing import Router
from controlplane.services import hosts
from controlplane.services.branches import find_branch
from controlplane.services.errors import NotFound
from controlplane.services.projects import check_organization, find_project

router = Router()
PROJECT, ORGANIZATION = "/projects/{project_id}", "/organizations/{org_id}"
BRANCH = f"{PROJECT}/branches/{{branch_id}}"
SHARING = (
    "projects cannot be shared. To give somebody else access to a project, create an API key that "
    "is limited to it."
)
LIBRARIES = "callers choose none. Endpoints load pg_stat_statements if their Postgres has it."
FUNCTIONS, VPC = "this server runs no functions.", "this server has no VPC endpoints."
# Path, the list's field, the call's id, and the reason.
EMPTY = f"""
{PROJECT}/permissions|project_permissions|listProjectPermissions|{SHARING}
{PROJECT}/available_preload_libraries|libraries|getAvailablePreloadLibraries|{LIBRARIES}
{PROJECT}/jwks|jwks|getProjectJWKS|clients sign in with the passwords of roles.
{PROJECT}/vpc_endpoints|endpoints|listProjectVPCEndpoints|{VPC}
{BRANCH}/functions|functions|listProjectBranchFunctions|{FUNCTIONS}
{BRANCH}/triggers|triggers|listProjectBranchTriggers|{FUNCTIONS}
{BRANCH}/custom-domains|custom_domains|listProjectBranchCustomDomains|{FUNCTIONS}
{BRANCH}/buckets|buckets|listProjectBranchBuckets|this server stores no objects.
{ORGANIZATION}/invitations|invitations|getOrganizationInvitations|the account is the only member.
{ORGANIZATION}/vpc/vpc_endpoints|endpoints|listOrganizationVPCEndpointsAllRegions|{VPC}
{ORGANIZATION}/vpc/region/{{region_id}}/vpc_endpoints|endpoints|listOrganizationVPCEndpoints|{VPC}
"""


class Nothing(Schema):
    """A resource that this server never has."""


def _check(request: AuthenticatedRequest, ids: dict[str, str]) -> None:
    if "org_id" in ids:
        check_organization(request.auth, ids["org_id"])
        if ids.get("region_id") not in (None, *(one.id for one in hosts.list_regions())):
            raise NotFound("region not found", fields=["region_id"])
        return
    project = find_project(request.auth, ids["project_id"])
    if "branch_id" in ids:
        find_branch(project, ids["branch_id"])


def _add(path: str, field: str, call: str, reason: str) -> None:
    def empty(request: AuthenticatedRequest, query: PageQuery, **ids: str) -> dict[str, Any]:
        _check(request, ids)
        return {field: []}

    # ninja reads the parameters of the path from the signature.
    types = {"request": AuthenticatedRequest, "query": Query[PageQuery]}
    types |= dict.fromkeys(re.findall(r"\{(\w+)\}", path), str)
    empty.__signature__ = Signature(  # type: ignore[attr-defined] # what `inspect` looks for
        [Parameter(name, Parameter.KEYWORD_ONLY, annotation=kind) for name, kind in types.items()]
    )
    listed: Any = (list[Nothing], Field(description="Always empty"))
    router.get(
        path,
        response=create_model(f"{call[0].upper()}{call[1:]}", __base__=Schema, **{field: listed}),
        operation_id=call,
        summary=f"List {field.replace('_', ' ')}",
        description=f"Always empty: {reason}",
        tags=[path.split("/")[1] if "branch_id" not in path else "branches"],
    )(empty)


for _line in EMPTY.strip().splitlines():
    _add(*_line.split("|"))

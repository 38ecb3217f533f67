"""`/organizations`. Each account has exactly one organization, which stands for the account."""

from typing import Any

from ninja import Query

from controlplane.api import api_keys
from controlplane.api.api_keys import ApiKeyOut, CreatedApiKey, RevokedApiKey
from controlplane.api.http.auth import AuthenticatedRequest
from controlplane.api.http.pagination import MembersQuery
from controlplane.api.http.routing import Router
from controlplane.api.requests.api_keys import CreateApiKey
from controlplane.api.responses.organizations import (
    Member,
    Members,
    OrganizationOut,
    Organizations,
    members_of,
)
from controlplane.models import Account, ApiKey
from controlplane.services.errors import NotFound
from controlplane.services.projects import check_organization

router = Router(tags=["organizations"])


@router.get(
    "/users/me/organizations", response=Organizations, summary="List the caller's organizations"
)
def get_current_user_organizations(request: AuthenticatedRequest) -> dict[str, Any]:
    """Returns exactly one organization, which owns everything that the account has."""
    return {"organizations": [request.auth]}


@router.get("/organizations/{org_id}", response=OrganizationOut, summary="Get an organization")
def get_organization(request: AuthenticatedRequest, org_id: str) -> Account:
    """Returns the organization of the caller's account. The organization of another account is
    answered with 404."""
    check_organization(request.auth, org_id)
    return request.auth


@router.get("/organizations/{org_id}/members", response=Members, summary="List its members")
def get_organization_members(
    request: AuthenticatedRequest, org_id: str, query: Query[MembersQuery]
) -> dict[str, Any]:
    """Returns the account itself, which is the only member. So a `cursor` leads to no other."""
    check_organization(request.auth, org_id)
    return {"members": [] if query.cursor else members_of(request.auth)}


@router.get("/organizations/{org_id}/members/{member_id}", response=Member, summary="Get a member")
def get_organization_member(
    request: AuthenticatedRequest, org_id: str, member_id: str
) -> dict[str, Any]:
    """Returns the account itself, which is the only member."""
    check_organization(request.auth, org_id)
    (only,) = members_of(request.auth)
    if only["member"]["id"] != member_id:
        raise NotFound("member not found", fields=["member_id"])
    return dict(only["member"])


@router.get(
    "/organizations/{org_id}/api_keys", response=list[ApiKeyOut], summary="List its API keys"
)
def list_org_api_keys(request: AuthenticatedRequest, org_id: str) -> list[ApiKey]:
    """Returns the same list as `GET /api_keys`: the account's keys belong to its organization."""
    check_organization(request.auth, org_id)
    return api_keys.list_api_keys(request)


@router.post(
    "/organizations/{org_id}/api_keys", response=CreatedApiKey, summary="Create one of its API keys"
)
def create_org_api_key(
    request: AuthenticatedRequest, org_id: str, body: CreateApiKey
) -> dict[str, Any]:
    """Creates an API key in the same way as `POST /api_keys`."""
    check_organization(request.auth, org_id)
    return api_keys.create_api_key(request, body)


@router.delete(
    "/organizations/{org_id}/api_keys/{key_id}",
    response=RevokedApiKey,
    summary="Revoke one of its API keys",
)
def revoke_org_api_key(request: AuthenticatedRequest, org_id: str, key_id: int) -> ApiKey:
    """Revokes an API key in the same way as `DELETE /api_keys/{key_id}`."""
    check_organization(request.auth, org_id)
    return api_keys.revoke_api_key(request, key_id)

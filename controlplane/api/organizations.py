"""`/organizations`: the one of the caller's account, which is the account by another name."""

from typing import Any

from controlplane.api import api_keys
from controlplane.api.api_keys import ApiKeyOut, CreatedApiKey, RevokedApiKey
from controlplane.api.auth import AuthenticatedRequest
from controlplane.api.requests.api_keys import CreateApiKey
from controlplane.api.responses.organizations import (
    Members,
    OrganizationOut,
    Organizations,
    members_of,
)
from controlplane.api.routing import Router
from controlplane.models import Account, ApiKey
from controlplane.services.organizations import check_organization

router = Router(tags=["organizations"])


@router.get(
    "/users/me/organizations", response=Organizations, summary="List the caller's organizations"
)
def get_current_user_organizations(request: AuthenticatedRequest) -> dict[str, Any]:
    """Exactly one, which owns all that the account has."""
    return {"organizations": [request.auth]}


@router.get("/organizations/{org_id}", response=OrganizationOut, summary="Get an organization")
def get_organization(request: AuthenticatedRequest, org_id: str) -> Account:
    """The account by another name; another's is not found."""
    check_organization(request.auth, org_id)
    return request.auth


@router.get("/organizations/{org_id}/members", response=Members, summary="List its members")
def get_organization_members(request: AuthenticatedRequest, org_id: str) -> dict[str, Any]:
    """The account itself, and nobody else."""
    check_organization(request.auth, org_id)
    return {"members": members_of(request.auth)}


@router.get(
    "/organizations/{org_id}/api_keys", response=list[ApiKeyOut], summary="List its API keys"
)
def list_org_api_keys(request: AuthenticatedRequest, org_id: str) -> list[ApiKey]:
    """The same as `/api_keys`: the account's keys are its organization's."""
    check_organization(request.auth, org_id)
    return api_keys.list_api_keys(request)


@router.post(
    "/organizations/{org_id}/api_keys", response=CreatedApiKey, summary="Create one of its API keys"
)
def create_org_api_key(
    request: AuthenticatedRequest, org_id: str, body: CreateApiKey
) -> dict[str, Any]:
    """As `/api_keys` does."""
    check_organization(request.auth, org_id)
    return api_keys.create_api_key(request, body)


@router.delete(
    "/organizations/{org_id}/api_keys/{key_id}",
    response=RevokedApiKey,
    summary="Revoke one of its API keys",
)
def revoke_org_api_key(request: AuthenticatedRequest, org_id: str, key_id: int) -> ApiKey:
    """As `/api_keys/{key_id}` does."""
    check_organization(request.auth, org_id)
    return api_keys.revoke_api_key(request, key_id)

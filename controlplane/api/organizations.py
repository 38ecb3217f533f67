"""The caller's account: `/users/me`, `/auth` and `/regions`, which clients request first, and
`/organizations`. Each account has exactly one organization, which stands for the account."""

from typing import Any

from ninja import Query

from controlplane import clock
from controlplane.api import accounts
from controlplane.api.accounts import ApiKeyOut, CreatedApiKey, RevokedApiKey
from controlplane.api.http.auth import AuthenticatedRequest
from controlplane.api.http.pagination import MembersQuery, RegionsQuery
from controlplane.api.http.routing import Router
from controlplane.api.requests.accounts import CreateApiKey
from controlplane.api.responses.organizations import (
    AuthDetails,
    CurrentUser,
    Member,
    Members,
    OrganizationOut,
    Organizations,
    Regions,
    email_of,
    members_of,
)
from controlplane.api.responses.shared import UNLIMITED, as_limit, subscription_type
from controlplane.models import Account, ApiKey
from controlplane.models.consumed import period_of
from controlplane.services import hosts
from controlplane.services.errors import NotFound
from controlplane.services.projects import check_organization
from controlplane.services.rules.placement import default_pg_version, pg_versions

users = Router(tags=["users"])


@users.get("/users/me", response=CurrentUser)
def get_current_user_info(request: AuthenticatedRequest) -> dict[str, Any]:
    """Returns the account that the API key belongs to. Perch bills nothing; the billing fields are
    present because clients require them."""
    account = request.auth
    return {
        "id": str(account.id),
        "login": account.name,
        "name": account.name,
        "email": email_of(account),
        "plan": account.plan,
        "active_seconds_limit": UNLIMITED,
        "compute_seconds_limit": UNLIMITED,
        "projects_limit": as_limit(account.limits.projects),
        "branches_limit": as_limit(account.limits.branches_of_project),
        "max_autoscaling_limit": account.largest_compute,
        "billing_account": {
            "name": account.name,
            "email": email_of(account),
            "subscription_type": subscription_type(account),
            "quota_reset_at_last": period_of(clock.now()),
        },
    }


@users.get("/auth", response=AuthDetails)
def get_auth_details(request: AuthenticatedRequest) -> dict[str, Any]:
    """Returns the account that the API key belongs to, the key's id and what it is limited to."""
    account, key = request.auth, request.api_key
    return {
        "account_id": str(account.id),
        "auth_method": "api_key_user",
        "auth_data": account.name,
        "operator": account.is_operator,
        "api_key_id": key.id,
        "project_id": key.project_id,
        "read_only": key.read_only,
        "expires_at": key.expires_at,
    }


@users.get("/regions", response=Regions)
def get_active_regions(request: AuthenticatedRequest, query: Query[RegionsQuery]) -> dict[str, Any]:
    """Lists the regions in which projects can be created. Their geographic position is not known,
    so `geo_lat` and `geo_long` are empty."""
    check_organization(request.auth, query.org_id)
    found = hosts.list_regions()
    return {
        "regions": [
            {
                "region_id": region.id,
                "name": region.name,
                "default": region.default,
                "geo_lat": "",
                "geo_long": "",
                "pg_version": default_pg_version(region),
                "pg_versions": pg_versions(region),
            }
            for region in found
        ]
    }


router = Router(tags=["organizations"])

ORGANIZATION = "/organizations/{org_id}"


@router.get(
    "/users/me/organizations", response=Organizations, summary="List the caller's organizations"
)
def get_current_user_organizations(request: AuthenticatedRequest) -> dict[str, Any]:
    """Returns exactly one organization, which owns everything that the account has."""
    return {"organizations": [request.auth]}


@router.get(ORGANIZATION, response=OrganizationOut, summary="Get an organization")
def get_organization(request: AuthenticatedRequest, org_id: str) -> Account:
    """Returns the organization of the caller's account. The organization of another account is
    answered with 404."""
    check_organization(request.auth, org_id)
    return request.auth


@router.get(ORGANIZATION + "/members", response=Members, summary="List its members")
def get_organization_members(
    request: AuthenticatedRequest, org_id: str, query: Query[MembersQuery]
) -> dict[str, Any]:
    """Returns the account itself, which is the only member. So a `cursor` leads to no other."""
    check_organization(request.auth, org_id)
    return {"members": [] if query.cursor else members_of(request.auth)}


@router.get(ORGANIZATION + "/members/{member_id}", response=Member, summary="Get a member")
def get_organization_member(
    request: AuthenticatedRequest, org_id: str, member_id: str
) -> dict[str, Any]:
    """Returns the account itself, which is the only member."""
    check_organization(request.auth, org_id)
    (only,) = members_of(request.auth)
    if only["member"]["id"] != member_id:
        raise NotFound("member not found", fields=["member_id"])
    return dict(only["member"])


@router.get(ORGANIZATION + "/api_keys", response=list[ApiKeyOut], summary="List its API keys")
def list_org_api_keys(request: AuthenticatedRequest, org_id: str) -> list[ApiKey]:
    """Returns the same list as `GET /api_keys`: the account's keys belong to its organization."""
    check_organization(request.auth, org_id)
    return accounts.list_api_keys(request)


@router.post(
    ORGANIZATION + "/api_keys", response=CreatedApiKey, summary="Create one of its API keys"
)
def create_org_api_key(
    request: AuthenticatedRequest, org_id: str, body: CreateApiKey
) -> dict[str, Any]:
    """Creates an API key in the same way as `POST /api_keys`."""
    check_organization(request.auth, org_id)
    return accounts.create_api_key(request, body)


@router.delete(
    ORGANIZATION + "/api_keys/{key_id}",
    response=RevokedApiKey,
    summary="Revoke one of its API keys",
)
def revoke_org_api_key(request: AuthenticatedRequest, org_id: str, key_id: int) -> ApiKey:
    """Revokes an API key in the same way as `DELETE /api_keys/{key_id}`."""
    check_organization(request.auth, org_id)
    return accounts.revoke_api_key(request, key_id)

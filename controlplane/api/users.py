"""The caller's account, its key and the regions: `/users/me`, `/auth` and `/regions`. Clients
request these first."""

from typing import Any

from ninja import Query

from controlplane import clock
from controlplane.api.http.auth import AuthenticatedRequest
from controlplane.api.http.pagination import RegionsQuery
from controlplane.api.http.routing import Router
from controlplane.api.responses.organizations import AuthDetails, CurrentUser, Regions, email_of
from controlplane.api.responses.shared import UNLIMITED, as_limit, subscription_type
from controlplane.models.consumed import period_of
from controlplane.services import hosts
from controlplane.services.projects import check_organization
from controlplane.services.rules.placement import default_pg_version, pg_versions

router = Router(tags=["users"])


@router.get("/users/me", response=CurrentUser)
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


@router.get("/auth", response=AuthDetails)
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


@router.get("/regions", response=Regions)
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

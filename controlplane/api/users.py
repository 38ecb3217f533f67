"""Who is calling, and where: `/users/me`, `/regions` and what else clients ask first."""

from datetime import UTC, datetime
from typing import Any

from ninja import Router

from controlplane.api.auth import AuthenticatedRequest
from controlplane.api.responses.shared import UNLIMITED, as_limit, subscription_type
from controlplane.services import regions

router = Router(tags=["users"])


@router.get("/users/me")
def get_current_user(request: AuthenticatedRequest) -> dict[str, Any]:
    """Billing does not exist here; clients want its fields all the same."""
    account = request.auth
    address = ("city", "country", "line1", "line2", "postal_code", "state")
    return {
        "id": str(account.id),
        "login": account.name,
        "name": account.name,
        "last_name": "",
        "email": account.name,
        "image": "",
        "plan": account.plan,
        "active_seconds_limit": UNLIMITED,
        "compute_seconds_limit": UNLIMITED,
        "projects_limit": as_limit(account.limits.projects),
        "branches_limit": as_limit(account.limits.branches_of_project),
        "max_autoscaling_limit": account.largest_compute,
        "auth_accounts": [],
        "billing_account": {
            **{f"address_{part}": "" for part in address},
            "state": "active",
            "name": account.name,
            "email": account.name,
            "payment_source": {"type": ""},
            "payment_method": "none",
            "subscription_type": subscription_type(account),
            "quota_reset_at_last": _beginning_of_month(),
        },
    }


@router.get("/users/me/organizations")
def list_organizations(request: AuthenticatedRequest) -> dict[str, Any]:
    return {"organizations": []}


@router.get("/auth")
def get_auth_details(request: AuthenticatedRequest) -> dict[str, Any]:
    account = request.auth
    return {"account_id": str(account.id), "auth_method": "api_key_user", "auth_data": account.name}


@router.get("/regions")
def list_regions(request: AuthenticatedRequest) -> dict[str, Any]:
    return {
        "regions": [
            {
                "region_id": region.id,
                "name": region.name,
                "default": region.default,
                "geo_lat": "",
                "geo_long": "",
            }
            for region in regions.list_regions()
        ]
    }


def _beginning_of_month() -> str:
    return datetime.now(UTC).strftime("%Y-%m-01T00:00:00Z")

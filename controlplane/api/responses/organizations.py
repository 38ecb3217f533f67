"""The response fields of accounts, their API keys, organizations and regions."""

import re
import uuid
from typing import Any

from ninja import Field, Schema
from pydantic import SerializerFunctionWrapHandler, model_serializer

from controlplane.api.http.fields import Timestamp, found_at, told
from controlplane.models import Account


class KeyLimits(Schema):
    """What an API key is limited to. Limits that the key does not have are left out, because
    neonctl treats a `project_id` of null as a key that reaches nothing."""

    project_id: str | None = None
    read_only: bool
    expires_at: Timestamp | None = None

    @model_serializer(mode="wrap")
    # It has no return annotation: with one, the OpenAPI document would show the annotated type
    # instead of the model's fields.
    def without_absent(self, serialized: SerializerFunctionWrapHandler):  # type: ignore[no-untyped-def]
        limits = KeyLimits.model_fields
        fields = serialized(self).items()
        return {name: value for name, value in fields if value is not None or name not in limits}


TIME = "2026-01-31T12:00:00Z"


class AccountOut(Schema):
    id: int = told("The account's number", 7)
    name: str = told("The account's name", "acme")
    plan: str = told("The plan, which sets its limits", "standard")
    projects: int = told("The number of its projects", 3)
    created_at: Timestamp = told("When it was created", TIME)
    operator: bool = told("Whether it operates the service", False)
    disabled_at: Timestamp | None = told("Since when its keys and connections are refused", None)
    deleted_at: Timestamp | None = told("When it was deleted", None)
    recoverable_until: Timestamp | None = told("Until when it can be recovered", None)

    resolve_projects = found_at("living")
    resolve_operator = found_at("is_operator")


class OneAccount(Schema):
    account: AccountOut


class Accounts(Schema):
    accounts: list[AccountOut]


# The namespace of members' UUIDs, so that an account always has the same member id.
MEMBERS = uuid.UUID("6d0f5a0a-95a5-4f0b-8f5c-3a1f43f8c7be")
# The domain of generated e-mail addresses. Clients accept it; nothing is ever sent there.
MAIL_HOST = "localhost.localdomain"
ADDRESS = re.compile(r"[A-Za-z0-9._%+-]+@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+")


class OrganizationOut(Schema):
    """The organization of an account. Each account has exactly one, which owns the account's
    projects and API keys."""

    id: str
    name: str
    handle: str
    plan: str
    created_at: Timestamp
    updated_at: Timestamp
    managed_by: str = "console"

    resolve_id = found_at("organization_id")

    @staticmethod
    def resolve_handle(account: Account) -> str:
        return slug_of(account)

    resolve_updated_at = found_at("created_at")


class Organizations(Schema):
    organizations: list[OrganizationOut]


class Member(Schema):
    id: str
    user_id: str
    org_id: str
    role: str
    joined_at: Timestamp


class MemberUser(Schema):
    email: str


class MemberAndUser(Schema):
    member: Member
    user: MemberUser


class Members(Schema):
    members: list[MemberAndUser]


class PaymentSource(Schema):
    type: str = ""


class BillingAccount(Schema):
    """Perch bills nothing; these fields are present because clients require them."""

    state: str = "active"
    payment_source: PaymentSource = Field(default_factory=PaymentSource)
    payment_method: str = "none"
    subscription_type: str
    quota_reset_at_last: Timestamp
    name: str
    email: str
    address_city: str = ""
    address_country: str = ""
    address_line1: str = ""
    address_line2: str = ""
    address_postal_code: str = ""
    address_state: str = ""


class CurrentUser(Schema):
    """The caller's account. A limit of -1 stands for no limit."""

    id: str
    login: str
    name: str
    last_name: str = ""
    email: str
    image: str = ""
    plan: str
    active_seconds_limit: int
    compute_seconds_limit: int
    projects_limit: int
    branches_limit: int
    max_autoscaling_limit: float
    auth_accounts: list[dict[str, str]] = Field(default_factory=list)
    billing_account: BillingAccount


class AuthDetails(KeyLimits):
    account_id: str
    auth_method: str
    auth_data: str
    operator: bool
    api_key_id: int = Field(description="The id of the key that sent the request")


class RegionOut(Schema):
    region_id: str
    name: str
    default: bool
    geo_lat: str
    geo_long: str
    pg_version: int | None = told(
        "The major version of Postgres that a new project gets if its request names "
        "none; null until the region's worker has started",
        18,
    )
    pg_versions: list[int] = told(
        "All major versions of Postgres that a new project can have", [15, 18]
    )


class Regions(Schema):
    regions: list[RegionOut]


def slug_of(account: Account) -> str:
    """The account's name in lower-case letters, digits and hyphens; made from the account's id if
    the name has no such characters."""
    slug = re.sub(r"[^a-z0-9]+", "-", account.name.lower()).strip("-")
    return slug or f"account-{account.id}"


def email_of(account: Account) -> str:
    """The account's name if it is an e-mail address, otherwise an address made from the name."""
    return account.name if ADDRESS.fullmatch(account.name) else f"{slug_of(account)}@{MAIL_HOST}"


def members_of(account: Account) -> list[dict[str, Any]]:
    """The account itself, which is the only member."""
    return [
        {
            "member": {
                "id": str(uuid.uuid5(MEMBERS, str(account.id))),
                "user_id": str(account.id),
                "org_id": account.organization_id,
                "role": "admin",
                "joined_at": account.created_at,
            },
            "user": {"email": email_of(account)},
        }
    ]

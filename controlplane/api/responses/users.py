"""Who is calling, and where they could be, as callers get it."""

from ninja import Schema
from pydantic import Field

from controlplane.api.fields import Timestamp


class AuthAccount(Schema):
    """A way to sign in by somebody else's name. There is none here: accounts have keys."""

    email: str
    image: str
    login: str
    name: str
    provider: str


class PaymentSource(Schema):
    type: str


class BillingAccount(Schema):
    """Nothing is billed here; clients want the fields all the same."""

    state: str
    payment_source: PaymentSource
    subscription_type: str
    payment_method: str
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
    """The account that the key is of."""

    id: str
    login: str
    name: str
    last_name: str
    email: str
    image: str
    plan: str = Field(description="As `free`, `standard`, `unlimited`")
    active_seconds_limit: int = Field(description="-1 for any number, as in the other limits")
    compute_seconds_limit: int
    projects_limit: int
    branches_limit: int = Field(description="Of one project")
    max_autoscaling_limit: float = Field(description="The largest endpoint, in compute units")
    auth_accounts: list[AuthAccount]
    billing_account: BillingAccount


class Organization(Schema):
    id: str
    name: str


class Organizations(Schema):
    organizations: list[Organization]


class AuthDetails(Schema):
    account_id: str
    auth_method: str = Field(description="`api_key_user`")
    auth_data: str = Field(description="The account's name")


class RegionOut(Schema):
    region_id: str
    name: str
    default: bool = Field(description="Where a project goes that names no region")
    geo_lat: str = ""
    geo_long: str = ""


class Regions(Schema):
    regions: list[RegionOut]

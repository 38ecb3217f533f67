"""The response fields of a project's settings, and of the defaults for its future endpoints."""

from collections.abc import Mapping
from typing import Any

from ninja import Schema

from controlplane.api.endpoint_fields import with_response_fields
from controlplane.models import ATTRIBUTES, Durability


class QuotaOut(Schema):
    active_time_seconds: int | None = None
    compute_time_seconds: int | None = None
    written_data_bytes: int | None = None
    data_transfer_bytes: int | None = None
    logical_size_bytes: int | None = None


class AllowedIpsOut(Schema):
    ips: list[str]
    protected_branches_only: bool
    # The older name of `protected_branches_only`.
    primary_branch_only: bool


class ProjectSettingsOut(Schema):
    """A project's settings. A setting that was never set is absent."""

    quota: QuotaOut | None = None
    allowed_ips: AllowedIpsOut | None = None
    block_public_connections: bool | None = None
    block_outbound_connections: bool | None = None
    enable_logical_replication: bool | None = None
    durability: Durability | None = None


@with_response_fields((one for one in ATTRIBUTES.values() if one.in_defaults), always=False)
class DefaultEndpointSettingsOut(Schema):
    pg_settings: dict[str, str] | None = None
    pgbouncer_settings: dict[str, str] | None = None


def answered_settings(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a project's stored settings to the form of `ProjectSettingsOut`."""
    allowed = stored.get("allowed_ips")
    if allowed is None:
        return dict(stored)
    only_protected = allowed["protected_branches_only"]
    return {**stored, "allowed_ips": {**allowed, "primary_branch_only": only_protected}}

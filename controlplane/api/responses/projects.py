"""The response fields of projects, their settings, and the defaults for their future endpoints."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.conf import settings
from ninja import Schema
from pydantic import Field

from controlplane import clock
from controlplane.api.endpoint_fields import with_response_fields
from controlplane.api.http.fields import Timestamp, found_at, told
from controlplane.api.responses.branches import BranchOut, ConnectionDetails, DatabaseOut, RoleOut
from controlplane.api.responses.endpoints import EndpointOut
from controlplane.api.responses.operations import OperationsOut
from controlplane.api.responses.organizations import email_of
from controlplane.api.responses.shared import (
    UNLIMITED_MEBIBYTES,
    Cursor,
    FromConsumed,
    as_limit,
    subscription_type,
)
from controlplane.models import ATTRIBUTES, Durability, MaskingPolicy, Project
from controlplane.models.consumed import next_period, period_of


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
    masking_policy: MaskingPolicy | None = None


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


class Owner(Schema):
    email: str
    name: str
    branches_limit: int
    subscription_type: str


class ProjectListItemOut(FromConsumed):
    # Consumption fields count from the start of the current consumption period.
    id: str
    platform_id: str = "local"
    region_id: str
    name: str
    provisioner: str
    default_endpoint_settings: DefaultEndpointSettingsOut
    settings: ProjectSettingsOut
    pg_version: int
    locale: str
    proxy_host: str
    branch_logical_size_limit: int
    branch_logical_size_limit_bytes: int
    store_passwords: bool
    active_time: int
    cpu_used_sec: int
    synthetic_storage_size: int
    quota_reset_at: Timestamp
    compute_last_active_at: Timestamp | None = None
    creation_source: str = "console"
    created_at: Timestamp
    updated_at: Timestamp
    owner_id: str
    org_id: str
    deleted_at: Timestamp | None = None
    recoverable_until: Timestamp | None = None

    @staticmethod
    def resolve_settings(project: Project) -> dict[str, Any]:
        return answered_settings(project.settings)

    resolve_proxy_host = found_at("region.host")

    @staticmethod
    def resolve_branch_logical_size_limit(project: Project) -> int:
        return _size_limit(project) >> 20

    @staticmethod
    def resolve_branch_logical_size_limit_bytes(project: Project) -> int:
        return _size_limit(project)

    @staticmethod
    def resolve_active_time(project: Project) -> int:
        return int(project.consumed.active_seconds)

    @staticmethod
    def resolve_synthetic_storage_size(project: Project) -> int:
        return project.consumed.stored_bytes + project.consumed.history_bytes

    @staticmethod
    def resolve_quota_reset_at(project: Project) -> datetime:
        return next_period(clock.now())

    resolve_compute_last_active_at = found_at("consumed.last_active")
    resolve_org_id = found_at("account.organization_id")

    @staticmethod
    def resolve_owner_id(project: Project) -> str:
        return str(project.account_id)


class ProjectOut(ProjectListItemOut):
    data_storage_bytes_hour: int
    data_transfer_bytes: int
    written_data_bytes: int
    compute_time_seconds: int
    active_time_seconds: int
    history_retention_seconds: int
    consumption_period_start: Timestamp
    consumption_period_end: Timestamp
    recovery_period_seconds: int = Field(
        description="For how long the project could be recovered if it were deleted now"
    )
    owner: Owner

    @staticmethod
    def resolve_recovery_period_seconds(project: Project) -> int:
        return settings.RECOVERY_HOURS * 3600

    @staticmethod
    def resolve_data_storage_bytes_hour(project: Project) -> int:
        return int(project.consumed.byte_hours)

    @staticmethod
    def resolve_consumption_period_start(project: Project) -> datetime:
        return period_of(clock.now())

    @staticmethod
    def resolve_consumption_period_end(project: Project) -> datetime:
        return next_period(clock.now())

    @staticmethod
    def resolve_owner(project: Project) -> dict[str, str | int]:
        account = project.account
        return {
            "email": email_of(account),
            "name": account.name,
            "subscription_type": subscription_type(account),
            "branches_limit": as_limit(account.limits.branches_of_project),
        }


class OneProject(Schema):
    project: ProjectOut


class ProjectAndOperations(OneProject, OperationsOut):
    pass


class RecoveredProject(OneProject):
    branches: list[BranchOut]


class ProjectsLimits(Schema):
    active_time: int
    cpu_seconds: int
    max_projects: int
    max_branches: int
    max_autoscaling_cu: float
    max_active_endpoints: int
    max_read_only_endpoints: int
    max_allowed_ips: int


class OneProjectsLimits(Schema):
    limits: ProjectsLimits


class ProjectsPage(Schema):
    projects: list[ProjectListItemOut]
    # By project id. Always empty.
    applications: dict[str, list[str]] = Field(default_factory=dict)
    integrations: dict[str, list[str]] = Field(default_factory=dict)
    pagination: Cursor | None = None


class CreatedProject(ProjectAndOperations):
    connection_uris: list[ConnectionDetails]
    roles: list[RoleOut]
    databases: list[DatabaseOut]
    branch: BranchOut
    endpoints: list[EndpointOut]


def _size_limit(project: Project) -> int:
    limit = project.account.branch_size_limit
    return UNLIMITED_MEBIBYTES << 20 if limit is None else limit


class EndpointCountsOut(Schema):
    active: int = told("The number of running endpoints", 3)
    idle: int = told("The number of endpoints that a client's connection wakes", 5)
    disabled: int = told("The number of disabled endpoints", 0)


class ProjectStateOut(Schema):
    project_id: str
    endpoints: EndpointCountsOut = Field(description="The number of endpoints in each state")
    unfinished_operations: int = told("The number of unfinished operations", 0)


class ProjectStates(Schema):
    projects: list[ProjectStateOut] = Field(description="The states, by project id")

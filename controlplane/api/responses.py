"""What callers get: the fields of each resource, read from its row.

What is None is left out (`exclude_none`), as clients of this API expect.
"""

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.utils import timezone
from ninja import Schema
from pydantic import Field

from controlplane.actors import ActorType
from controlplane.api.fields import Timestamp
from controlplane.models import Account, Branch, Endpoint, Operation, Plan, Project

# Where no plan limits what a branch may hold: more than any host's disk.
UNLIMITED_MEBIBYTES = 1 << 30


class InitiatorOut(Schema):
    type: str
    name: str


class OperationOut(Schema):
    id: UUID
    chain_id: UUID
    initiator: InitiatorOut
    retry_of: UUID | None = None
    project_id: str
    branch_id: str | None = None
    endpoint_id: str | None = None
    action: str
    status: str
    error: str | None = None
    failures_count: int
    retry_at: Timestamp | None = None
    created_at: Timestamp
    updated_at: Timestamp
    total_duration_ms: int

    @staticmethod
    def resolve_chain_id(operation: Operation) -> UUID:
        return operation.chain

    @staticmethod
    def resolve_retry_of(operation: Operation) -> UUID | None:
        return operation.retry_of_id

    @staticmethod
    def resolve_initiator(operation: Operation) -> dict[str, str]:
        by = operation.initiator
        is_client = by.type == ActorType.CLIENT
        return {"type": by.type, "name": f"{by.address} {by.name}" if is_client else by.name}

    @staticmethod
    def resolve_total_duration_ms(operation: Operation) -> int:
        return operation.duration_ms(timezone.now())


class EndpointOut(Schema):
    host: str
    id: str
    name: str | None = None
    project_id: str
    branch_id: str
    autoscaling_limit_min_cu: float
    autoscaling_limit_max_cu: float
    region_id: str
    type: str
    current_state: str
    pending_state: str | None = None
    settings: dict[str, Any]
    pooler_enabled: bool
    pooler_mode: str
    disabled: bool
    passwordless_access: bool
    last_active: Timestamp | None = None
    creation_source: str = "console"
    created_at: Timestamp
    updated_at: Timestamp
    started_at: Timestamp | None = None
    suspended_at: Timestamp | None = None
    proxy_host: str
    suspend_timeout_seconds: int
    provisioner: str

    @staticmethod
    def resolve_host(endpoint: Endpoint) -> str:
        return f"{endpoint.id}.{endpoint.project.region.host}"

    @staticmethod
    def resolve_region_id(endpoint: Endpoint) -> str:
        return endpoint.project.region_id

    @staticmethod
    def resolve_proxy_host(endpoint: Endpoint) -> str:
        return endpoint.project.region.host


class BranchOut(Schema):
    id: str
    project_id: str
    parent_id: str | None = None
    parent_timestamp: Timestamp | None = None
    name: str
    current_state: str
    pending_state: str | None = None
    state_changed_at: Timestamp
    logical_size: int | None = None
    creation_source: str = "console"
    primary: bool
    default: bool
    protected: bool
    cpu_used_sec: int
    compute_time_seconds: int
    active_time_seconds: int
    written_data_bytes: int = 0
    data_transfer_bytes: int = 0
    created_at: Timestamp
    updated_at: Timestamp

    @staticmethod
    def resolve_parent_timestamp(branch: Branch) -> datetime | None:
        return branch.created_at if branch.parent_id else None

    @staticmethod
    def resolve_primary(branch: Branch) -> bool:
        return branch.default

    @staticmethod
    def resolve_cpu_used_sec(branch: Branch) -> int:
        return round(branch.compute_seconds)

    @staticmethod
    def resolve_compute_time_seconds(branch: Branch) -> int:
        return round(branch.compute_seconds)

    @staticmethod
    def resolve_active_time_seconds(branch: Branch) -> int:
        return round(branch.active_seconds)


class Owner(Schema):
    email: str
    name: str
    branches_limit: int = -1
    subscription_type: str


class ProjectListItemOut(Schema):
    # total_active and total_compute come with queries; a project just made has used nothing.
    id: str
    platform_id: str = "local"
    region_id: str
    name: str
    provisioner: str = "k8s-pod"
    default_endpoint_settings: dict[str, Any]
    settings: dict[str, Any]
    pg_version: int
    proxy_host: str
    branch_logical_size_limit: int
    branch_logical_size_limit_bytes: int
    store_passwords: bool
    active_time: int
    cpu_used_sec: int
    creation_source: str = "console"
    created_at: Timestamp
    updated_at: Timestamp
    owner_id: str

    @staticmethod
    def resolve_proxy_host(project: Project) -> str:
        return project.region.host

    @staticmethod
    def resolve_branch_logical_size_limit(project: Project) -> int:
        return _size_limit(project) >> 20

    @staticmethod
    def resolve_branch_logical_size_limit_bytes(project: Project) -> int:
        return _size_limit(project)

    @staticmethod
    def resolve_active_time(project: Project) -> int:
        return round(getattr(project, "total_active", 0))

    @staticmethod
    def resolve_cpu_used_sec(project: Project) -> int:
        return round(getattr(project, "total_compute", 0))

    @staticmethod
    def resolve_owner_id(project: Project) -> str:
        return str(project.account_id)


class ProjectOut(ProjectListItemOut):
    data_storage_bytes_hour: int = 0
    data_transfer_bytes: int = 0
    written_data_bytes: int = 0
    compute_time_seconds: int
    active_time_seconds: int
    history_retention_seconds: int
    consumption_period_start: Timestamp
    consumption_period_end: Timestamp
    owner: Owner

    @staticmethod
    def resolve_compute_time_seconds(project: Project) -> int:
        return round(getattr(project, "total_compute", 0))

    @staticmethod
    def resolve_active_time_seconds(project: Project) -> int:
        return round(getattr(project, "total_active", 0))

    @staticmethod
    def resolve_consumption_period_start(project: Project) -> datetime:
        return _month(timezone.now())

    @staticmethod
    def resolve_consumption_period_end(project: Project) -> datetime:
        return _month(_month(timezone.now()) + timedelta(days=32))

    @staticmethod
    def resolve_owner(project: Project) -> dict[str, str]:
        account = project.account
        return {
            "email": account.name,
            "name": account.name,
            "subscription_type": subscription_type(account),
        }


class RoleOut(Schema):
    branch_id: str
    name: str
    # Only in the answers that made it.
    password: str | None = None
    protected: bool
    created_at: Timestamp
    updated_at: Timestamp


class DatabaseOut(Schema):
    id: int
    branch_id: str
    name: str
    owner_name: str
    created_at: Timestamp
    updated_at: Timestamp


class ConnectionParameters(Schema):
    database: str
    password: str
    role: str
    host: str
    pooler_host: str


class ConnectionDetails(Schema):
    connection_uri: str
    connection_parameters: ConnectionParameters


class Cursor(Schema):
    cursor: str


class OperationsOut(Schema):
    operations: list[OperationOut]


class OperationsPage(OperationsOut):
    pagination: Cursor | None = None


class OneOperation(Schema):
    operation: OperationOut


class OneEndpoint(Schema):
    endpoint: EndpointOut


class Endpoints(Schema):
    endpoints: list[EndpointOut]


class EndpointAndOperations(OneEndpoint, OperationsOut):
    pass


class OneBranch(Schema):
    branch: BranchOut


class Branches(Schema):
    branches: list[BranchOut]
    # Clients look a branch's annotation up in it.
    annotations: dict[str, Any] = Field(default_factory=dict)


class BranchAndOperations(OneBranch, OperationsOut):
    pass


class CreatedBranch(BranchAndOperations):
    endpoints: list[EndpointOut]
    roles: list[RoleOut]
    databases: list[DatabaseOut]
    connection_uris: list[ConnectionDetails] | None = None


class OneProject(Schema):
    project: ProjectOut


class ProjectAndOperations(OneProject, OperationsOut):
    pass


class ProjectsPage(Schema):
    projects: list[ProjectListItemOut]
    pagination: Cursor | None = None


class CreatedProject(ProjectAndOperations):
    connection_uris: list[ConnectionDetails]
    roles: list[RoleOut]
    databases: list[DatabaseOut]
    branch: BranchOut
    endpoints: list[EndpointOut]


class OneRole(Schema):
    role: RoleOut


class Roles(Schema):
    roles: list[RoleOut]


class RoleAndOperations(OneRole, OperationsOut):
    pass


class Password(Schema):
    password: str


class OneDatabase(Schema):
    database: DatabaseOut


class Databases(Schema):
    databases: list[DatabaseOut]


class DatabaseAndOperations(OneDatabase, OperationsOut):
    pass


class ConnectionUri(Schema):
    uri: str


def _size_limit(project: Project) -> int:
    limit = project.account.branch_size_limit
    return UNLIMITED_MEBIBYTES << 20 if limit is None else limit


def subscription_type(account: Account) -> str:
    """The account's plan as one of the values that clients of this API know."""
    return "free_v2" if account.plan == Plan.FREE else "UNKNOWN"


def _month(time: datetime) -> datetime:
    return time.replace(day=1, hour=0, minute=0, second=0, microsecond=0)

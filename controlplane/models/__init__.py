"""What Perch knows: the rows that the API shows and the engine works on."""

from controlplane.models.account import BRANCH_SIZE_LIMITS, Account, ApiKey, Plan
from controlplane.models.branch import Branch, BranchState
from controlplane.models.endpoint import (
    Configuration,
    Endpoint,
    EndpointState,
    EndpointType,
    PoolerMode,
)
from controlplane.models.event import Event
from controlplane.models.operation import UNFINISHED, Action, Lane, Operation, OperationStatus
from controlplane.models.postgres_settings import PostgresSettings
from controlplane.models.project import Project
from controlplane.models.region import Region
from controlplane.models.role import Database, Role
from controlplane.models.webhook import DeliveryStatus, Webhook, WebhookDelivery

__all__ = [
    "BRANCH_SIZE_LIMITS",
    "UNFINISHED",
    "Account",
    "Action",
    "ApiKey",
    "Branch",
    "BranchState",
    "Configuration",
    "Database",
    "DeliveryStatus",
    "Endpoint",
    "EndpointState",
    "EndpointType",
    "Event",
    "Lane",
    "Operation",
    "OperationStatus",
    "Plan",
    "PoolerMode",
    "PostgresSettings",
    "Project",
    "Region",
    "Role",
    "Webhook",
    "WebhookDelivery",
]

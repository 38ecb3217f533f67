"""The metadata's tables: the rows that the API shows and the engine works on."""

from controlplane.models.account import Account, ApiKey
from controlplane.models.branch import CATALOG_UNREAD, Branch, BranchState, InitSource
from controlplane.models.consumed import Consumed
from controlplane.models.endpoint import (
    APPLIED,
    ATTRIBUTES,
    Attribute,
    Configuration,
    Endpoint,
    EndpointState,
    EndpointType,
    PoolerMode,
)
from controlplane.models.endpoint_metrics import EndpointSample, LastSample
from controlplane.models.event import Event
from controlplane.models.history import FormerPassword, HistoryChain
from controlplane.models.host import PROCESSES, Host, HostInvitation
from controlplane.models.log_receiver import LogReceiver
from controlplane.models.operation import (
    GIVEN_UP,
    HANDED_OVER,
    MAY_SUCCEED,
    UNFINISHED,
    Action,
    Lane,
    Operation,
    OperationStatus,
    RequestKind,
)
from controlplane.models.plans import BRANCH_SIZE_LIMITS, LIMITS, Plan, PlanLimits
from controlplane.models.postgres_settings import PostgresSettings
from controlplane.models.project import DEFAULT_PROVISIONER, Durability, Project
from controlplane.models.region import Region
from controlplane.models.requests import IdempotentRequest, RequestRate
from controlplane.models.role import Database, Role
from controlplane.models.schema_reading import SchemaFormat, SchemaReading
from controlplane.models.secret_key import SecretKey
from controlplane.models.snapshot import Snapshot
from controlplane.models.usage import Meter, Span, TrafficReporter, Usage
from controlplane.models.webhook import DeliveryStatus, Webhook, WebhookDelivery

__all__ = [
    "APPLIED",
    "ATTRIBUTES",
    "BRANCH_SIZE_LIMITS",
    "CATALOG_UNREAD",
    "DEFAULT_PROVISIONER",
    "GIVEN_UP",
    "HANDED_OVER",
    "LIMITS",
    "MAY_SUCCEED",
    "PROCESSES",
    "UNFINISHED",
    "Account",
    "Action",
    "ApiKey",
    "Attribute",
    "Branch",
    "BranchState",
    "Configuration",
    "Consumed",
    "Database",
    "DeliveryStatus",
    "Durability",
    "Endpoint",
    "EndpointSample",
    "EndpointState",
    "EndpointType",
    "Event",
    "FormerPassword",
    "HistoryChain",
    "Host",
    "HostInvitation",
    "IdempotentRequest",
    "InitSource",
    "Lane",
    "LastSample",
    "LogReceiver",
    "Meter",
    "Operation",
    "OperationStatus",
    "Plan",
    "PlanLimits",
    "PoolerMode",
    "PostgresSettings",
    "Project",
    "Region",
    "RequestKind",
    "RequestRate",
    "Role",
    "SchemaFormat",
    "SchemaReading",
    "SecretKey",
    "Snapshot",
    "Span",
    "TrafficReporter",
    "Usage",
    "Webhook",
    "WebhookDelivery",
]

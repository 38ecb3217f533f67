"""The metadata's tables: the rows that the API shows and the engine works on."""

from controlplane.models.account import (
    BRANCH_SIZE_LIMITS,
    LIMITS,
    Account,
    ApiKey,
    IdempotentRequest,
    Plan,
    PlanLimits,
    RequestRate,
)
from controlplane.models.branch import (
    CATALOG_UNREAD,
    Branch,
    BranchState,
    Database,
    InitSource,
    Masking,
    Role,
)
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
from controlplane.models.event import Event
from controlplane.models.history import FormerPassword, HistoryChain, Snapshot
from controlplane.models.host import PROCESSES, Host, HostInvitation, PostgresSettings, Region
from controlplane.models.log_receiver import LogReceiver
from controlplane.models.operation import (
    GIVEN_UP,
    HANDED_OVER,
    MAY_SUCCEED,
    UNFINISHED,
    Action,
    Job,
    JobTask,
    Lane,
    Operation,
    OperationStatus,
    RequestKind,
    Run,
    SchemaFormat,
    SchemaReading,
)
from controlplane.models.project import DEFAULT_PROVISIONER, Durability, MaskingPolicy, Project
from controlplane.models.secret_key import SecretKey
from controlplane.models.usage import (
    EndpointSample,
    LastSample,
    Meter,
    Span,
    TrafficReporter,
    Usage,
)
from controlplane.models.webhook import DeliveryStatus, Webhook, WebhookDelivery

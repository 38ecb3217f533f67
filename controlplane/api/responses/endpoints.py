"""Endpoints, as callers get them."""

from ninja import Field, Schema

from controlplane.api.fields import Timestamp
from controlplane.api.responses.operations import OperationsOut
from controlplane.models import Endpoint


class EndpointSettingsOut(Schema):
    pg_settings: dict[str, str] = Field(default_factory=dict)
    pgbouncer_settings: dict[str, str] | None = None


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
    settings: EndpointSettingsOut
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


class OneEndpoint(Schema):
    endpoint: EndpointOut


class Endpoints(Schema):
    endpoints: list[EndpointOut]


class EndpointAndOperations(OneEndpoint, OperationsOut):
    pass

"""What callers send. Lenient: unknown fields are ignored, and null is as good as absent.

Not ninja's own Schema, which reads the attributes of whatever it is given: to it, a list is
an object that leaves every field out.
"""

from typing import Any, Literal

from pydantic import BaseModel, model_validator

from controlplane.api.fields import (
    ComputeUnits,
    HistoryRetention,
    Identifier,
    JsonObject,
    Name,
    PgVersion,
    Provisioner,
    ShortName,
    SuspendTimeout,
    Text,
)


class Attributes(BaseModel):
    """The attributes of a resource, of which a caller sends some."""

    @model_validator(mode="before")
    @classmethod
    def without_null(cls, sent: Any) -> Any:
        if not isinstance(sent, dict):
            return sent
        return {name: value for name, value in sent.items() if value is not None}

    def given(self) -> dict[str, Any]:
        """Those that were sent."""
        return self.model_dump(exclude_none=True)


class EndpointSettings(Attributes):
    pg_settings: dict[Text, Text] | None = None


class EndpointAttributes(Attributes):
    settings: EndpointSettings | None = None
    autoscaling_limit_min_cu: ComputeUnits | None = None
    autoscaling_limit_max_cu: ComputeUnits | None = None
    provisioner: Provisioner | None = None
    pooler_enabled: bool | None = None
    pooler_mode: Literal["transaction"] | None = None
    disabled: bool | None = None
    passwordless_access: bool | None = None
    suspend_timeout_seconds: SuspendTimeout | None = None
    name: ShortName | None = None


class NewEndpoint(EndpointAttributes):
    branch_id: Text
    type: Literal["read_write"]
    region_id: Text | None = None


class CreateEndpoint(BaseModel):
    endpoint: NewEndpoint


class EndpointChanges(EndpointAttributes):
    branch_id: Text | None = None


class UpdateEndpoint(BaseModel):
    endpoint: EndpointChanges


class NewBranchEndpoint(Attributes):
    type: Literal["read_write"]
    autoscaling_limit_min_cu: ComputeUnits | None = None
    autoscaling_limit_max_cu: ComputeUnits | None = None
    provisioner: Provisioner | None = None
    suspend_timeout_seconds: SuspendTimeout | None = None
    settings: EndpointSettings | None = None
    name: ShortName | None = None


class NewBranch(Attributes):
    parent_id: Text | None = None
    name: Name | None = None
    protected: bool = False
    # Branching from the past needs a history that a data directory does not keep.
    parent_lsn: Text | None = None
    parent_timestamp: Text | None = None


class CreateBranch(BaseModel):
    branch: NewBranch | None = None
    endpoints: list[NewBranchEndpoint] | None = None


class BranchChanges(Attributes):
    name: Name | None = None
    protected: bool | None = None


class UpdateBranch(BaseModel):
    branch: BranchChanges


class DefaultEndpointSettings(Attributes):
    pg_settings: dict[Text, Text] | None = None
    autoscaling_limit_min_cu: ComputeUnits | None = None
    autoscaling_limit_max_cu: ComputeUnits | None = None
    suspend_timeout_seconds: SuspendTimeout | None = None


class FirstBranch(Attributes):
    name: Name | None = None
    role_name: Identifier | None = None
    database_name: Identifier | None = None


class NewProject(Attributes):
    name: Name | None = None
    region_id: Text | None = None
    pg_version: PgVersion | None = None
    provisioner: Provisioner | None = None
    autoscaling_limit_min_cu: ComputeUnits | None = None
    autoscaling_limit_max_cu: ComputeUnits | None = None
    default_endpoint_settings: DefaultEndpointSettings | None = None
    settings: JsonObject | None = None
    store_passwords: bool = True
    history_retention_seconds: HistoryRetention = 86400
    branch: FirstBranch | None = None


class CreateProject(BaseModel):
    project: NewProject


class ProjectChanges(Attributes):
    name: Name | None = None
    default_endpoint_settings: DefaultEndpointSettings | None = None
    settings: JsonObject | None = None
    history_retention_seconds: HistoryRetention | None = None


class UpdateProject(BaseModel):
    project: ProjectChanges


class CreateApiKey(BaseModel):
    key_name: ShortName


class NewRole(Attributes):
    name: Identifier
    no_login: bool = False


class CreateRole(BaseModel):
    role: NewRole


class NewDatabase(BaseModel):
    name: Identifier
    owner_name: Identifier


class CreateDatabase(BaseModel):
    database: NewDatabase


class DatabaseChanges(BaseModel):
    name: Identifier | None = None
    owner_name: Identifier | None = None


class UpdateDatabase(BaseModel):
    database: DatabaseChanges

"""What callers send. Lenient: unknown fields are ignored, and null is as good as absent.

Not ninja's own Schema, which reads the attributes of whatever it is given: to it, a list is
an object that leaves every field out.
"""

from typing import Any, Literal

from pydantic import BaseModel, Field, model_validator

from controlplane.api.fields import (
    ComputeUnits,
    HistoryRetention,
    Identifier,
    JsonObject,
    Name,
    PgVersion,
    PointInTime,
    Provisioner,
    ShortName,
    SuspendTimeout,
    Text,
)
from controlplane.services import endpoint_attributes, endpoint_settings
from controlplane.services.accounts import KeySpec
from controlplane.services.branches import BranchSpec
from controlplane.services.endpoint_attributes import EndpointDefaults
from controlplane.services.projects import ProjectChanges, ProjectSpec


class Attributes(BaseModel):
    """The attributes of a resource, of which a caller sends some."""

    @model_validator(mode="before")
    @classmethod
    def without_null(cls, sent: Any) -> Any:
        if not isinstance(sent, dict):
            return sent
        return {name: value for name, value in sent.items() if value is not None}


class EndpointSettings(Attributes):
    """An empty one changes nothing. One that holds `pg_settings: null` and no more is refused:
    it may mean to remove all settings, which an empty map does, or none."""

    pg_settings: dict[Text, Text] | None = None
    pgbouncer_settings: dict[Text, Text] | None = None

    @model_validator(mode="before")
    @classmethod
    def no_lone_null(cls, sent: Any) -> Any:
        if sent == {"pg_settings": None}:
            raise ValueError("settings must not be nil")
        return sent

    def sent(self) -> endpoint_settings.EndpointSettings:
        return endpoint_settings.EndpointSettings(
            pg_settings=self.pg_settings, pgbouncer_settings=self.pgbouncer_settings
        )


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
    region_id: Text | None = None

    def asked(self) -> endpoint_attributes.EndpointAttributes:
        return endpoint_attributes.EndpointAttributes(
            name=self.name,
            autoscaling_limit_min_cu=self.autoscaling_limit_min_cu,
            autoscaling_limit_max_cu=self.autoscaling_limit_max_cu,
            settings=self.settings.sent() if self.settings else None,
            pooler_enabled=self.pooler_enabled,
            pooler_mode=self.pooler_mode,
            disabled=self.disabled,
            passwordless_access=self.passwordless_access,
            provisioner=self.provisioner,
            suspend_timeout_seconds=self.suspend_timeout_seconds,
            region_id=self.region_id,
        )


class NewBranchEndpoint(EndpointAttributes):
    """A branch's first endpoint; its branch is the one that it is made with."""

    type: Literal["read_write"] = "read_write"


class NewEndpoint(NewBranchEndpoint):
    branch_id: Text


class CreateEndpoint(BaseModel):
    endpoint: NewEndpoint


class EndpointChanges(EndpointAttributes):
    branch_id: Text | None = None


class UpdateEndpoint(BaseModel):
    endpoint: EndpointChanges


class NewBranch(Attributes):
    parent_id: Text | None = None
    name: Name | None = None
    protected: bool = False
    parent_lsn: Text | None = None
    parent_timestamp: Text | None = None


class CreateBranch(BaseModel):
    branch: NewBranch | None = None
    endpoints: list[NewBranchEndpoint] | None = None

    def spec(self) -> BranchSpec:
        wanted = self.branch or NewBranch()
        return BranchSpec(
            name=wanted.name,
            parent_id=wanted.parent_id,
            parent_lsn=wanted.parent_lsn,
            parent_timestamp=wanted.parent_timestamp,
            protected=wanted.protected,
            endpoints=[endpoint.asked() for endpoint in self.endpoints or ()],
        )


class BranchChanges(Attributes):
    name: Name | None = None
    protected: bool | None = None


class UpdateBranch(BaseModel):
    branch: BranchChanges


class DefaultEndpointSettings(Attributes):
    pg_settings: dict[Text, Text] | None = None
    pgbouncer_settings: dict[Text, Text] | None = None
    autoscaling_limit_min_cu: ComputeUnits | None = None
    autoscaling_limit_max_cu: ComputeUnits | None = None
    suspend_timeout_seconds: SuspendTimeout | None = None

    def sent(self, *, min_cu: float | None = None, max_cu: float | None = None) -> EndpointDefaults:
        """With the limits that stand beside them in a request; those go first."""
        return EndpointDefaults(
            autoscaling_limit_min_cu=self.autoscaling_limit_min_cu if min_cu is None else min_cu,
            autoscaling_limit_max_cu=self.autoscaling_limit_max_cu if max_cu is None else max_cu,
            suspend_timeout_seconds=self.suspend_timeout_seconds,
            pg_settings=self.pg_settings,
            pgbouncer_settings=self.pgbouncer_settings,
        )


class FirstBranch(Attributes):
    name: Name = "main"
    role_name: Identifier | None = None
    database_name: Identifier = "neondb"


class NewProject(Attributes):
    name: Name | None = None
    region_id: Text | None = None
    pg_version: PgVersion | None = None
    provisioner: Provisioner | None = None
    autoscaling_limit_min_cu: ComputeUnits | None = None
    autoscaling_limit_max_cu: ComputeUnits | None = None
    default_endpoint_settings: DefaultEndpointSettings = Field(
        default_factory=DefaultEndpointSettings
    )
    settings: JsonObject = Field(default_factory=dict)
    store_passwords: bool = True
    history_retention_seconds: HistoryRetention = 86400
    branch: FirstBranch = Field(default_factory=FirstBranch)

    def spec(self) -> ProjectSpec:
        return ProjectSpec(
            name=self.name,
            region_id=self.region_id,
            pg_version=self.pg_version,
            branch_name=self.branch.name,
            role_name=self.branch.role_name,
            database_name=self.branch.database_name,
            endpoint_defaults=self.default_endpoint_settings.sent(
                min_cu=self.autoscaling_limit_min_cu, max_cu=self.autoscaling_limit_max_cu
            ),
            settings=self.settings,
            history_retention_seconds=self.history_retention_seconds,
            store_passwords=self.store_passwords,
        )


class CreateProject(BaseModel):
    project: NewProject


class ProjectAttributes(Attributes):
    """The attributes of a project that a caller may change, or send back as they are."""

    name: Name | None = None
    default_endpoint_settings: DefaultEndpointSettings | None = None
    settings: JsonObject | None = None
    history_retention_seconds: HistoryRetention | None = None
    region_id: Text | None = None

    def changes(self) -> ProjectChanges:
        defaults = self.default_endpoint_settings
        return ProjectChanges(
            name=self.name,
            endpoint_defaults=defaults.sent() if defaults else None,
            settings=self.settings,
            history_retention_seconds=self.history_retention_seconds,
            region_id=self.region_id,
        )


class UpdateProject(BaseModel):
    project: ProjectAttributes


class CreateApiKey(Attributes):
    key_name: ShortName
    project_id: Text | None = Field(
        None, description="The one project that the key reaches; without it, all of the account's."
    )
    read_only: bool = Field(False, description="It changes nothing, and reads no password.")
    expires_at: PointInTime | None = Field(
        None, description="From then on it is as good as revoked; without it, never."
    )

    def spec(self) -> KeySpec:
        return KeySpec(
            name=self.key_name,
            project_id=self.project_id,
            read_only=self.read_only,
            expires_at=self.expires_at,
        )


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

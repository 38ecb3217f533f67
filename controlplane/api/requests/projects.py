"""The request fields of projects."""

from typing import Annotated

from pydantic import BaseModel, Field

from controlplane.api.fields import (
    ComputeUnits,
    HistoryRetention,
    Identifier,
    JsonObject,
    Name,
    PgVersion,
    Provisioner,
    SuspendTimeout,
    Text,
    TextMap,
)
from controlplane.api.pagination import ORG_ID
from controlplane.api.requests.attributes import Attributes
from controlplane.api.requests.endpoints import PoolerSettings
from controlplane.api.requests.project_settings import ProjectSettings
from controlplane.api.requests.unsupported import NotOffered
from controlplane.services.endpoint_attributes import EndpointDefaults
from controlplane.services.project_changes import ProjectChanges
from controlplane.services.projects import ProjectSpec

AS_IT_IS = "Only as it is: another one is refused, as it is chosen when the project is created"


class DefaultEndpointSettings(Attributes):
    pg_settings: TextMap | None = None
    pgbouncer_settings: PoolerSettings | None = None
    autoscaling_limit_min_cu: ComputeUnits | None = None
    autoscaling_limit_max_cu: ComputeUnits | None = None
    suspend_timeout_seconds: SuspendTimeout | None = None

    def sent(self, *, min_cu: float | None = None, max_cu: float | None = None) -> EndpointDefaults:
        """The defaults. `min_cu` and `max_cu` are the limits that the request has outside of this
        object; they take precedence if they are not None."""
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
    annotations: Annotated[
        JsonObject | None,
        NotOffered("a branch that is made by POST …/branches can be annotated", unless=({},)),
    ] = None


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
    settings: ProjectSettings = Field(default_factory=ProjectSettings)
    store_passwords: bool = True
    history_retention_seconds: HistoryRetention = 86400
    branch: FirstBranch = Field(default_factory=FirstBranch)
    org_id: Text | None = Field(None, description=ORG_ID)

    def spec(self) -> ProjectSpec:
        return ProjectSpec(
            name=self.name,
            region_id=self.region_id,
            pg_version=self.pg_version,
            org_id=self.org_id,
            provisioner=self.provisioner,
            branch_name=self.branch.name,
            role_name=self.branch.role_name,
            database_name=self.branch.database_name,
            endpoint_defaults=self.default_endpoint_settings.sent(
                min_cu=self.autoscaling_limit_min_cu, max_cu=self.autoscaling_limit_max_cu
            ),
            settings=self.settings.sent(),
            history_retention_seconds=self.history_retention_seconds,
            store_passwords=self.store_passwords,
        )


class CreateProject(BaseModel):
    project: NewProject


class ProjectAttributes(Attributes):
    """The attributes of a project that a caller may change or send back unchanged."""

    name: Name | None = None
    default_endpoint_settings: DefaultEndpointSettings | None = None
    settings: ProjectSettings | None = None
    history_retention_seconds: HistoryRetention | None = None
    region_id: Text | None = Field(None, description=f"{AS_IT_IS}.")
    pg_version: PgVersion | None = Field(None, description=f"{AS_IT_IS}.")
    store_passwords: bool | None = Field(None, description=f"{AS_IT_IS}.")
    org_id: Text | None = Field(None, description=f"{AS_IT_IS}.")

    def changes(self) -> ProjectChanges:
        defaults = self.default_endpoint_settings
        return ProjectChanges(
            name=self.name,
            endpoint_defaults=defaults.sent() if defaults else None,
            settings=self.settings.sent() if self.settings else None,
            history_retention_seconds=self.history_retention_seconds,
            region_id=self.region_id,
            pg_version=self.pg_version,
            store_passwords=self.store_passwords,
            org_id=self.org_id,
        )


class UpdateProject(BaseModel):
    project: ProjectAttributes

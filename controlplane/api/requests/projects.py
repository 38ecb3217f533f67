"""The request fields of projects."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import BaseModel, Field

from controlplane.api.endpoint_fields import sent_attributes, with_request_fields
from controlplane.api.http.attributes import Attributes
from controlplane.api.http.fields import (
    HistoryRetention,
    Identifier,
    JsonObject,
    Name,
    PgVersion,
    Text,
    TextMap,
)
from controlplane.api.http.pagination import ORG_ID_DESCRIPTION
from controlplane.api.http.unsupported import NotOffered
from controlplane.api.requests.endpoints import PoolerSettings
from controlplane.api.requests.project_settings import ProjectSettings
from controlplane.models import ATTRIBUTES
from controlplane.services.project_changes import ProjectChanges
from controlplane.services.projects import ProjectSpec
from controlplane.services.rules.endpoint_attributes import EndpointAttributes
from controlplane.services.rules.endpoint_settings import EndpointSettings

# A request for a project may have these also outside of `default_endpoint_settings`.
LIMITS = ("autoscaling_limit_min_cu", "autoscaling_limit_max_cu")
NOTHING: Mapping[str, Any] = MappingProxyType({})
AS_IT_IS = (
    "Only the present value: it is chosen when the project is created, and any other is refused"
)


@with_request_fields(one for one in ATTRIBUTES.values() if one.in_defaults)
class DefaultEndpointSettings(Attributes):
    pg_settings: TextMap | None = None
    pgbouncer_settings: PoolerSettings | None = None

    def sent(self, beside: Mapping[str, Any] = NOTHING) -> EndpointAttributes:
        """The defaults. `beside` are attributes that the request has outside of this object; they
        take precedence."""
        return EndpointAttributes(
            chosen={**sent_attributes(self), **beside},
            settings=EndpointSettings(
                pg_settings=self.pg_settings, pgbouncer_settings=self.pgbouncer_settings
            ),
        )


class FirstBranch(Attributes):
    name: Name = "main"
    role_name: Identifier | None = None
    database_name: Identifier = "neondb"
    annotations: Annotated[
        JsonObject | None,
        NotOffered("a branch that is created with POST …/branches can be annotated", unless=({},)),
    ] = None


@with_request_fields(ATTRIBUTES[name] for name in (*LIMITS, "provisioner"))
class NewProject(Attributes):
    name: Name | None = None
    region_id: Text | None = None
    pg_version: PgVersion | None = None
    default_endpoint_settings: DefaultEndpointSettings = Field(
        default_factory=DefaultEndpointSettings
    )
    settings: ProjectSettings = Field(default_factory=ProjectSettings)
    store_passwords: bool = True
    history_retention_seconds: HistoryRetention = 86400
    branch: FirstBranch = Field(default_factory=FirstBranch)
    org_id: Text | None = Field(None, description=ORG_ID_DESCRIPTION)

    def spec(self) -> ProjectSpec:
        chosen = sent_attributes(self)
        return ProjectSpec(
            name=self.name,
            region_id=self.region_id,
            pg_version=self.pg_version,
            org_id=self.org_id,
            provisioner=chosen.get("provisioner"),
            branch_name=self.branch.name,
            role_name=self.branch.role_name,
            database_name=self.branch.database_name,
            endpoint_defaults=self.default_endpoint_settings.sent(
                {name: chosen[name] for name in LIMITS if name in chosen}
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

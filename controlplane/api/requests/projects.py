"""The request fields of projects and of their `settings`."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field

from controlplane.address_ranges import parse_range
from controlplane.api.endpoint_fields import sent_attributes, with_request_fields
from controlplane.api.http.fields import (
    WHOLE,
    Attributes,
    HistoryRetention,
    Identifier,
    JsonObject,
    Name,
    PgVersion,
    Text,
    TextMap,
)
from controlplane.api.http.not_offered import NotOffered
from controlplane.api.http.pagination import ORG_ID_DESCRIPTION
from controlplane.api.requests.branches import LIBRARIES, PoolerSettings
from controlplane.models import ATTRIBUTES, Durability, MaskingPolicy
from controlplane.services.project_changes import ProjectChanges
from controlplane.services.projects import ProjectSpec
from controlplane.services.rules import project_settings
from controlplane.services.rules.endpoint_attributes import EndpointAttributes, EndpointSettings
from controlplane.services.rules.project_settings import MAX_ALLOWED_IPS


def _range_of_addresses(text: str) -> str:
    parse_range(text)
    return text.strip()


AddressRange = Annotated[Text, AfterValidator(_range_of_addresses)]
# Up to the largest 64-bit integer, which Postgres and clients can hold. 0 stands for no limit.
QuotaAmount = Annotated[int, Field(ge=0, le=2**63 - 1), WHOLE]


class Quota(Attributes):
    """What the project may consume. 0 stands for no limit. Quotas that are not sent keep their
    values."""

    active_time_seconds: QuotaAmount | None = None
    compute_time_seconds: QuotaAmount | None = None
    written_data_bytes: QuotaAmount | None = None
    data_transfer_bytes: QuotaAmount | None = None
    logical_size_bytes: QuotaAmount | None = None


class AllowedIps(Attributes):
    """The addresses from which Postgres clients may connect. With `ips`, it replaces the former
    value as a whole."""

    ips: Annotated[list[AddressRange], Field(max_length=MAX_ALLOWED_IPS)] | None = Field(
        default=None,
        description=(
            "IPv4 or IPv6: addresses, CIDR ranges, or a first and a last address such as "
            "`192.0.2.1-192.0.2.9`. An empty list allows all addresses; without a list, the "
            "former one stays."
        ),
    )
    protected_branches_only: bool | None = Field(
        default=None, description="Whether the list applies only to protected branches."
    )
    primary_branch_only: bool | None = Field(
        default=None,
        description="The older name of `protected_branches_only`, which takes precedence if both "
        "are sent.",
        json_schema_extra={"deprecated": True},
    )

    def sent(self) -> project_settings.AllowedIps:
        named = (self.protected_branches_only, self.primary_branch_only)
        return project_settings.AllowedIps(
            ips=None if self.ips is None else tuple(dict.fromkeys(self.ips)),
            protected_branches_only=next((one for one in named if one is not None), None),
        )


class ProjectSettings(Attributes):
    """A project's settings. They are merged on the top level: settings that are not sent keep their
    values."""

    quota: Quota | None = None
    allowed_ips: AllowedIps | None = None
    block_public_connections: bool | None = Field(
        default=None, description="Refuse clients that come from public addresses."
    )
    block_outbound_connections: bool | None = Field(
        default=None,
        description=(
            "Block all connections that the project's computes make: to foreign servers, "
            "publishers and name servers. Takes effect within seconds, also for open "
            "connections. Refused with 422 if the region's host cannot enforce it."
        ),
    )
    enable_logical_replication: bool | None = Field(
        default=None,
        description=(
            "`wal_level` is `logical` from each endpoint's next start. Running endpoints are "
            "suspended for this. It cannot be disabled again."
        ),
    )
    durability: Literal["host", "region"] | None = Field(
        default=None,
        description=(
            "`region`: each commit waits until a second host of the region has it on its disk, so "
            "that the loss of a host loses no commit that was acknowledged. Commits take longer. "
            "`host`: a commit is on the disk of its own host. Refused with 422 if the region has "
            "no second host or no store of histories, or the project keeps no history."
        ),
    )
    masking_policy: Literal["refuse", "null", "keep"] | None = Field(
        default=None,
        description=(
            "What happens in anonymized branches to a column that may hold text and has no masking "
            "rule: `refuse`, the default, makes no data until there is a rule; `null` removes its "
            "values; `keep` leaves them, unless they look like personal data."
        ),
    )
    block_vpc_connections: Annotated[
        bool | None,
        NotOffered(
            "this server has no VPC endpoints; use allowed_ips to limit the addresses of clients",
            unless=(False,),
        ),
    ] = None
    hipaa: Annotated[
        bool | None,
        NotOffered(
            "the project's events, GET /projects/{project_id}/events, say who changed what",
            unless=(False,),
        ),
    ] = None
    # Clients send the lowest level, `base`, for every project. It is accepted, and has no effect.
    audit_log_level: Annotated[
        Literal["base", "extended", "full"] | None,
        NotOffered(
            "events, GET /projects/{project_id}/events, record every change; pg_settings such as "
            "log_statement record the statements on an endpoint",
            unless=("base",),
        ),
    ] = None
    maintenance_window: Annotated[
        JsonObject | None,
        NotOffered(
            "the platform does not restart endpoints for maintenance; the operator chooses when "
            "to upgrade the server"
        ),
    ] = None
    preload_libraries: Annotated[JsonObject | None, NotOffered(LIBRARIES)] = None

    def sent(self) -> project_settings.ProjectSettings:
        return project_settings.ProjectSettings(
            quota=self.quota.model_dump(exclude_none=True) if self.quota else None,
            allowed_ips=self.allowed_ips.sent() if self.allowed_ips else None,
            block_public_connections=self.block_public_connections,
            block_outbound_connections=self.block_outbound_connections,
            enable_logical_replication=self.enable_logical_replication,
            durability=Durability(self.durability) if self.durability else None,
            masking_policy=MaskingPolicy(self.masking_policy) if self.masking_policy else None,
        )


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
            endpoint_defaults=defaults.sent() if defaults else None,
            settings=self.settings.sent() if self.settings else None,
            **self.model_dump(exclude={"default_endpoint_settings", "settings"}),
        )


class UpdateProject(BaseModel):
    project: ProjectAttributes

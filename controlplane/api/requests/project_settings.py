"""The request fields of a project's `settings`."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from controlplane.address_ranges import parse_range
from controlplane.api.http.attributes import Attributes
from controlplane.api.http.fields import WHOLE, JsonObject, Text
from controlplane.api.http.unsupported import NotOffered
from controlplane.api.requests.endpoints import LIBRARIES
from controlplane.models import Durability
from controlplane.services.rules import project_settings
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
        )

"""The response fields of endpoints, and of what is read of their branches: schemas."""

from ninja import Field, Schema

from controlplane.api.endpoint_fields import with_response_fields
from controlplane.api.http.fields import Moment, Timestamp
from controlplane.api.responses.operations import OperationsOut
from controlplane.models import ATTRIBUTES, Endpoint


class EndpointSettingsOut(Schema):
    pg_settings: dict[str, str] = Field(default_factory=dict)
    pgbouncer_settings: dict[str, str] | None = None


@with_response_fields(ATTRIBUTES.values())
class EndpointOut(Schema):
    host: str
    id: str
    project_id: str
    branch_id: str
    region_id: str
    type: str
    current_state: str
    pending_state: str | None = None
    settings: EndpointSettingsOut
    last_active: Timestamp | None = None
    creation_source: str = "console"
    created_at: Timestamp
    updated_at: Timestamp
    started_at: Timestamp | None = None
    suspended_at: Timestamp | None = None
    proxy_host: str

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


class OfferedSettingOut(Schema):
    name: str = Field(description="The setting's name", examples=["work_mem"])
    type: str = Field(
        description="`bool`, `integer`, `real`, `enum` or `string`", examples=["integer"]
    )
    description: str = Field(
        description="The description by Postgres",
        examples=["Sets the maximum memory to be used for query workspaces."],
    )
    default: str = Field(
        description="The value if the endpoint's settings do not contain it", examples=["4MB"]
    )
    unit: str | None = Field(
        None, description="The unit of numbers that are sent without one", examples=["kB"]
    )
    min: str | None = Field(None, description="The minimum", examples=["64kB"])
    max: str | None = Field(
        None, description="The maximum on an endpoint of this size", examples=["256MB"]
    )
    values: list[str] | None = Field(
        None, description="The allowed values of an `enum`", examples=[["escape", "hex"]]
    )


class OfferedSettings(Schema):
    pg_settings: list[OfferedSettingOut] = Field(
        description="The settings that can be set, by name"
    )


class EndpointAndOperations(OneEndpoint, OperationsOut):
    pass


class LogLineOut(Schema):
    at: Moment | None = Field(
        None,
        description="When it was logged; absent for a line whose beginning was lost",
        examples=["2026-01-31T12:00:00.123000Z"],
    )
    source: str = Field(description="`postgres` or `pgbouncer`", examples=["postgres"])
    level: str = Field(
        description='As Postgres writes it, such as `LOG`, `ERROR` or `STATEMENT`; "" if unknown',
        examples=["LOG"],
    )
    pid: int | None = Field(
        None, description="The process that logged it, as `pg_backend_pid()`", examples=[4711]
    )
    message: str = Field(
        description="Its text, with the lines that continue it",
        examples=["database system is ready to accept connections"],
    )


class EndpointLogs(Schema):
    logs: list[LogLineOut] = Field(description="The lines, the oldest first")


class SessionOut(Schema):
    pid: int = Field(description="Its process, as `pg_backend_pid()`", examples=[4711])
    role: str | None = Field(None, description="Its role", examples=["neondb_owner"])
    database: str | None = Field(None, description="Its database", examples=["neondb"])
    application_name: str | None = Field(
        None, description="The client's `application_name`", examples=["psql"]
    )
    state: str | None = Field(
        None, description="As Postgres has it, such as `active` or `idle`", examples=["idle"]
    )
    pooled: bool = Field(
        description="Whether the pooler keeps it for the next transaction of any client; its last "
        "statement is then unknown",
        examples=[False],
    )
    backend_start: Moment | None = Field(
        None, description="When it began", examples=["2026-01-31T12:00:00.123000Z"]
    )
    xact_start: Moment | None = Field(
        None,
        description="When its open transaction began; absent if it has none",
        examples=["2026-01-31T12:00:00.123000Z"],
    )
    state_change: Moment | None = Field(
        None,
        description="Since when it has been in its state",
        examples=["2026-01-31T12:00:00.123000Z"],
    )
    last_statement: str | None = Field(
        None, description="The beginning of its last statement", examples=["SELECT 1"]
    )


class EndpointSessions(Schema):
    sessions: list[SessionOut] = Field(
        description="The clients' sessions, at most 100: the busy and the last used ones first"
    )
    last_active: Timestamp | None = Field(
        None, description="The time of the last activity", examples=["2026-01-31T12:00:00Z"]
    )
    suspends_at: Timestamp | None = Field(
        None,
        description="When the endpoint will be suspended if there is no more activity; absent if "
        "it is not active or is never suspended",
        examples=["2026-01-31T12:05:00Z"],
    )


class ColumnOut(Schema):
    name: str
    type: str = Field(description="The type, as Postgres writes it")
    nullable: bool
    generated: bool = Field(description="Whether it is generated from other columns")


class ReferencedTable(Schema):
    schema_name: str = Field(alias="schema")
    table: str
    columns: list[str]


class ConstraintOut(Schema):
    name: str
    type: str = Field(description="One of `primary_key`, `unique`, `foreign_key`")
    columns: list[str]
    referenced_table: ReferencedTable | None = None


class TableOut(Schema):
    schema_name: str = Field(alias="schema")
    name: str
    columns: list[ColumnOut]
    constraints: list[ConstraintOut]


class Tables(Schema):
    tables: list[TableOut]


class BranchSchema(Schema):
    sql: str | None = Field(None, description="If the format is `sql`")
    as_json: Tables | None = Field(None, alias="json", description="If the format is `json`")


class SchemaComparison(Schema):
    diff: str

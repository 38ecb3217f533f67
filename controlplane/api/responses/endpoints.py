"""The response fields of endpoints, and of what is read of their branches: schemas."""

from ninja import Field, Schema

from controlplane.api.endpoint_fields import with_response_fields
from controlplane.api.http.fields import Moment, Timestamp, found_at, told
from controlplane.api.responses.operations import OperationsOut
from controlplane.models import ATTRIBUTES, Endpoint

MOMENT = "2026-01-31T12:00:00.123000Z"


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

    resolve_region_id = found_at("project.region_id")
    resolve_proxy_host = found_at("project.region.host")


class OneEndpoint(Schema):
    endpoint: EndpointOut


class Endpoints(Schema):
    endpoints: list[EndpointOut]


class OfferedSettingOut(Schema):
    name: str = told("The setting's name", "work_mem")
    type: str = told("`bool`, `integer`, `real`, `enum` or `string`", "integer")
    description: str = told(
        "The description by Postgres", "Sets the maximum memory to be used for query workspaces."
    )
    default: str = told("The value if the endpoint's settings do not contain it", "4MB")
    unit: str | None = told("The unit of numbers that are sent without one", "kB", None)
    min: str | None = told("The minimum", "64kB", None)
    max: str | None = told("The maximum on an endpoint of this size", "256MB", None)
    values: list[str] | None = told("The allowed values of an `enum`", ["escape", "hex"], None)


class OfferedSettings(Schema):
    pg_settings: list[OfferedSettingOut] = Field(
        description="The settings that can be set, by name"
    )


class EndpointAndOperations(OneEndpoint, OperationsOut):
    pass


class LogLineOut(Schema):
    at: Moment | None = told(
        "When it was logged; absent for a line whose beginning was lost", MOMENT, None
    )
    source: str = told("`postgres` or `pgbouncer`", "postgres")
    level: str = told(
        'As Postgres writes it, such as `LOG`, `ERROR` or `STATEMENT`; "" if unknown', "LOG"
    )
    pid: int | None = told("The process that logged it, as `pg_backend_pid()`", 4711, None)
    message: str = told(
        "Its text, with the lines that continue it",
        "database system is ready to accept connections",
    )


class EndpointLogs(Schema):
    logs: list[LogLineOut] = Field(description="The lines, the oldest first")


class SessionOut(Schema):
    pid: int = told("Its process, as `pg_backend_pid()`", 4711)
    role: str | None = told("Its role", "neondb_owner", None)
    database: str | None = told("Its database", "neondb", None)
    application_name: str | None = told("The client's `application_name`", "psql", None)
    state: str | None = told("As Postgres has it, such as `active` or `idle`", "idle", None)
    pooled: bool = told(
        "Whether the pooler keeps it for the next transaction of any client; its last "
        "statement is then unknown",
        False,
    )
    backend_start: Moment | None = told("When it began", MOMENT, None)
    xact_start: Moment | None = told(
        "When its open transaction began; absent if it has none", MOMENT, None
    )
    state_change: Moment | None = told("Since when it has been in its state", MOMENT, None)
    last_statement: str | None = told("The beginning of its last statement", "SELECT 1", None)


class EndpointSessions(Schema):
    sessions: list[SessionOut] = Field(
        description="The clients' sessions, at most 100: the busy and the last used ones first"
    )
    last_active: Timestamp | None = told(
        "The time of the last activity", "2026-01-31T12:00:00Z", None
    )
    suspends_at: Timestamp | None = told(
        "When the endpoint will be suspended if there is no more activity; absent if "
        "it is not active or is never suspended",
        "2026-01-31T12:05:00Z",
        None,
    )


class ColumnOut(Schema):
    name: str
    type: str
    nullable: bool
    generated: bool


class ReferencedTable(Schema):
    schema_name: str = Field(alias="schema")
    table: str
    columns: list[str]


class ConstraintOut(Schema):
    name: str
    type: str
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

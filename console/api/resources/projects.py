"""The state of all projects of an account, which the management API returns in one answer."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from console.api.fields import JSONObject, inner, moment, number, own_id, required, text, whole


@dataclass(frozen=True)
class Region:
    id: str
    name: str
    default: bool
    # The major versions of Postgres that a project there can have; empty if the server does not
    # say.
    pg_versions: Sequence[int]

    @classmethod
    def read(cls, data: JSONObject) -> "Region":
        region_id = required(data, "region_id")
        versions = data.get("pg_versions")
        return cls(
            region_id,
            text(data, "name") or region_id,
            data.get("default") is True,
            [one for one in versions if type(one) is int] if isinstance(versions, list) else [],
        )


@dataclass(frozen=True)
class Usage:
    """What a project or a branch has consumed in the present period. Each is None if the server
    does not say."""

    # Seconds.
    active_time: int | None
    compute_time: int | None
    # Bytes.
    written: int | None
    transferred: int | None

    @classmethod
    def read(cls, data: JSONObject) -> "Usage":
        return cls(
            active_time=whole(data, "active_time_seconds"),
            compute_time=whole(data, "compute_time_seconds"),
            written=whole(data, "written_data_bytes"),
            transferred=whole(data, "data_transfer_bytes"),
        )


@dataclass(frozen=True)
class Project:
    id: str
    name: str
    region_id: str
    pg_version: int
    created_at: datetime | None
    # Seconds for which the history of branches is kept; None if the server does not say.
    history_retention: int | None
    # As the server returned them. Servers differ in which settings they have.
    settings: JSONObject
    default_endpoint_settings: JSONObject
    usage: Usage
    # When the period of the usage began.
    period_began: datetime | None
    # Of a deleted project.
    deleted_at: datetime | None
    recoverable_until: datetime | None
    # Seconds for which it could be recovered if it were deleted; None if the server does not say.
    recovery_period: int | None

    @classmethod
    def read(cls, data: JSONObject) -> "Project":
        project_id = own_id(data)
        return cls(
            id=project_id,
            name=text(data, "name") or project_id,
            region_id=text(data, "region_id"),
            pg_version=int(number(data, "pg_version")),
            created_at=moment(data, "created_at"),
            history_retention=whole(data, "history_retention_seconds"),
            settings=inner(data, "settings"),
            default_endpoint_settings=inner(data, "default_endpoint_settings"),
            usage=Usage.read(data),
            period_began=moment(data, "consumption_period_start"),
            deleted_at=moment(data, "deleted_at"),
            recoverable_until=moment(data, "recoverable_until"),
            recovery_period=whole(data, "recovery_period_seconds"),
        )


@dataclass(frozen=True)
class ProjectState:
    project_id: str
    active: int
    idle: int
    disabled: int
    unfinished_operations: int

    @classmethod
    def read(cls, data: JSONObject) -> "ProjectState":
        endpoints = inner(data, "endpoints")
        return cls(
            project_id=own_id(data, "project_id"),
            active=int(number(endpoints, "active")),
            idle=int(number(endpoints, "idle")),
            disabled=int(number(endpoints, "disabled")),
            unfinished_operations=int(number(data, "unfinished_operations")),
        )

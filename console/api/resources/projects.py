"""The state of all projects of an account, which the management API returns in one answer."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from console.api.fields import Id, JSONObject, NameOrId, Resource, count, inner, required, text


@dataclass(frozen=True)
class Region(Resource):
    id: Annotated[str, "region_id", required]
    name: Annotated[str, lambda data, name: text(data, name) or text(data, "region_id")]
    default: bool
    # The major versions of Postgres that a project there can have; empty if the server does not
    # say.
    pg_versions: Annotated[Sequence[int], lambda data, name: _versions(data.get(name))]


def _versions(found: object) -> list[int]:
    return [one for one in found if type(one) is int] if isinstance(found, list) else []


@dataclass(frozen=True)
class Usage(Resource):
    """What a project or a branch has consumed in the present period. Each is None if the server
    does not say."""

    # Seconds.
    active_time: Annotated[int | None, "active_time_seconds"]
    compute_time: Annotated[int | None, "compute_time_seconds"]
    # Bytes.
    written: Annotated[int | None, "written_data_bytes"]
    transferred: Annotated[int | None, "data_transfer_bytes"]


@dataclass(frozen=True)
class Project(Resource):
    id: Id
    name: NameOrId
    region_id: str
    pg_version: int
    created_at: datetime | None
    # Seconds for which the history of branches is kept; None if the server does not say.
    history_retention: Annotated[int | None, "history_retention_seconds"]
    # As the server returned them. Servers differ in which settings they have.
    settings: JSONObject
    default_endpoint_settings: JSONObject
    usage: Annotated[Usage, lambda data, _: Usage.read(data)]
    # When the period of the usage began.
    period_began: Annotated[datetime | None, "consumption_period_start"]
    # Of a deleted project.
    deleted_at: datetime | None
    recoverable_until: datetime | None
    # Seconds for which it could be recovered if it were deleted; None if the server does not say.
    recovery_period: Annotated[int | None, "recovery_period_seconds"]


InEndpoints = Annotated[int, lambda data, name: count(inner(data, "endpoints"), name)]


@dataclass(frozen=True)
class ProjectState(Resource):
    project_id: Id
    active: InEndpoints
    idle: InEndpoints
    disabled: InEndpoints
    unfinished_operations: int

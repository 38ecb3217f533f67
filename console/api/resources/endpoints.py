"""Endpoints as the management API returns them, with their sessions, metrics and settings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from console.api.errors import NonsenseAnswer
from console.api.fields import (
    Id,
    JSONObject,
    OtherId,
    Resource,
    inner,
    moment,
    number,
    objects,
    required,
    text,
    whole,
)


@dataclass(frozen=True)
class Endpoint(Resource):
    id: Id
    host: str
    project_id: OtherId
    branch_id: OtherId
    region_id: str
    type: str
    min_cu: Annotated[float, "autoscaling_limit_min_cu"]
    max_cu: Annotated[float, "autoscaling_limit_max_cu"]
    current_state: str
    # Present only in the answers to create, update and get-one requests.
    pending_state: str
    pg_settings: Annotated[Mapping[str, str], lambda data, _: _pg_settings(data)]
    pooler_enabled: bool
    disabled: bool
    last_active: datetime | None
    created_at: datetime | None
    updated_at: datetime | None
    # When it last became active, and when it last became idle.
    started_at: datetime | None
    suspended_at: datetime | None
    # All of it as the server returned it. `forms.endpoint_settings` reads the settings from it.
    returned: Annotated[JSONObject, lambda data, _: data]

    @property
    def pooled_host(self) -> str:
        """The host name for pooled connections: it has “-pooler” after the endpoint's id."""
        return self.host.replace(self.id, f"{self.id}-pooler", 1)


def _pg_settings(data: JSONObject) -> dict[str, str]:
    found = inner(inner(data, "settings"), "pg_settings")
    return {str(name): str(value) for name, value in found.items()}


@dataclass(frozen=True)
class Session(Resource):
    role: str
    database: str
    application_name: str
    state: str
    # Since when it is in that state.
    since: Annotated[datetime | None, "state_change"]
    pooled: bool
    # The beginning of its last statement; "" if it is unknown.
    last_statement: str


@dataclass(frozen=True)
class PgSetting(Resource):
    name: Annotated[str, required]
    description: str
    # The value that applies if the endpoint does not set one.
    default: str
    # The allowed values, in words.
    range: Annotated[str, lambda data, _: _range(data)]


def _range(data: JSONObject) -> str:
    values = data.get("values")
    if isinstance(values, list) and values:
        *others, last = map(str, values)
        return f"{', '.join(others)} or {last}" if others else last
    low, high, unit = text(data, "min"), text(data, "max"), text(data, "unit")
    if low and high:
        return f"{low} to {high}" + (f"; a bare number is in units of {unit}" if unit else "")
    return {"bool": "on or off", "string": "text"}.get(text(data, "type"), "")


# The most points that are read of one answer. Perch returns no more.
MAX_POINTS = 1500


@dataclass(frozen=True)
class Point:
    """What the samples of one step add up to."""

    # The beginning of the step.
    at: datetime
    # How many samples there are: one for each minute in which the endpoint ran.
    samples: int
    _returned: JSONObject

    def value(self, name: str) -> float:
        """Return a metric by the API's name; 0 if the server does not report it."""
        return max(0.0, number(self._returned, name))


@dataclass(frozen=True)
class Metrics:
    """An endpoint's metrics from `since` to `until`. Steps in which it did not run are missing."""

    since: datetime
    until: datetime
    # Seconds.
    step: int
    # The oldest first.
    points: Sequence[Point]

    @classmethod
    def read(cls, data: JSONObject) -> "Metrics":
        since, until, step = moment(data, "from"), moment(data, "to"), whole(data, "step")
        if since is None or until is None or not step or since >= until:
            raise NonsenseAnswer("The response has no valid “from”, “to” and “step”.")
        read = [
            Point(at, whole(item, "samples") or 0, item)
            for item in objects(data, "points")[-MAX_POINTS:]
            if (at := moment(item, "at")) and since <= at < until
        ]
        return cls(since, until, step, sorted(read, key=lambda point: point.at))

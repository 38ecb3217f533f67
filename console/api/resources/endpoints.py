"""The Postgres settings that an endpoint may be given, as the management API lists them."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from console.api.fields import JSONObject, identifier, inner, moment, number, own_id, required, text


@dataclass(frozen=True)
class Endpoint:
    id: str
    host: str
    project_id: str
    branch_id: str
    region_id: str
    type: str
    proxy_host: str
    min_cu: float
    max_cu: float
    current_state: str
    # Present only in the answers to create, update and get-one requests.
    pending_state: str
    pg_settings: Mapping[str, str]
    pooler_enabled: bool
    disabled: bool
    last_active: datetime | None
    created_at: datetime | None
    updated_at: datetime | None
    # When it last became active, and when it last became idle.
    started_at: datetime | None
    suspended_at: datetime | None
    # All of it as the server returned it. `forms.endpoint_settings` reads the settings from it.
    returned: JSONObject

    @classmethod
    def read(cls, data: JSONObject) -> "Endpoint":
        pg_settings = inner(inner(data, "settings"), "pg_settings")
        return cls(
            id=own_id(data),
            host=text(data, "host"),
            project_id=identifier(data, "project_id"),
            branch_id=identifier(data, "branch_id"),
            region_id=text(data, "region_id"),
            type=text(data, "type"),
            proxy_host=text(data, "proxy_host"),
            min_cu=number(data, "autoscaling_limit_min_cu"),
            max_cu=number(data, "autoscaling_limit_max_cu"),
            current_state=text(data, "current_state"),
            pending_state=text(data, "pending_state"),
            pg_settings={str(name): str(value) for name, value in pg_settings.items()},
            pooler_enabled=data.get("pooler_enabled") is True,
            disabled=data.get("disabled") is True,
            last_active=moment(data, "last_active"),
            created_at=moment(data, "created_at"),
            updated_at=moment(data, "updated_at"),
            started_at=moment(data, "started_at"),
            suspended_at=moment(data, "suspended_at"),
            returned=data,
        )

    @property
    def pooled_host(self) -> str:
        """The host name for pooled connections: it has “-pooler” after the endpoint's id."""
        return self.host.replace(self.id, f"{self.id}-pooler", 1)


@dataclass(frozen=True)
class Session:
    role: str
    database: str
    application_name: str
    state: str
    # Since when it is in that state.
    since: datetime | None
    pooled: bool
    # The beginning of its last statement; "" if it is unknown.
    last_statement: str

    @classmethod
    def read(cls, data: JSONObject) -> "Session":
        names = ("role", "database", "application_name", "state", "last_statement")
        words = {name: text(data, name) for name in names}
        return cls(**words, since=moment(data, "state_change"), pooled=data.get("pooled") is True)


@dataclass(frozen=True)
class PgSetting:
    name: str
    description: str
    # The value that applies if the endpoint does not set one.
    default: str
    # The allowed values, in words.
    range: str

    @classmethod
    def read(cls, data: JSONObject) -> "PgSetting":
        return cls(
            name=required(data, "name"),
            description=text(data, "description"),
            default=text(data, "default"),
            range=_range(data),
        )


def _range(data: JSONObject) -> str:
    values = data.get("values")
    if isinstance(values, list) and values:
        *others, last = map(str, values)
        return f"{', '.join(others)} or {last}" if others else last
    low, high, unit = text(data, "min"), text(data, "max"), text(data, "unit")
    if low and high:
        return f"{low} to {high}" + (f"; a bare number is in units of {unit}" if unit else "")
    return {"bool": "on or off", "string": "text"}.get(text(data, "type"), "")

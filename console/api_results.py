"""What the management API returns, as frozen values.

Reading is tolerant: unknown fields are ignored, absent ones get a harmless value, and enum values
stay strings, so that the console also runs against other servers of this API. Only a resource
without its id is nonsense.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

from console.api_errors import NonsenseAnswer

T = TypeVar("T")
JSONObject = Mapping[str, Any]

# What can stand in an address of the console.
IDENTIFIER = re.compile(r"[-a-zA-Z0-9_]+")
# What a float holds to the unit, and a size in bytes is never near.
LARGEST = 2**63
# No server gives fewer at once, however many are asked for.
SHORTEST_PAGE = 100
# A clock in another zone must be able to tell of it.
LAST_YEAR = 9999


def text(data: JSONObject, name: str) -> str:
    """ "" where it is absent."""
    value = data.get(name)
    return value if isinstance(value, str) else ""


def required(data: JSONObject, name: str) -> str:
    value = text(data, name)
    if not value:
        raise NonsenseAnswer(f"The answer lacks “{name}”.")
    return value


def identifier(data: JSONObject, name: str) -> str:
    """An id of something; "" where there is none that could be asked for."""
    value = text(data, name)
    return value if IDENTIFIER.fullmatch(value) else ""


def own_id(data: JSONObject, name: str = "id") -> str:
    value = identifier(data, name)
    if not value:
        raise NonsenseAnswer(f"The answer has no good “{name}”.")
    return value


def number(data: JSONObject, name: str, default: float = 0) -> float:
    value = data.get(name)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    # JSON as Python reads it knows infinities, what is no number at all, and endless integers.
    return value if is_number and value is not None and abs(value) < LARGEST else default


def whole(data: JSONObject, name: str) -> int | None:
    """A number that counts or measures something; None where there is none."""
    found = number(data, name, -1)
    return int(found) if found >= 0 else None


def limiting_id(data: JSONObject, name: str) -> str:
    """An id of what something is limited to: "", which means no limit, only where none is given."""
    return own_id(data, name) if data.get(name) else ""


def inner(data: JSONObject, name: str) -> JSONObject:
    """An object within; an empty one where there is none."""
    value = data.get(name)
    return value if isinstance(value, Mapping) else {}


def texts(data: JSONObject, name: str) -> list[str]:
    """What is text of a list; nothing where there is none."""
    value = data.get(name)
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def moment(data: JSONObject, name: str) -> datetime | None:
    """A timestamp; None where absent, unreadable, or one of the API's zero timestamps."""
    try:
        read = datetime.fromisoformat(text(data, name))
    except ValueError:
        return None
    if read.tzinfo is None:
        read = read.replace(tzinfo=UTC)
    return read if LAST_YEAR > read.year > 2000 else None


def stamp(when: datetime) -> str:
    """A timestamp as the API takes it, to the second."""
    return when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def objects(data: object, name: str = "") -> list[JSONObject]:
    """The list of objects under a name, or the answer itself where it is a bare list."""
    value = data.get(name) if name and isinstance(data, Mapping) else data
    if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
        raise NonsenseAnswer(f"The answer has no list “{name}”." if name else "Not a list.")
    return value


def one(data: object, name: str) -> JSONObject:
    value = data.get(name) if isinstance(data, Mapping) else None
    if not isinstance(value, Mapping):
        raise NonsenseAnswer(f"The answer has no “{name}”.")
    return value


@dataclass(frozen=True)
class Page(Generic[T]):
    items: Sequence[T]
    # Asks for the page that follows; "" on the last one.
    cursor: str

    @classmethod
    def read(
        cls, data: object, name: str, read_item: Callable[[JSONObject], T], *, limit: int
    ) -> "Page[T]":
        items = [read_item(item) for item in objects(data, name)]
        pagination = data.get("pagination") if isinstance(data, Mapping) else None
        cursor = text(pagination, "cursor") if isinstance(pagination, Mapping) else ""
        # The API sends a cursor with the last page too: an empty page is the sign of the end, or
        # one that is shorter than any that a server gives.
        return cls(items, cursor if len(items) >= min(limit, SHORTEST_PAGE) else "")


@dataclass(frozen=True)
class User:
    login: str
    email: str
    plan: str

    @classmethod
    def read(cls, data: JSONObject) -> "User":
        return cls(login=text(data, "login"), email=text(data, "email"), plan=text(data, "plan"))

    @property
    def shown_name(self) -> str:
        return self.login or self.email or "signed in"


@dataclass(frozen=True)
class Region:
    id: str
    name: str
    default: bool

    @classmethod
    def read(cls, data: JSONObject) -> "Region":
        region_id = required(data, "region_id")
        return cls(region_id, text(data, "name") or region_id, data.get("default") is True)


@dataclass(frozen=True)
class Project:
    id: str
    name: str
    region_id: str
    pg_version: int
    created_at: datetime | None
    # As the server has them; each has its own.
    settings: JSONObject
    default_endpoint_settings: JSONObject

    @classmethod
    def read(cls, data: JSONObject) -> "Project":
        project_id = own_id(data)
        return cls(
            id=project_id,
            name=text(data, "name") or project_id,
            region_id=text(data, "region_id"),
            pg_version=int(number(data, "pg_version")),
            created_at=moment(data, "created_at"),
            settings=inner(data, "settings"),
            default_endpoint_settings=inner(data, "default_endpoint_settings"),
        )


@dataclass(frozen=True)
class Branch:
    id: str
    name: str
    parent_id: str
    current_state: str
    default: bool
    created_at: datetime | None
    # Bytes; None while the API has not measured it.
    logical_size: int | None
    # When it goes by itself, where it does.
    expires_at: datetime | None = None
    # Neither deleted nor reset while it is.
    protected: bool = False
    # Made with its source's schemas, and no rows.
    schema_only: bool = False
    # When its data was last replaced by another's.
    last_reset_at: datetime | None = None
    # Of which moment of its parent it is a copy.
    parent_timestamp: datetime | None = None
    # Whose account made it; "" where nobody says.
    created_by: str = ""

    @classmethod
    def read(cls, data: JSONObject) -> "Branch":
        branch_id = own_id(data)
        creator = data.get("created_by")
        return cls(
            id=branch_id,
            name=text(data, "name") or branch_id,
            parent_id=identifier(data, "parent_id"),
            current_state=text(data, "current_state"),
            default=data.get("default") is True or data.get("primary") is True,
            created_at=moment(data, "created_at"),
            logical_size=whole(data, "logical_size"),
            expires_at=moment(data, "expires_at"),
            protected=data.get("protected") is True,
            schema_only=text(data, "init_source") == "schema-only",
            last_reset_at=moment(data, "last_reset_at"),
            parent_timestamp=moment(data, "parent_timestamp"),
            created_by=text(creator, "name") if isinstance(creator, Mapping) else "",
        )


@dataclass(frozen=True)
class Database:
    name: str
    owner_name: str

    @classmethod
    def read(cls, data: JSONObject) -> "Database":
        return cls(name=required(data, "name"), owner_name=text(data, "owner_name"))


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
    # In create, update and get-one answers only.
    pending_state: str
    pg_settings: Mapping[str, str]
    pooler_enabled: bool
    pooler_mode: str
    disabled: bool
    suspend_timeout_seconds: int
    last_active: datetime | None
    created_at: datetime | None
    updated_at: datetime | None
    # When it last became active, and when idle.
    started_at: datetime | None
    suspended_at: datetime | None

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
            pooler_mode=text(data, "pooler_mode"),
            disabled=data.get("disabled") is True,
            suspend_timeout_seconds=int(number(data, "suspend_timeout_seconds")),
            last_active=moment(data, "last_active"),
            created_at=moment(data, "created_at"),
            updated_at=moment(data, "updated_at"),
            started_at=moment(data, "started_at"),
            suspended_at=moment(data, "suspended_at"),
        )

    @property
    def pooled_host(self) -> str:
        """The host that goes through the pooler: “-pooler” after the endpoint's id."""
        return self.host.replace(self.id, f"{self.id}-pooler", 1)

"""What the management API returns, as frozen values.

Reading is tolerant, so that the console also works with other servers of this API: unknown fields
are ignored, absent ones get a harmless value, and enum values stay strings. An answer is refused
only if a resource in it lacks its id, or another field that the console cannot do without.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

from console.api_errors import NonsenseAnswer

T = TypeVar("T")
JSONObject = Mapping[str, Any]

# An id that may be part of an address of the console.
IDENTIFIER = re.compile(r"[-a-zA-Z0-9_]+")
# Numbers of this size and above are ignored. No size in bytes comes near it.
LARGEST = 2**63
# No server returns shorter pages than this, however many items are requested.
SHORTEST_PAGE = 100
# Timestamps of this year are ignored: in another time zone they could be beyond Python's last year.
LAST_YEAR = 9999


def text(data: JSONObject, name: str) -> str:
    """Return the text of a field; "" if it is absent or is no text."""
    value = data.get(name)
    return value if isinstance(value, str) else ""


def required(data: JSONObject, name: str) -> str:
    value = text(data, name)
    if not value:
        raise NonsenseAnswer(f"The answer lacks “{name}”.")
    return value


def identifier(data: JSONObject, name: str) -> str:
    """Return the id of something; "" if there is none, or if it cannot be part of an address."""
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
    # Python's JSON parser accepts infinity, NaN and integers of any length.
    return value if is_number and value is not None and abs(value) < LARGEST else default


def whole(data: JSONObject, name: str) -> int | None:
    """Return a count or a measure; None if it is absent or negative."""
    found = number(data, name, -1)
    return int(found) if found >= 0 else None


def limiting_id(data: JSONObject, name: str) -> str:
    """Return the id of what something is limited to; "" if the field is absent: no limit.

    Raises NonsenseAnswer if it holds no valid id."""
    return own_id(data, name) if data.get(name) else ""


def inner(data: JSONObject, name: str) -> JSONObject:
    """Return an object within the object; an empty one if it is absent."""
    value = data.get(name)
    return value if isinstance(value, Mapping) else {}


def texts(data: JSONObject, name: str) -> list[str]:
    """Return the texts in a list; an empty list if it is absent."""
    value = data.get(name)
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def moment(data: JSONObject, name: str) -> datetime | None:
    """Return a timestamp; None if it is absent, unreadable, or one of the API's zero timestamps."""
    try:
        read = datetime.fromisoformat(text(data, name))
    except ValueError:
        return None
    if read.tzinfo is None:
        read = read.replace(tzinfo=UTC)
    return read if LAST_YEAR > read.year > 2000 else None


def stamp(when: datetime) -> str:
    """Format a timestamp as the API accepts it, to the second."""
    return when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def objects(data: object, name: str = "") -> list[JSONObject]:
    """Return the list of objects under a name or, without a name, the answer itself.

    Raises NonsenseAnswer if that is no list of objects.
    """
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
    # Requests the next page; "" on the last one.
    cursor: str

    @classmethod
    def read(
        cls, data: object, name: str, read_item: Callable[[JSONObject], T], *, limit: int
    ) -> "Page[T]":
        items = [read_item(item) for item in objects(data, name)]
        pagination = data.get("pagination") if isinstance(data, Mapping) else None
        cursor = text(pagination, "cursor") if isinstance(pagination, Mapping) else ""
        # The API returns a cursor with the last page too. A page shorter than the limit, and
        # shorter than any server's limit, is the last one.
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
    # As the server returned them. Servers differ in which settings they have.
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
    # Bytes; None until the API has measured it.
    logical_size: int | None
    # When the branch will be deleted automatically, if it will.
    expires_at: datetime | None = None
    # A protected branch can be neither deleted nor reset.
    protected: bool = False
    # Created with its source's schemas and none of its rows.
    schema_only: bool = False
    # When its data was last replaced by another branch's.
    last_reset_at: datetime | None = None
    # The moment of its parent whose data it was copied from.
    parent_timestamp: datetime | None = None
    # The name of the account that created it; "" if the server does not say.
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
    # Present only in the answers to create, update and get-one requests.
    pending_state: str
    pg_settings: Mapping[str, str]
    pooler_enabled: bool
    pooler_mode: str
    disabled: bool
    suspend_timeout_seconds: int
    last_active: datetime | None
    created_at: datetime | None
    updated_at: datetime | None
    # When it last became active, and when it last became idle.
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
        """The host name for pooled connections: it has “-pooler” after the endpoint's id."""
        return self.host.replace(self.id, f"{self.id}-pooler", 1)

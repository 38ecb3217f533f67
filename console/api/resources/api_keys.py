"""API keys as the management API returns them."""

from dataclasses import dataclass
from datetime import UTC, datetime

from console.api.errors import NonsenseAnswer
from console.api.fields import JSONObject, Resource, limiting_id, moment, text, whole


@dataclass(frozen=True)
class User(Resource):
    login: str
    email: str
    plan: str

    @property
    def shown_name(self) -> str:
        return self.login or self.email or "signed in"


@dataclass(frozen=True)
class KeyLimits:
    """What a key may do, and until when."""

    # The only project that the key may see; "" for every project of the account.
    project_id: str = ""
    read_only: bool = False
    expires_at: datetime | None = None

    @classmethod
    def read(cls, data: JSONObject) -> "KeyLimits | None":
        if not isinstance(data.get("read_only"), bool):
            return None
        return cls(
            project_id=limiting_id(data, "project_id"),
            read_only=data["read_only"],
            expires_at=moment(data, "expires_at"),
        )

    @property
    def has_expired(self) -> bool:
        return self.expires_at is not None and self.expires_at <= datetime.now(UTC)


@dataclass(frozen=True)
class OwnKey:
    """What the key that sends the request may do, as the server says."""

    # None if the server does not report it; only Perch does.
    limits: "KeyLimits | None"
    is_operator: bool
    # None if the server does not say.
    id: int | None = None

    @classmethod
    def read(cls, data: JSONObject) -> "OwnKey":
        return cls(KeyLimits.read(data), data.get("operator") is True, whole(data, "api_key_id"))


@dataclass(frozen=True)
class ApiKey:
    id: int
    name: str
    created_at: datetime | None
    last_used_at: datetime | None
    last_used_from: str
    # None if the server does not report it; its keys have no limits.
    limits: "KeyLimits | None"

    @classmethod
    def read(cls, data: JSONObject) -> "ApiKey":
        key_id = data.get("id")
        if not isinstance(key_id, int) or isinstance(key_id, bool) or key_id < 0:
            raise NonsenseAnswer("The response has an API key without an id.")
        return cls(
            id=key_id,
            name=text(data, "name"),
            created_at=moment(data, "created_at"),
            last_used_at=moment(data, "last_used_at"),
            last_used_from=text(data, "last_used_from_addr"),
            limits=KeyLimits.read(data),
        )


@dataclass(frozen=True)
class NewApiKey:
    id: int
    name: str
    # The secret itself, which the API returns only this once.
    key: str
    # As the server understood the limits.
    limits: KeyLimits | None

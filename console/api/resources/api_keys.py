"""API keys as the management API returns them."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated

from console.api.errors import NonsenseAnswer
from console.api.fields import JSONObject, Resource, limiting_id, moment, required


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
        """Return None if the server does not report limits; only Perch does."""
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


Limits = Annotated[KeyLimits | None, lambda data, _: KeyLimits.read(data)]


@dataclass(frozen=True)
class OwnKey(Resource):
    """What the key that sends the request may do, as the server says."""

    limits: Limits
    is_operator: Annotated[bool, "operator"]
    # None if the server does not say.
    id: Annotated[int | None, "api_key_id"] = None


def _key_id(data: JSONObject, name: str) -> int:
    key_id = data.get(name)
    if not isinstance(key_id, int) or isinstance(key_id, bool) or key_id < 0:
        raise NonsenseAnswer("The response has an API key without an id.")
    return key_id


@dataclass(frozen=True)
class ApiKey(Resource):
    id: Annotated[int, _key_id]
    name: str
    created_at: datetime | None
    last_used_at: datetime | None
    last_used_from: Annotated[str, "last_used_from_addr"]
    limits: Limits


@dataclass(frozen=True)
class NewApiKey(Resource):
    name: str
    # The secret itself, which the API returns only this once.
    key: Annotated[str, required]
    # As the server understood the limits.
    limits: Limits

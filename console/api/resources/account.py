"""What belongs to an account, as the management API returns it: its user, its API keys, and its
webhooks with the calls for them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated
from urllib.parse import urlsplit

from console.api.errors import NonsenseAnswer
from console.api.fields import (
    Id,
    JSONObject,
    Resource,
    inner,
    limiting_id,
    required,
    text,
    whole,
)
from console.api.transport import Calls, may_be_missing


@dataclass(frozen=True)
class User(Resource):
    login: str
    email: str
    plan: str

    @property
    def shown_name(self) -> str:
        return self.login or self.email or "signed in"


@dataclass(frozen=True)
class KeyLimits(Resource):
    """What a key may do, and until when."""

    # The only project that the key may see; "" for every project of the account.
    project_id: Annotated[str, limiting_id] = ""
    read_only: bool = False
    expires_at: datetime | None = None

    @property
    def has_expired(self) -> bool:
        return self.expires_at is not None and self.expires_at <= datetime.now(UTC)


def _limits(data: JSONObject, _: str) -> KeyLimits | None:
    """Return None if the server does not report limits; only Perch does."""
    return KeyLimits.read(data) if isinstance(data.get("read_only"), bool) else None


Limits = Annotated[KeyLimits | None, _limits]


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


ALL_EVENTS = "*"


@dataclass(frozen=True)
class Webhook(Resource):
    id: Id
    url: str
    description: str
    # The only project whose events are sent; "" for every project of the account.
    project_id: Annotated[str, limiting_id]
    # ALL_EVENTS alone stands for every type, including types added later.
    event_types: Sequence[str]
    enabled: bool
    # Why the service has disabled the webhook, in words; "" if it has not.
    disabled_reason: str
    # None while deliveries succeed.
    failing_since: datetime | None
    # Why the last attempt failed, in words; "" if it did not, or if the server does not say.
    last_error: str
    created_at: datetime | None
    # Signs what is sent. Present only in the answers that create or rotate it.
    secret: str

    @property
    def title(self) -> str:
        """Its description, or else the host that it sends to."""
        return self.description or urlsplit(self.url).hostname or self.url

    @property
    def is_failing(self) -> bool:
        return self.enabled and self.failing_since is not None


@dataclass(frozen=True)
class Delivery(Resource):
    id: Id
    event_type: str
    status: str
    attempts: int
    created_at: datetime | None
    next_attempt_at: datetime | None
    # About the last attempt: the receiver's status, and why it failed.
    response_status: Annotated[int | None, lambda data, _: whole(_last(data), "status_code")]
    error: Annotated[str, lambda data, name: text(_last(data), name)]


def _last(data: JSONObject) -> JSONObject:
    return inner(data, "last_attempt")


class WebhookCalls(Calls):
    def list(self) -> "list[Webhook]":
        with may_be_missing("The server does not support webhooks."):
            return self._list(Webhook, "webhooks")

    def get(self, webhook_id: str) -> Webhook:
        return self._one(Webhook, "webhook", "webhooks", webhook_id)

    def create(self, body: JSONObject) -> Webhook:
        """Create a webhook. The one returned has its secret."""
        return self._make(Webhook, "webhook", "webhooks", body=body)

    def update(self, webhook_id: str, body: JSONObject) -> None:
        self.transport.send("PATCH", "webhooks", webhook_id, body=body)

    def rotate_secret(self, webhook_id: str) -> Webhook:
        """Give the webhook a new secret, which is in the one returned. The previous secret stays
        valid for a while."""
        return self._make(Webhook, "webhook", "webhooks", webhook_id, "rotate_secret")

    def delete(self, webhook_id: str) -> None:
        self.transport.send("DELETE", "webhooks", webhook_id)

    def test(self, webhook_id: str) -> None:
        self.transport.send("POST", "webhooks", webhook_id, "test")

    def deliveries(self, webhook_id: str, *, limit: int) -> "Sequence[Delivery]":
        """Return the latest deliveries, the newest first."""
        return self._list(Delivery, "webhooks", webhook_id, "deliveries", query={"limit": limit})

    def resend(self, webhook_id: str, delivery_id: str) -> None:
        self.transport.send("POST", "webhooks", webhook_id, "deliveries", delivery_id, "resend")

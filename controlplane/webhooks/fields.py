"""The request and response fields of webhooks and of their deliveries."""

from typing import Annotated, Any

from ninja import Field, Schema
from pydantic import BaseModel, StringConstraints

from controlplane.api.http.fields import (
    Attributes,
    Stated,
    Text,
    Timestamp,
    found_at,
    found_if_any,
    several,
)
from controlplane.api.responses.shared import Cursor
from controlplane.events.recording import as_message
from controlplane.models import DeliveryStatus, WebhookDelivery
from controlplane.models.webhook import ALL_EVENTS
from controlplane.webhooks.subscriptions import EVENT_TYPES

_BASE64 = "[A-Za-z0-9+/]"
Description = Annotated[Text, StringConstraints(max_length=256)]
Url = Annotated[
    Text,
    Field(description="The `https://…` address that events are posted to"),
    Stated(pattern="^https?://[!-~]+$"),
]
EventTypes = Annotated[
    list[Annotated[Text, Stated(enum=[ALL_EVENTS, *EVENT_TYPES])]],
    Stated(minItems=1),
    Field(
        max_length=1000, description='the types of events; ["*"] stands for all, also later ones'
    ),
]
Secret = Annotated[
    Text,
    Field(
        description="`whsec_` followed by the base64 of 24 to 64 random bytes; generated if absent"
    ),
    # The pattern covers secrets of 24 to 62 bytes. The server also accepts 63 and 64.
    Stated(pattern=f"^whsec_(?:{_BASE64}{{4}}){{8,20}}(?:{_BASE64}{{2}}==|{_BASE64}{{3}}=)?$"),
]
ProjectId = Annotated[
    Text, Field(description="the only project whose events are sent; without it, all projects")
]


class NewWebhook(Attributes):
    url: Url
    event_types: EventTypes
    project_id: ProjectId | None = None
    description: Description = ""
    enabled: bool = True
    secret: Secret | None = None


class CreateWebhook(BaseModel):
    webhook: NewWebhook


class ChangedWebhook(Attributes):
    url: Url | None = None
    event_types: EventTypes | None = None
    project_id: ProjectId | None = None
    description: Description | None = None
    enabled: bool | None = None


class UpdateWebhook(BaseModel):
    webhook: ChangedWebhook


class NewSecret(Attributes):
    secret: Secret | None = None


class RotateSecret(BaseModel):
    webhook: NewSecret


class WebhooksQuery(Schema):
    project_id: Text | None = None


class DeliveriesQuery(Schema):
    cursor: Text | None = None
    limit: int = Field(100, ge=1, le=400)
    status: Annotated[Text, Stated(pattern=f"^{several(DeliveryStatus.values)}$")] | None = Field(
        None, description="`pending`, `delivered` or `failed`, or several separated by commas"
    )


class WebhookOut(Schema):
    id: str
    url: str
    event_types: list[str]
    project_id: str | None = None
    description: str
    enabled: bool
    disabled_reason: str | None = Field(None, description="why Perch disabled it")
    failing_since: Timestamp | None = Field(
        None, description="when the first of the consecutive failed attempts was made"
    )
    last_error: str | None = Field(None, description="why the last of these attempts failed")
    previous_secret_expires_at: Timestamp | None = Field(
        None, description="until when messages are also signed with the previous secret"
    )
    created_at: Timestamp
    updated_at: Timestamp

    resolve_disabled_reason = found_if_any("disabled_reason")
    resolve_last_error = found_if_any("last_error")
    resolve_previous_secret_expires_at = found_at("previous_secret_until")


class WebhookWithSecret(WebhookOut):
    secret: str = Field(description="shown only in this response")


class OneWebhook(Schema):
    webhook: WebhookOut


class OneWebhookWithSecret(Schema):
    webhook: WebhookWithSecret


class Webhooks(Schema):
    webhooks: list[WebhookOut]


class AttemptOut(Schema):
    at: Timestamp
    duration_ms: int
    status_code: int | None = Field(
        None, description="the status code of the receiver's response, if there was one"
    )
    body: str = Field(description="the beginning of the response")
    error: str | None = Field(None, description="why it failed, if it did")


class DeliveryOut(Schema):
    id: str
    webhook_id: str
    event_id: str
    event_type: str
    status: str
    attempts: int
    created_at: Timestamp
    next_attempt_at: Timestamp | None = None
    ended_at: Timestamp | None = None
    last_attempt: AttemptOut | None = None

    resolve_id = found_at("public_id")
    resolve_event_type = found_at("event.type")

    @staticmethod
    def resolve_event_id(delivery: WebhookDelivery) -> str:
        return str(delivery.event_id)

    @staticmethod
    def resolve_last_attempt(delivery: WebhookDelivery) -> dict[str, Any] | None:
        if delivery.attempted_at is None:
            return None
        return {
            "at": delivery.attempted_at,
            "duration_ms": delivery.duration_ms,
            "status_code": delivery.response_status,
            "body": delivery.response_body,
            "error": delivery.error or None,
        }


class DeliveryWithMessage(DeliveryOut):
    message: dict[str, Any] = Field(
        description="the message that is sent: type, timestamp and data"
    )

    @staticmethod
    def resolve_message(delivery: WebhookDelivery) -> dict[str, Any]:
        return as_message(delivery.event)


class OneDelivery(Schema):
    delivery: DeliveryOut


class OneDeliveryWithMessage(Schema):
    delivery: DeliveryWithMessage


class DeliveriesPage(Schema):
    deliveries: list[DeliveryOut]
    pagination: Cursor | None = None

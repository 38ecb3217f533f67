"""`/webhooks`: the URLs to which an account's events are posted, and the deliveries to them."""

from typing import Any

from ninja import Body, Query

from controlplane.api.http.auth import AuthenticatedRequest
from controlplane.api.http.pagination import page_of
from controlplane.api.http.routing import Router
from controlplane.models import Webhook
from controlplane.webhooks import deliveries, subscriptions
from controlplane.webhooks.fields import (
    CreateWebhook,
    DeliveriesPage,
    DeliveriesQuery,
    OneDelivery,
    OneDeliveryWithMessage,
    OneWebhook,
    OneWebhookWithSecret,
    RotateSecret,
    UpdateWebhook,
    Webhooks,
    WebhooksQuery,
)
from controlplane.webhooks.subscriptions import WebhookChanges, WebhookSpec

router = Router(tags=["webhooks"])

WEBHOOK = "/webhooks/{webhook_id}"
DELIVERIES = WEBHOOK + "/deliveries"
DELIVERY = DELIVERIES + "/{delivery_id}"


@router.post(
    "/webhooks",
    response={201: OneWebhookWithSecret},
    summary="Create a webhook",
    description="For the account, or for one project. Only this response shows the secret. An "
    "unknown type of event is refused, with the list of types.",
)
def create_webhook(
    request: AuthenticatedRequest, body: CreateWebhook
) -> tuple[int, dict[str, Any]]:
    spec = WebhookSpec(**body.webhook.model_dump())
    return 201, _with_secret(*subscriptions.create_webhook(request.auth, spec))


@router.get("/webhooks", response=Webhooks, summary="List the webhooks")
def list_webhooks(request: AuthenticatedRequest, query: Query[WebhooksQuery]) -> dict[str, Any]:
    """Lists the webhooks of the account and of its projects. With `project_id`, lists those of one
    project."""
    return {"webhooks": subscriptions.list_webhooks(request.auth, project_id=query.project_id)}


@router.get(WEBHOOK, response=OneWebhook, summary="Get a webhook")
def get_webhook(request: AuthenticatedRequest, webhook_id: str) -> dict[str, Any]:
    """Returns the webhook without its secret."""
    return {"webhook": subscriptions.get_webhook(request.auth, webhook_id)}


@router.patch(
    WEBHOOK,
    response=OneWebhook,
    summary="Change a webhook",
    description="If the webhook is enabled again or gets another URL, pending deliveries are "
    "sent immediately.",
)
def update_webhook(
    request: AuthenticatedRequest, webhook_id: str, body: UpdateWebhook
) -> dict[str, Any]:
    changes = WebhookChanges(**body.webhook.model_dump())
    return {"webhook": subscriptions.update_webhook(request.auth, webhook_id, changes)}


@router.delete(WEBHOOK, response=OneWebhook, summary="Delete a webhook and its pending deliveries")
def delete_webhook(request: AuthenticatedRequest, webhook_id: str) -> dict[str, Any]:
    """Deletes the webhook permanently, with the record of its deliveries. Deliveries that are still
    pending are not sent."""
    return {"webhook": subscriptions.delete_webhook(request.auth, webhook_id)}


@router.post(
    WEBHOOK + "/rotate_secret",
    response=OneWebhookWithSecret,
    summary="Rotate a webhook's secret",
    description="The response contains the new secret, which is not shown again. For 24 hours, "
    "messages are also signed with the previous secret.",
)
def rotate_webhook_secret(
    request: AuthenticatedRequest, webhook_id: str, body: Body[RotateSecret | None] = None
) -> dict[str, Any]:
    wanted = body.webhook.secret if body else None
    return _with_secret(*subscriptions.rotate_secret(request.auth, webhook_id, wanted))


@router.post(
    WEBHOOK + "/test",
    response={201: OneDelivery},
    summary="Test a webhook",
    description="Sends an event `webhook.test` once, before pending deliveries. The delivery "
    "shows the result.",
)
def test_webhook(request: AuthenticatedRequest, webhook_id: str) -> tuple[int, dict[str, Any]]:
    return 201, {"delivery": deliveries.test_webhook(request.auth, webhook_id)}


@router.get(
    DELIVERIES, response=DeliveriesPage, summary="List a webhook's deliveries, the newest first"
)
def list_webhook_deliveries(
    request: AuthenticatedRequest, webhook_id: str, query: Query[DeliveriesQuery]
) -> dict[str, Any]:
    """Lists the deliveries that were sent to the webhook or are still to be sent, newest first."""
    page = deliveries.list_deliveries(
        request.auth, webhook_id, cursor=query.cursor, limit=query.limit, status=query.status
    )
    return page_of("deliveries", page, lambda last: last.public_id)


@router.get(DELIVERY, response=OneDeliveryWithMessage, summary="Get a delivery, with its message")
def get_webhook_delivery(
    request: AuthenticatedRequest, webhook_id: str, delivery_id: str
) -> dict[str, Any]:
    """Returns the delivery with the message that is posted."""
    return {"delivery": deliveries.get_delivery(request.auth, webhook_id, delivery_id)}


@router.post(
    DELIVERY + "/resend",
    response=OneDelivery,
    summary="Send a delivery again",
    description="Immediately, before pending deliveries, with the same `webhook-id`. A delivered "
    "message can be sent again too. Attempts are made for a day.",
)
def resend_webhook_delivery(
    request: AuthenticatedRequest, webhook_id: str, delivery_id: str
) -> dict[str, Any]:
    return {"delivery": deliveries.resend(request.auth, webhook_id, delivery_id)}


def _with_secret(webhook: Webhook, secret: str) -> dict[str, Any]:
    # Only the response contains the plain secret: the row stores it encrypted.
    webhook.secret = secret
    return {"webhook": webhook}

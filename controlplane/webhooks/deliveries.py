"""Deliveries of a webhook: list them, send one again, and send a test event."""

from django.db.models import QuerySet

from controlplane import clock
from controlplane.events import outbox
from controlplane.events.recording import happened
from controlplane.events.types import EventType
from controlplane.models import Account, DeliveryStatus, Webhook, WebhookDelivery
from controlplane.models.webhook import DELIVERY_PREFIX, DELIVERY_TIMEOUT
from controlplane.services.errors import Conflict, Invalid, NotFound
from controlplane.webhooks.subscriptions import changing_webhook, get_webhook


def list_deliveries(
    account: Account, webhook_id: str, *, cursor: str | None, limit: int, status: str | None
) -> list[WebhookDelivery]:
    """At most `limit` deliveries with their events, newest first, all older than `cursor`. `status`
    selects one status, or several separated by commas.

    Raises NotFound, Invalid.
    """
    deliveries = _deliveries_of(get_webhook(account, webhook_id))
    if status is not None:
        deliveries = deliveries.filter(status__in=_statuses(status))
    if cursor is not None:
        try:
            deliveries = deliveries.filter(id__lt=_number_of(cursor))
        except ValueError:
            raise Invalid("invalid cursor: not the id of a delivery", fields=["cursor"]) from None
    return list(deliveries.order_by("-id")[:limit])


def get_delivery(account: Account, webhook_id: str, delivery_id: str) -> WebhookDelivery:
    """The delivery, with its event. Raises NotFound."""
    return _find(get_webhook(account, webhook_id), delivery_id)


def test_webhook(account: Account, webhook_id: str) -> WebhookDelivery:
    """Send the webhook a test event, which has its own type. It is attempted only once, and sent
    before other pending deliveries.

    Raises NotFound, Conflict if the webhook is switched off.
    """
    with changing_webhook(account, webhook_id) as webhook:
        # Without an account, so that no list contains it and no other webhook gets it.
        event = happened(
            EventType.WEBHOOK_TEST, account_id=None, summary=f"The webhook {webhook.id} is tested"
        )
        event.save(force_insert=True)
        now = clock.now()
        delivery = WebhookDelivery.objects.create(
            webhook=webhook, event=event, asked_for=True, next_attempt_at=now, gives_up_at=now
        )
        _send_now(webhook)
    return delivery


def resend(account: Account, webhook_id: str, delivery_id: str) -> WebhookDelivery:
    """Send the delivery at once, before other pending ones, and retry it for up to
    DELIVERY_TIMEOUT. A delivery that has succeeded is sent once more.

    Raises NotFound, Conflict if the webhook is switched off.
    """
    with changing_webhook(account, webhook_id) as webhook:
        delivery = _find(webhook, delivery_id)
        now = clock.now()
        delivery.status = DeliveryStatus.PENDING
        delivery.asked_for = True
        delivery.next_attempt_at, delivery.gives_up_at = now, now + DELIVERY_TIMEOUT
        delivery.ended_at = None
        delivery.save()
        _send_now(webhook)
    return delivery


def _send_now(webhook: Webhook) -> None:
    """Schedule a job that sends now, in the caller's transaction, which holds the webhook's lock. A
    pause after failures ends, because the caller wants to know now whether the receiver works; but
    the number of failures stays. Raises Conflict if the webhook is switched off."""
    if not webhook.enabled:
        raise Conflict("the webhook is disabled; enable it first")
    webhook.held_until = None
    webhook.save(update_fields=["held_until"])
    outbox.enqueue_sending(webhook)


def _deliveries_of(webhook: Webhook) -> QuerySet[WebhookDelivery]:
    return WebhookDelivery.objects.filter(webhook=webhook).select_related("event")


def _find(webhook: Webhook, delivery_id: str) -> WebhookDelivery:
    try:
        number = _number_of(delivery_id)
    except ValueError:
        raise NotFound("delivery not found", fields=["delivery_id"]) from None
    delivery = _deliveries_of(webhook).filter(id=number).first()
    if delivery is None:
        raise NotFound("delivery not found", fields=["delivery_id"])
    return delivery


def _number_of(delivery_id: str) -> int:
    """Parse a delivery's public id. Raises ValueError."""
    digits = delivery_id.removeprefix(DELIVERY_PREFIX)
    if digits == delivery_id or not digits.isascii() or not digits.isdigit() or len(digits) > 18:
        raise ValueError(delivery_id)
    return int(digits)


def _statuses(text: str) -> list[str]:
    wanted = text.split(",")
    unknown = [status for status in wanted if status not in DeliveryStatus.values]
    if unknown:
        raise Invalid(
            f'unknown status "{unknown[0][:64]}"; use one of: {", ".join(DeliveryStatus.values)}',
            fields=["status"],
        )
    return wanted

"""Sends the due deliveries of a webhook. The webhook's job calls this; only one job of a webhook
runs at a time.

The rules:

- A delivery is recorded as delivered after the receiver has accepted it. If the process dies in
  between, the delivery stays pending and the next job sends it again. So each message is delivered
  at least once.
- The oldest delivery goes first, but deliveries that a request has asked for go before all others.
  After a failure nothing is sent until the webhook's hold is over; then the oldest due delivery is
  sent. This keeps the order through the first attempts of a delivery. Its later pauses are longer
  than the hold, and then other deliveries overtake it.
- Once a receiver that has failed repeatedly accepts a delivery, all pending deliveries become due,
  so a backlog is sent in order.
- A job writes its own id into the webhook's `sender`, and can record outcomes only while that id is
  there. So a job that was wrongly considered dead, and replaced, changes nothing any more.
"""

import json
import logging
import time
import uuid
from datetime import datetime

from cryptography.fernet import InvalidToken
from django.conf import settings
from django.db import connection
from django.db.models import Min, Q

from controlplane import clock
from controlplane.events import outbox
from controlplane.events.recording import as_message
from controlplane.metrics import figures
from controlplane.models import DeliveryStatus, Webhook, WebhookDelivery
from controlplane.webhooks import signing
from controlplane.webhooks.noting import note
from controlplane.webhooks.posting import Outcome, post

log = logging.getLogger(__name__)

# Deliveries, and seconds, after which a job ends, to free its slot for waiting jobs.
MAX_DELIVERIES, MAX_JOB_SECONDS = 50, 20.0


def send_deliveries(webhook_id: str) -> None:
    """Send the webhook's due deliveries, and schedule a job for the remaining ones.

    Raises `lines.BrokenOff` if this process is to exit meanwhile. The job is then run again.
    """
    sender = uuid.uuid4()
    outbox.remove_waiting_jobs(webhook_id)
    if not Webhook.objects.filter(id=webhook_id, enabled=True).update(sender=sender):
        return
    until = time.monotonic() + MAX_JOB_SECONDS
    for _ in range(MAX_DELIVERIES):
        delivery = _next_due(webhook_id, sender)
        if delivery is None or time.monotonic() > until:
            break
        outcome = _attempt(delivery)
        if not note(delivery, outcome, sender=sender):
            log.warning("delivery not recorded, as another job has taken over")
            return
    _schedule_rest(webhook_id, sender)


def _next_due(webhook_id: str, sender: uuid.UUID) -> WebhookDelivery | None:
    now = clock.now()
    due = WebhookDelivery.objects.filter(
        Q(webhook__held_until=None) | Q(webhook__held_until__lte=now),
        webhook=webhook_id,
        webhook__sender=sender,
        webhook__enabled=True,
        status=DeliveryStatus.PENDING,
        next_attempt_at__lte=now,
    )
    return due.select_related("webhook", "event").order_by("-asked_for", "id").first()


def _attempt(delivery: WebhookDelivery) -> Outcome:
    webhook, now = delivery.webhook, clock.now()
    body = json.dumps(as_message(delivery.event), separators=(",", ":")).encode()
    try:
        headers = _headers(delivery, body, now)
    except InvalidToken:
        return Outcome("the secret cannot be decrypted any more; rotate it", None, b"", 0.0)
    # Release the database connection: the receiver may be slow, and connections are scarce.
    connection.close()
    outcome = post(webhook.url, headers, body, timeout=settings.WEBHOOK_TIMEOUT)
    fields = {"webhook": webhook.id, "delivery": delivery.public_id, "status": outcome.status}
    ms = round(outcome.duration * 1000)
    log.info("delivery attempted", extra={**fields, "error": outcome.error, "ms": ms})
    figures.DELIVERIES.labels("failed" if outcome.error else "delivered").inc()
    return outcome


def _headers(delivery: WebhookDelivery, body: bytes, now: datetime) -> dict[str, str]:
    """The HTTP headers of the message. Raises InvalidToken if a secret cannot be decrypted."""
    message_id, timestamp = f"evt-{delivery.event_id}", int(now.timestamp())
    secrets = [delivery.webhook.secret, delivery.webhook.previous_secret_at(now)]
    keys = [signing.key_of(signing.decrypt(secret)) for secret in secrets if secret]
    return {
        "User-Agent": "Perch-Webhooks/1",
        "Content-Type": "application/json",
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": signing.signature(
            keys, message_id=message_id, timestamp=timestamp, body=body
        ),
    }


def _schedule_rest(webhook_id: str, sender: uuid.UUID) -> None:
    """Enqueue a job for when the next pending delivery is due. If it is due already, the job waits
    behind the jobs that wait for a slot. Deliveries that are written later enqueue their own
    job."""
    webhook = Webhook.objects.filter(id=webhook_id, sender=sender, enabled=True).first()
    if webhook is None:
        return
    pending = WebhookDelivery.objects.filter(webhook=webhook, status=DeliveryStatus.PENDING)
    due = pending.aggregate(due=Min("next_attempt_at"))["due"]
    if due is not None:
        at = max(due, webhook.held_until or due)
        outbox.enqueue_sending(webhook, at=at if at > clock.now() else None)

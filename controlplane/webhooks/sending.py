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
import random
import re
import time
import uuid
from datetime import datetime, timedelta

from cryptography.fernet import InvalidToken
from django.conf import settings
from django.db import connection, transaction
from django.db.models import Min, Q

from controlplane import clock
from controlplane.actors import PLATFORM, acting_as
from controlplane.events import outbox
from controlplane.events.recording import as_message, happened, record
from controlplane.events.types import EventType
from controlplane.metrics import figures
from controlplane.models import DeliveryStatus, Webhook, WebhookDelivery
from controlplane.webhooks import signing
from controlplane.webhooks.posting import Outcome, post

log = logging.getLogger(__name__)

# A webhook whose receiver has failed all attempts for this long is disabled.
DISABLE_AFTER = timedelta(days=7)
GONE = 410
# The columns of a webhook that an attempt may change.
NOTE_FIELDS = (
    *("failures", "failing_since", "last_error", "held_until"),
    *("enabled", "disabled_reason", "updated_at"),
)
# Characters of a response that are stored. Only the webhook's owner can read them.
MAX_EXCERPT_LENGTH = 1024
# Characters that Postgres cannot store or a page cannot show.
UNSHOWABLE = re.compile(r"[^\t\n\x20-\x7e\xa0-\ud7ff\ue000-\uffff\U00010000-\U0010ffff]")

# The pause after the first failed attempt, after the second and so on. The last one repeats. A day
# has about 15 attempts.
RETRY_DELAYS = [
    timedelta(seconds=5),
    timedelta(seconds=10),
    timedelta(seconds=20),
    timedelta(seconds=40),
    timedelta(minutes=2),
    timedelta(minutes=10),
    timedelta(minutes=30),
    timedelta(hours=1),
    timedelta(hours=2),
    timedelta(hours=4),
]
# Pauses vary at random by this share, so that receivers that failed at the same time are not all
# called again at the same time.
JITTER_FRACTION = 0.2
# How long a failed delivery delays the deliveries behind it at most. So this is the interval at
# which a receiver that is down is called, and the time for which one delivery that the receiver
# always refuses delays others.
MAX_HOLD = timedelta(minutes=1)


def note(delivery: WebhookDelivery, outcome: Outcome, *, sender: uuid.UUID) -> bool:
    """Record the attempt. Returns False, and records nothing, if the webhook or the delivery was
    deleted, or if another job now sends for the webhook."""
    now = clock.now()
    with transaction.atomic():
        # FOR NO KEY UPDATE: other transactions can still write events, whose deliveries refer to
        # the webhook by a foreign key.
        webhook = (
            Webhook.objects.select_for_update(no_key=True)
            .filter(id=delivery.webhook_id, sender=sender)
            .first()
        )
        # A request to send a delivery again locks the webhook too, so this row does not change
        # until the end of this transaction.
        fresh = WebhookDelivery.objects.filter(id=delivery.id).first()
        if webhook is None or fresh is None:
            return False
        _describe(fresh, outcome, now)
        if outcome.error:
            _failed(webhook, fresh, outcome, now)
        else:
            _delivered(webhook, fresh, now)
        if fresh.asked_for and not delivery.asked_for:
            # A request has asked to send it again since the attempt began, so try again at once.
            _retry_at(fresh, at=now)
        else:
            fresh.asked_for = False
        fresh.save()
        webhook.save(update_fields=NOTE_FIELDS)
    return True


def _describe(delivery: WebhookDelivery, outcome: Outcome, now: datetime) -> None:
    answered = outcome.body.decode(errors="replace")[:MAX_EXCERPT_LENGTH]
    delivery.attempts += 1
    delivery.attempted_at = now
    delivery.duration_ms = round(outcome.duration * 1000)
    delivery.response_status = outcome.status
    delivery.response_body = UNSHOWABLE.sub("\ufffd", answered)
    delivery.error = outcome.error


def _delivered(webhook: Webhook, delivery: WebhookDelivery, now: datetime) -> None:
    _end(delivery, DeliveryStatus.DELIVERED, now)
    if webhook.failures > 1:
        # The receiver was down and works again. The caller saves this delivery as delivered.
        reset_failures(webhook)
    elif webhook.failures:
        _clear_failures(webhook)


def reset_failures(webhook: Webhook) -> None:
    """Clear the webhook's failures, and make all its pending deliveries due. The caller holds the
    lock on the webhook's row, and saves it."""
    now = clock.now()
    pending = webhook.deliveries.filter(status=DeliveryStatus.PENDING, next_attempt_at__gt=now)
    pending.update(next_attempt_at=now)
    _clear_failures(webhook)


def _clear_failures(webhook: Webhook) -> None:
    webhook.failures = 0
    webhook.failing_since = webhook.held_until = None
    webhook.last_error = ""


def _failed(webhook: Webhook, delivery: WebhookDelivery, outcome: Outcome, now: datetime) -> None:
    webhook.failures += 1
    webhook.failing_since = webhook.failing_since or now
    webhook.last_error = outcome.error
    pause = retry_delay(delivery.attempts)
    retry_at = now + pause
    # Hold the webhook at least as long as this delivery's own pause, up to MAX_HOLD. This keeps
    # later deliveries behind it.
    hold = max(pause, retry_delay(webhook.failures))
    webhook.held_until = now + min(hold, MAX_HOLD)
    if outcome.status == GONE or retry_at > delivery.gives_up_at:
        _end(delivery, DeliveryStatus.FAILED, now)
    else:
        _retry_at(delivery, at=retry_at)
    if outcome.status == GONE:
        _switch_off(webhook, "the receiver has answered 410 Gone", now)
    elif now - webhook.failing_since >= DISABLE_AFTER:
        _switch_off(webhook, "the receiver has accepted nothing for a week", now)


def _retry_at(delivery: WebhookDelivery, *, at: datetime) -> None:
    delivery.status = DeliveryStatus.PENDING
    delivery.next_attempt_at = at
    delivery.ended_at = None


def _end(delivery: WebhookDelivery, status: DeliveryStatus, now: datetime) -> None:
    delivery.status = status
    delivery.next_attempt_at = None
    delivery.ended_at = now


def _switch_off(webhook: Webhook, reason: str, now: datetime) -> None:
    if not webhook.enabled:
        return
    webhook.enabled = False
    webhook.disabled_reason = reason
    webhook.updated_at = now
    # Disable it before recording the event, so that the event is not delivered to this webhook.
    webhook.save(update_fields=["enabled"])
    with acting_as(PLATFORM):
        record(
            happened(
                EventType.WEBHOOK_DISABLED,
                summary=f"The webhook {webhook.id} was disabled: {reason}",
                account_id=webhook.account_id,
                project=webhook.project_id,
                changes={"enabled": {"from": True, "to": False}},
            )
        )


def retry_delay(failures: int) -> timedelta:
    """The pause after this number of failed attempts, which is at least 1."""
    pause = RETRY_DELAYS[min(failures, len(RETRY_DELAYS)) - 1]
    return pause * random.uniform(1 - JITTER_FRACTION, 1 + JITTER_FRACTION)  # noqa: S311 # keeps no secret


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

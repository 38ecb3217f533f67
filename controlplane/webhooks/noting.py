"""Records the outcome of an attempt, in the delivery and in the state of its webhook."""

import random
import re
import uuid
from datetime import datetime, timedelta

from django.db import transaction

from controlplane import clock
from controlplane.actors import PLATFORM, acting_as
from controlplane.events.recording import happened, record
from controlplane.events.types import EventType
from controlplane.models import DeliveryStatus, Webhook, WebhookDelivery
from controlplane.webhooks.posting import Outcome

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

"""What the webhooks need beside sending: old deliveries forgotten, overdue ones given up, lost
jobs made again."""

import logging
from datetime import timedelta

from django.conf import settings
from django.db.models import Exists, OuterRef, Q

from controlplane import clock
from controlplane.events import outbox
from controlplane.models import DeliveryStatus, Region, Webhook, WebhookDelivery
from controlplane.models.webhook import TRIED_FOR

log = logging.getLogger(__name__)

# Rows that one round takes on; the next one goes on.
AT_ONCE = 5000
# What is due for so long is waited for by a job, or by none.
OVERDUE = timedelta(minutes=1)


def look_after_webhooks(region: Region) -> None:
    """Webhooks are of no region: each region's worker does this, and none minds the others."""
    _forget_old()
    _give_up_overdue()
    _forget_previous_secrets()
    _send_what_was_lost()


def _forget_old() -> None:
    before = clock.now() - timedelta(days=settings.WEBHOOK_RETENTION)
    old = WebhookDelivery.objects.filter(ended_at__lt=before).order_by("ended_at")
    WebhookDelivery.objects.filter(id__in=old.values("id")[:AT_ONCE]).delete()


def _give_up_overdue() -> None:
    """Give up what is too old where nobody takes anything: behind a receiver that is down for
    long more gathers than is ever tried, and what is switched off sends nothing."""
    now = clock.now()
    overdue = WebhookDelivery.objects.filter(
        Q(webhook__enabled=False) | Q(webhook__failing_since__lt=now - TRIED_FOR),
        status=DeliveryStatus.PENDING,
        gives_up_at__lt=now,
    )
    ids = list(overdue.values_list("id", flat=True)[:AT_ONCE])
    WebhookDelivery.objects.filter(
        id__in=ids, status=DeliveryStatus.PENDING, gives_up_at__lt=now
    ).update(
        status=DeliveryStatus.FAILED,
        asked_for=False,
        next_attempt_at=None,
        ended_at=now,
        error="given up: the webhook was switched off, or its receiver down, for too long",
    )


def _forget_previous_secrets() -> None:
    Webhook.objects.filter(previous_secret_until__lt=clock.now()).update(
        previous_secret="", previous_secret_until=None
    )


def _send_what_was_lost() -> None:
    """Make jobs for what is due and has none.

    Jobs and deliveries are written together, so this finds something only after someone has
    emptied the queue by hand.
    """
    before = clock.now() - OVERDUE
    due = WebhookDelivery.objects.filter(
        webhook=OuterRef("id"), status=DeliveryStatus.PENDING, next_attempt_at__lt=before
    )
    overdue = Webhook.objects.filter(
        Exists(due), Q(held_until=None) | Q(held_until__lt=before), enabled=True
    )
    webhooks = {webhook.id: webhook for webhook in overdue}
    for webhook_id in sorted(outbox.without_job(webhooks)) if webhooks else ():
        log.warning("job lost, enqueued again", extra={"webhook": webhook_id})
        outbox.enqueue_sending(webhooks[webhook_id])

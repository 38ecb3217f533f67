"""Maintenance of webhooks: deletes old deliveries and secrets, gives up overdue deliveries, and
enqueues lost jobs again."""

import logging
from datetime import timedelta

from django.conf import settings
from django.db import connection
from django.db.models import Exists, OuterRef, Q

from controlplane import clock
from controlplane.events import outbox
from controlplane.models import DeliveryStatus, Host, Webhook, WebhookDelivery
from controlplane.models.webhook import DELIVERY_TIMEOUT
from controlplane.operations.locks import apart

log = logging.getLogger(__name__)

# Rows that one round handles, and of deleted webhooks how many times as many. The next round
# continues.
BATCH_SIZE, MAX_BATCHES = 5000, 20
# How long a delivery is due before the round checks whether there is a job for it.
OVERDUE_AFTER = timedelta(minutes=1)
# Goes from webhook to webhook by the index of deliveries.
DELETED_WEBHOOKS = """
WITH RECURSIVE found AS (
    (SELECT webhook_id AS id FROM controlplane_webhookdelivery ORDER BY webhook_id LIMIT 1)
    UNION ALL
    SELECT (
        SELECT webhook_id FROM controlplane_webhookdelivery
        WHERE webhook_id > found.id ORDER BY webhook_id LIMIT 1
    )
    FROM found WHERE found.id IS NOT NULL
)
SELECT id FROM found
WHERE id IS NOT NULL AND NOT EXISTS (SELECT FROM controlplane_webhook WHERE id = found.id)
"""


def look_after_webhooks(host: Host) -> None:
    """The round. Webhooks belong to no host, so each host's worker runs it. It is safe for
    several workers to run it at the same time."""
    _forget_old()
    _forget_deleted_webhooks()
    _give_up_overdue()
    ended = Webhook.objects.filter(previous_secret_until__lt=clock.now())
    ended.update(previous_secret="", previous_secret_until=None)
    _enqueue_lost()


def _forget_old() -> None:
    before = clock.now() - timedelta(days=settings.WEBHOOK_RETENTION)
    old = WebhookDelivery.objects.filter(ended_at__lt=before).order_by("ended_at")
    WebhookDelivery.objects.filter(id__in=old.values("id")[:BATCH_SIZE]).delete()


def _forget_deleted_webhooks() -> None:
    """Delete the deliveries of webhooks that were deleted. There may be millions of them."""
    with connection.cursor() as cursor:
        cursor.execute(DELETED_WEBHOOKS)
        deleted = [row[0] for row in cursor.fetchall()]
    left = WebhookDelivery.objects.filter(webhook__in=deleted)
    for _ in range(MAX_BATCHES):
        if not left.filter(id__in=left.values("id")[:BATCH_SIZE]).delete()[0]:
            break


def _give_up_overdue() -> None:
    """Fail deliveries that are too old, for webhooks that are disabled or whose receiver is down.

    While a receiver is down for long, more deliveries gather than are ever attempted, and a
    disabled webhook attempts none.
    """
    now = clock.now()
    overdue = WebhookDelivery.objects.filter(
        Q(webhook__enabled=False) | Q(webhook__failing_since__lt=now - DELIVERY_TIMEOUT),
        status=DeliveryStatus.PENDING,
        gives_up_at__lt=now,
    )
    ids = list(overdue.values_list("id", flat=True)[:BATCH_SIZE])
    WebhookDelivery.objects.filter(
        id__in=ids, status=DeliveryStatus.PENDING, gives_up_at__lt=now
    ).update(
        status=DeliveryStatus.FAILED,
        asked_for=False,
        next_attempt_at=None,
        ended_at=now,
        error="given up: the webhook was disabled, or its receiver did not accept messages, for "
        "too long",
    )


def _enqueue_lost() -> None:
    """Enqueue a job for each webhook that has due deliveries and no job.

    Jobs and deliveries are written in the same transaction, so there are such webhooks only after
    an operator has emptied the queue by hand.
    """
    before = clock.now() - OVERDUE_AFTER
    due = WebhookDelivery.objects.filter(
        webhook=OuterRef("id"), status=DeliveryStatus.PENDING, next_attempt_at__lt=before
    )
    overdue = Webhook.objects.filter(
        Exists(due), Q(held_until=None) | Q(held_until__lt=before), enabled=True
    )
    webhooks = {webhook.id: webhook for webhook in overdue}
    for webhook_id in sorted(outbox.without_job(webhooks)) if webhooks else ():
        with apart(webhook_id):
            log.warning("job lost, enqueued again", extra={"webhook": webhook_id})
            outbox.enqueue_sending(webhooks[webhook_id])

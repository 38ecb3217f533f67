"""Deletes events that are older than the operator's setting, and the oldest of an account that has
too many; and API keys that were revoked or expired before that time.

Deletes in batches, each in a short transaction of its own, because event streams wait for the
oldest transaction under way.
"""

import logging
from collections.abc import Iterator
from datetime import timedelta

from django.conf import settings
from django.db import connection
from django.db.models import Q

from controlplane import clock
from controlplane.events.types import EventType
from controlplane.models import Account, ApiKey, Event, Host

log = logging.getLogger(__name__)

# Rows in a batch, and batches in a round; the next round continues.
BATCH_SIZE, MAX_BATCHES = 2_000, 100

# Test events that are kept of a webhook. They have no account, and so do not count for its own.
TESTS_KEPT = 1_000
SUPERFLUOUS_TESTS = """
SELECT id FROM (
    SELECT event.id, delivery.webhook_id,
        row_number() OVER (PARTITION BY delivery.webhook_id ORDER BY event.id DESC) AS place
    FROM controlplane_event AS event
    LEFT JOIN controlplane_webhookdelivery AS delivery ON delivery.event_id = event.id
    WHERE event.account_id IS NULL AND event.type = 'webhook.test'
) AS test
WHERE place > %s OR webhook_id IS NULL LIMIT %s
"""
ESTIMATE = "SELECT reltuples::bigint FROM pg_class WHERE relname = 'controlplane_event'"


def forget_events(host: Host) -> None:
    """Delete the events that are due. The workers of all hosts may do this at the same time."""
    forgotten = 0
    for batch in _due():
        forgotten += Event.objects.filter(id__in=batch).delete()[0]
        if forgotten >= BATCH_SIZE * MAX_BATCHES:
            break
    if forgotten:
        log.info("events forgotten", extra={"events": forgotten})


def forget_api_keys(host: Host) -> None:
    """Delete the keys that have been invalid for as long as events are kept, which name them."""
    before = clock.now() - timedelta(days=settings.EVENT_RETENTION)
    invalid = ApiKey.objects.filter(Q(revoked_at__lt=before) | Q(expires_at__lt=before))
    ids = list(invalid.values_list("id", flat=True)[: BATCH_SIZE * MAX_BATCHES])
    for first in range(0, len(ids), BATCH_SIZE):
        ApiKey.objects.filter(id__in=ids[first : first + BATCH_SIZE]).delete()


def _due() -> Iterator[list[int]]:
    """Yield the ids of the events to delete, in batches. Each batch is read after the previous one
    was deleted."""
    before = clock.now() - timedelta(days=settings.EVENT_RETENTION)
    old = Event.objects.filter(at__lt=before).order_by("at")
    while batch := list(old.values_list("id", flat=True)[:BATCH_SIZE]):
        yield batch
    while batch := _superfluous_tests():
        yield batch
    most = settings.EVENTS_PER_ACCOUNT
    if not most or _estimated_count() <= most:
        return
    for account_id in [*Account.objects.values_list("id", flat=True), None]:
        events = Event.objects.filter(account=account_id).exclude(type=EventType.WEBHOOK_TEST)
        beyond = events.order_by("-at", "-id")
        while batch := list(beyond.values_list("id", flat=True)[most : most + BATCH_SIZE]):
            yield batch


def _superfluous_tests() -> list[int]:
    with connection.cursor() as cursor:
        cursor.execute(SUPERFLUOUS_TESTS, [TESTS_KEPT, BATCH_SIZE])
        return [row[0] for row in cursor.fetchall()]


def _estimated_count() -> int:
    """Return about how many events there are, by Postgres's last count; -1 if it has not counted
    yet."""
    with connection.cursor() as cursor:
        cursor.execute(ESTIMATE)
        return int(cursor.fetchone()[0])

"""Forgets old events: after the days that the operator has set, and beyond so many of one account.

In batches, each a short transaction of its own: streams wait for the oldest transaction that is
under way.
"""

import logging
from collections.abc import Iterator
from datetime import timedelta

from django.conf import settings
from django.db import connection

from controlplane import clock
from controlplane.models import Account, Event, Region

log = logging.getLogger(__name__)

# Rows of one batch, and batches of one round; the next one goes on.
AT_ONCE, MOST_BATCHES = 2_000, 100

ROUGHLY = "SELECT reltuples::bigint FROM pg_class WHERE relname = 'controlplane_event'"


def forget_events(region: Region) -> None:
    """Delete what is due; every region's worker may, and one does no harm to the other."""
    forgotten = 0
    for batch in _due():
        forgotten += Event.objects.filter(id__in=batch).delete()[0]
        if forgotten >= AT_ONCE * MOST_BATCHES:
            break
    if forgotten:
        log.info("events forgotten", extra={"events": forgotten})


def _due() -> Iterator[list[int]]:
    """The ids of what is to be deleted, in batches; each is read once the one before is gone."""
    before = clock.now() - timedelta(days=settings.EVENT_RETENTION)
    old = Event.objects.filter(at__lt=before).order_by("at")
    while batch := list(old.values_list("id", flat=True)[:AT_ONCE]):
        yield batch
    most = settings.EVENTS_PER_ACCOUNT
    if not most or _roughly_all() <= most:
        return
    for account_id in [*Account.objects.values_list("id", flat=True), None]:
        beyond = Event.objects.filter(account=account_id).order_by("-at", "-id")
        while batch := list(beyond.values_list("id", flat=True)[most : most + AT_ONCE]):
            yield batch


def _roughly_all() -> int:
    """About how many events there are, as Postgres last counted; -1 where it has not yet."""
    with connection.cursor() as cursor:
        cursor.execute(ROUGHLY)
        return int(cursor.fetchone()[0])

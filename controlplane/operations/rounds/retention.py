"""Deletes the rows of what was deleted long ago, with its passwords and operations, and operations
that are older than the API lists; also events and API keys after the time that the operator sets,
and what is stored about requests to the API.

The row of a deleted project, branch or endpoint is kept for a while, because the history of
operations refers to it and a second DELETE is answered. After the retention it is not needed.
"""

import logging
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import connection
from django.db.models import Exists, OuterRef, Q

from controlplane import clock
from controlplane.events.types import EventType
from controlplane.models import (
    UNFINISHED,
    Account,
    ApiKey,
    Branch,
    BranchState,
    Endpoint,
    Event,
    Host,
    Masking,
    Operation,
    Project,
)
from controlplane.operations.locks import apart, locked_project

log = logging.getLogger(__name__)

# The most projects that a round handles, the old operations in a batch, and the batches in a round;
# the next round continues.
BATCH_SIZE = 2_000
OLD_OPERATIONS_BATCH, MAX_BATCHES = 5_000, 40
# By project, because the index begins with it. The operations of a branch that could not be made
# are kept: when a client connects, it is made again by what they say.
OLD_OPERATIONS = """
SELECT o.id FROM controlplane_project p
JOIN controlplane_operation o ON o.project_id = p.id AND o.created_at < %(before)s
WHERE p.host_id = %(host)s
    AND NOT EXISTS (
        SELECT FROM controlplane_operation same
        WHERE same.chain = o.chain AND same.status = ANY(%(unfinished)s)
    )
    AND NOT EXISTS (
        SELECT FROM controlplane_branch b WHERE b.id = o.branch_id AND b.current_state <> %(ready)s
    )
LIMIT %(most)s
"""


def forget_deleted(host: Host) -> None:
    """Delete the rows of what was deleted longer ago than the retention, project by project."""
    before = clock.now() - timedelta(days=settings.DELETED_RETENTION)
    unfinished = Operation.objects.filter(project=OuterRef("id"), status__in=UNFINISHED)
    old = Q(deleted_at__lt=before)
    # Each of the three is read by an index.
    ids = Project.objects.filter(old, host=host).values("id")
    for model in (Endpoint, Branch):
        of_model = model._default_manager.filter(old, host=host).values("project_id")
        ids = ids.union(of_model, all=True)
    concerned = Project.objects.filter(
        ~Exists(unfinished),
        id__in=ids,
        host=host,
        recoverable_until=None,
    )
    for project_id in concerned.values_list("id", flat=True)[:BATCH_SIZE]:
        _forget_in(project_id, before)
    _forget_accounts(before)


def forget_operations(host: Host) -> None:
    """Delete ended operations that began longer ago than the retention (neon-facts: "Operations
    older than 6 months may be deleted")."""
    values: dict[str, Any] = {
        "before": clock.now() - timedelta(days=settings.OPERATION_RETENTION),
        "host": host.id,
        "unfinished": [*UNFINISHED],
        "ready": BranchState.READY,
        "most": OLD_OPERATIONS_BATCH,
    }
    for _ in range(MAX_BATCHES):
        with connection.cursor() as cursor:
            cursor.execute(OLD_OPERATIONS, values)
            ids = [row[0] for row in cursor.fetchall()]
        Operation.objects.filter(id__in=ids).delete()
        if len(ids) < OLD_OPERATIONS_BATCH:
            break


def _forget_accounts(before: datetime) -> None:
    """Delete the rows of deleted accounts of which no project has a row any more, with their keys,
    webhooks and events."""
    gone = Account.objects.filter(
        ~Exists(Project.objects.filter(account=OuterRef("id"))),
        Q(recoverable_until=None) | Q(recoverable_until__lt=clock.now()),
        deleted_at__lt=before,
    )
    for account in gone:
        with apart(str(account.id)):
            events = Event.objects.filter(account=account)
            # With them go their deliveries. One statement for all could take too long.
            while events.filter(id__in=events.values("id")[:BATCH_SIZE]).delete()[0]:
                pass
            account.delete()
            log.info("account forgotten", extra={"account": account.id})


def _forget_in(project_id: str, before: datetime) -> None:
    with apart(project_id), locked_project(project_id) as project:
        if project.recoverable_until is not None:
            return
        if Operation.objects.filter(project=project, status__in=UNFINISHED).exists():
            return
        if project.deleted_at is not None and project.deleted_at < before:
            forget_projects([project_id])
            log.info("project forgotten", extra={"project": project_id})
            return
        endpoints = Endpoint.objects.filter(project=project, deleted_at__lt=before)
        branches = Branch.objects.filter(project=project, deleted_at__lt=before)
        # A living endpoint may have operations on deleted branches; delete those operations too.
        Operation.objects.filter(Q(endpoint__in=endpoints) | Q(branch__in=branches)).delete()
        endpoints.delete()
        # A branch with a living child is never deleted, but a deleted child's row may outlast it.
        Branch.objects.filter(project=project, parent__in=branches).update(parent=None)
        # A branch's row stays while an endpoint of it, deleted later, still has its row.
        branches.exclude(Exists(Endpoint.objects.filter(branch=OuterRef("id")))).delete()
        copies = Branch.objects.filter(masked_as=OuterRef("id"))
        Masking.objects.exclude(Exists(copies)).filter(project=project).delete()


def forget_projects(project_ids: list[str]) -> None:
    """Delete all rows of the projects, their roles and passwords included."""
    projects = Project.objects.filter(id__in=project_ids)
    branches = Branch.objects.filter(project__in=projects)
    Operation.objects.filter(project__in=projects).delete()
    Endpoint.objects.filter(project__in=projects).delete()
    branches.update(parent=None)
    branches.delete()
    projects.delete()


# Rows in a batch, and batches in a round; the next round continues.
EVENTS_BATCH, MAX_EVENT_BATCHES = 2_000, 100

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
        if forgotten >= EVENTS_BATCH * MAX_EVENT_BATCHES:
            break
    if forgotten:
        log.info("events forgotten", extra={"events": forgotten})


def forget_api_keys(host: Host) -> None:
    """Delete the keys that have been invalid for as long as events are kept, which name them."""
    before = clock.now() - timedelta(days=settings.EVENT_RETENTION)
    invalid = ApiKey.objects.filter(Q(revoked_at__lt=before) | Q(expires_at__lt=before))
    ids = list(invalid.values_list("id", flat=True)[: EVENTS_BATCH * MAX_EVENT_BATCHES])
    for first in range(0, len(ids), EVENTS_BATCH):
        ApiKey.objects.filter(id__in=ids[first : first + EVENTS_BATCH]).delete()


def _due() -> Iterator[list[int]]:
    """Yield the ids of the events to delete, in batches. Each batch is read after the previous one
    was deleted."""
    before = clock.now() - timedelta(days=settings.EVENT_RETENTION)
    old = Event.objects.filter(at__lt=before).order_by("at")
    while batch := list(old.values_list("id", flat=True)[:EVENTS_BATCH]):
        yield batch
    while batch := _superfluous_tests():
        yield batch
    most = settings.EVENTS_PER_ACCOUNT
    if not most or _estimated_count() <= most:
        return
    for account_id in [*Account.objects.values_list("id", flat=True), None]:
        events = Event.objects.filter(account=account_id).exclude(type=EventType.WEBHOOK_TEST)
        beyond = events.order_by("-at", "-id")
        while batch := list(beyond.values_list("id", flat=True)[most : most + EVENTS_BATCH]):
            yield batch


def _superfluous_tests() -> list[int]:
    with connection.cursor() as cursor:
        cursor.execute(SUPERFLUOUS_TESTS, [TESTS_KEPT, EVENTS_BATCH])
        return [row[0] for row in cursor.fetchall()]


def _estimated_count() -> int:
    """Return about how many events there are, by Postgres's last count; -1 if it has not counted
    yet."""
    with connection.cursor() as cursor:
        cursor.execute(ESTIMATE)
        return int(cursor.fetchone()[0])


# The most stored answers of one account, and their bytes. Beyond either limit the oldest are
# deleted before a day is over.
MAX_PER_ACCOUNT = 10_000
MAX_BYTES_PER_ACCOUNT = 64 << 20
# The most rows of each kind that one round deletes, so that no statement takes long; the next round
# continues.
REQUESTS_BATCH = 20_000

EXPIRED = """
DELETE FROM controlplane_idempotentrequest WHERE id IN (
    SELECT id FROM controlplane_idempotentrequest
    WHERE created_at < now() - interval '1 day'
    ORDER BY created_at LIMIT %(most)s FOR UPDATE SKIP LOCKED
)
"""
# Only accounts that have added rows lately can have too many.
SURPLUS = """
WITH busy AS (
    SELECT DISTINCT k.account_id FROM controlplane_idempotentrequest r
    JOIN controlplane_apikey k ON k.id = r.api_key_id
    WHERE r.created_at > now() - interval '10 minutes'
), crowded AS (
    SELECT k.account_id FROM busy
    JOIN controlplane_apikey k ON k.account_id = busy.account_id
    JOIN controlplane_idempotentrequest r ON r.api_key_id = k.id
    GROUP BY k.account_id
    HAVING count(*) > %(allowed)s OR sum(octet_length(r.answer)) > %(bytes)s
)
DELETE FROM controlplane_idempotentrequest WHERE id IN (
    SELECT id FROM (
        SELECT r.id, row_number() OVER newer AS place, sum(octet_length(r.answer)) OVER newer AS sum
        FROM controlplane_idempotentrequest r
        JOIN controlplane_apikey k ON k.id = r.api_key_id
        WHERE k.account_id IN (SELECT account_id FROM crowded)
        WINDOW newer AS (PARTITION BY k.account_id ORDER BY r.created_at DESC, r.id DESC)
    ) placed
    WHERE place > %(allowed)s OR sum > %(bytes)s LIMIT %(most)s
)
"""
# A name that is not ahead of its rate is in the same position as one without a row.
SLACK = """
DELETE FROM controlplane_requestrate WHERE name IN (
    SELECT name FROM controlplane_requestrate
    WHERE free_at < now() - interval '1 minute'
    LIMIT %(most)s FOR UPDATE SKIP LOCKED
)
"""


def forget_requests(host: Host) -> None:
    """Delete answers that no client may ask for again, and rate rows that have no effect."""
    values = {"allowed": MAX_PER_ACCOUNT, "bytes": MAX_BYTES_PER_ACCOUNT, "most": REQUESTS_BATCH}
    with connection.cursor() as cursor:
        for statement in (EXPIRED, SURPLUS, SLACK):
            cursor.execute(statement, values)

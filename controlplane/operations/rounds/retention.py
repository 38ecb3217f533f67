"""Deletes the rows of what was deleted long ago, with its passwords and operations, and operations
that are older than the API lists.

The row of a deleted project, branch or endpoint is kept for a while, because the history of
operations refers to it and a second DELETE is answered. After the retention it is not needed.
"""

import logging
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import connection
from django.db.models import Exists, OuterRef, Q

from controlplane import clock
from controlplane.models import (
    UNFINISHED,
    Account,
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

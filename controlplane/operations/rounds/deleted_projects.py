"""Removes the data of deleted projects when they can no longer be recovered.

Data is removed earlier if an account has deleted more than its plan keeps, or if the host's free
disk space falls below its reserve. In the latter case the account that stores most on the host
loses a project first. Of one account, the project that was deleted first is removed first.
"""

import logging
from collections.abc import Iterator
from datetime import timedelta

from django.db.models import Count, Exists, F, OuterRef, Q, QuerySet, Sum
from django.db.models.functions import Coalesce

from controlplane import clock
from controlplane.actors import EXPIRY, acting_as
from controlplane.events.changes import project_removed
from controlplane.events.recording import record
from controlplane.models import (
    LIMITS,
    UNFINISHED,
    Action,
    Branch,
    Host,
    Operation,
    OperationStatus,
    Project,
)
from controlplane.operations.disk import must_make_room
from controlplane.operations.engine.scheduling import Step, schedule
from controlplane.operations.locks import apart, locked_project

log = logging.getLogger(__name__)

# The most projects that one round handles; the next round continues.
BATCH_SIZE = 50
# Bytes that a branch takes in addition to what is measured: an empty cluster, and its log.
MIN_BYTES = 48 << 20
RETRY_DELAY = timedelta(minutes=10)
# Bytes of branches with their histories, as last measured. Blocks that branches share count for
# each of them.
BRANCH_SIZE = Coalesce(F("logical_size"), 0) + F("auxiliary_size") + F("history_bytes") + MIN_BYTES
STORED_SIZE = Coalesce(Sum(BRANCH_SIZE), 0)


def remove_unrecovered(host: Host) -> None:
    """Schedule the removal of the data that is due."""
    kept = Project.objects.filter(host=host, recoverable_until__isnull=False)
    if not kept.exists():
        return
    over = Q(recoverable_until__lte=clock.now())
    for project_id in kept.filter(over).values_list("id", flat=True)[:BATCH_SIZE]:
        _remove(project_id, over)
    for project_id in _beyond_plans(kept):
        log.warning("deleted project removed early, plan", extra={"project": project_id})
        _remove(project_id, Q())
    make_room(host)


def make_room(host: Host) -> None:
    """Schedule the removal of one deleted project early if the disk is short of space."""
    if must_make_room() and not _is_removing(host):
        kept = Project.objects.filter(host=host, recoverable_until__isnull=False)
        oldest = _first_to_remove(host, kept)
        if oldest is not None:
            log.warning("disk short, deleted project removed early", extra={"project": oldest})
            _remove(oldest, Q())


def _remove(project_id: str, due: Q) -> None:
    with apart(project_id), acting_as(EXPIRY), locked_project(project_id) as project:
        # Somebody may have recovered it meanwhile.
        current = Project.objects.filter(due, id=project_id, recoverable_until__isnull=False)
        if not current.update(recoverable_until=None):
            return
        operations = schedule(project, [Step(Action.DELETE_TENANT, holds_project=True)])
        record(project_removed(project, operations))


def _beyond_plans(kept: QuerySet[Project]) -> Iterator[str]:
    """Yield the ids of the projects that exceed what their account's plan keeps, oldest first. The
    project that an account deleted last never counts as exceeding, however large it is."""
    # All projects of a deleted account can be recovered with it.
    enabled = kept.filter(account__disabled_at=None)
    several = enabled.values("account_id", "account__plan").annotate(projects=Count("id"))
    for row in several.filter(projects__gt=1):
        limits = LIMITS[row["account__plan"]]
        if limits.deleted_projects is None and limits.deleted_bytes is None:
            continue
        newest_first = kept.filter(account=row["account_id"]).order_by("-deleted_at", "-id")
        ids = list(newest_first.values_list("id", flat=True))
        stored = dict(
            Branch.objects.filter(project__in=ids, deleted_at=None)
            .values("project_id")
            .annotate(stored=STORED_SIZE)
            .values_list("project_id", "stored")
        )
        count, total = 0, 0
        for project_id in ids:
            total += stored.get(project_id, 0)
            too_many = limits.deleted_projects is not None and count >= limits.deleted_projects
            too_much = limits.deleted_bytes is not None and total > limits.deleted_bytes
            if count and (too_many or too_much):
                break
            count += 1
        yield from reversed(ids[count:])


def _first_to_remove(host: Host, kept: QuerySet[Project]) -> str | None:
    """Return the id of the oldest deleted project of the account that stores most; what it stores
    in its living projects counts too. None if there is no such project."""
    on_disk = Q(project__deleted_at=None) | Q(project__recoverable_until__isnull=False)
    most = (
        Branch.objects.filter(on_disk, project__host=host, deleted_at=None)
        .filter(project__account__in=kept.values("account"))
        .values("project__account")
        .annotate(stored=STORED_SIZE)
        .order_by("-stored")
        .first()
    )
    if most is None:
        return None
    of_account = kept.filter(account=most["project__account"])
    return of_account.order_by("deleted_at", "id").values_list("id", flat=True).first()


def _is_removing(host: Host) -> bool:
    """Return whether a removal is still under way: the space that it frees may be enough."""
    return Operation.objects.filter(
        project__host=host, action=Action.DELETE_TENANT, status__in=UNFINISHED
    ).exists()


def try_removals_again(host: Host) -> None:
    """Schedule failed removals again: no other code would ever remove the data."""
    removals = Operation.objects.filter(project=OuterRef("id"), action=Action.DELETE_TENANT)
    is_recent = Q(created_at__gt=clock.now() - RETRY_DELAY)
    failed = Project.objects.filter(
        Exists(removals.filter(status=OperationStatus.FAILED)),
        ~Exists(removals.filter(Q(status=OperationStatus.FINISHED) | Q(status__in=UNFINISHED))),
        ~Exists(removals.filter(is_recent)),
        host=host,
        deleted_at__isnull=False,
        recoverable_until=None,
    )
    for project_id in failed.values_list("id", flat=True)[:BATCH_SIZE]:
        with apart(project_id), locked_project(project_id) as project:
            if failed.filter(id=project_id).exists():
                schedule(project, [Step(Action.DELETE_TENANT, holds_project=True)])
                log.warning("removal of a project tried again", extra={"project": project_id})

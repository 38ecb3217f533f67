"""Deletes the branches whose time has come, as their owners have set it (`expires_at`)."""

import logging
from datetime import datetime, timedelta
from itertools import chain, zip_longest

from django.db.models import Exists, Min, OuterRef, Q, QuerySet

from controlplane import clock
from controlplane.actors import EXPIRY, acting_as
from controlplane.events.changes import branch_expired
from controlplane.events.recording import record
from controlplane.models import GIVEN_UP, UNFINISHED, Action, Branch, Operation, Region
from controlplane.operations.branch_deletion import schedule_deletion
from controlplane.operations.locks import locked_project
from controlplane.operations.scheduling import MOST_OF_A_PROJECT, RegionAway, unfinished

log = logging.getLogger(__name__)

# Projects that one look deletes branches of; the next one goes on with the others.
AT_ONCE = 50
# Deletions that a project may have waiting. More would only make its other operations wait, and
# whoever looks at them read more: as many run at once as MOST_OF_A_PROJECT.
MOST_WAITING = 2 * MOST_OF_A_PROJECT
# Before a deletion is tried again that has failed, or that somebody has cancelled: time enough to
# give the branch another end, or none.
TRIED_AGAIN = timedelta(minutes=5)


def expire_branches(region: Region) -> None:
    """Begin the deletion of every branch of the region whose `expires_at` has passed.

    One that must stay for now (it is the default, protected or a parent by now) is looked at
    again with every round. Of all accounts one project comes first, then of all the second: who
    has many branches that end at once holds up nobody's.
    """
    now = clock.now()
    for project_id in _projects_due(region, now)[:AT_ONCE]:
        try:
            _expire_in(project_id, now)
        except RegionAway:
            raise
        except Exception:
            # Whatever is wrong with one project must not keep the branches of all others.
            log.exception("branches not expired", extra={"project": project_id})


def _projects_due(region: Region, now: datetime) -> list[str]:
    due = (
        _due(now)
        .filter(project__region=region)
        .values_list("project__account_id", "project_id")
        .annotate(since=Min("expires_at"))
        .order_by("since", "project_id")
    )
    of_account: dict[int, list[str]] = {}
    for account_id, project_id, _ in due:
        of_account.setdefault(account_id, []).append(project_id)
    in_turn = chain.from_iterable(zip_longest(*of_account.values()))
    return [project_id for project_id in in_turn if project_id is not None]


def _expire_in(project_id: str, now: datetime) -> None:
    with acting_as(EXPIRY), locked_project(project_id) as project:
        waiting = [row for row in unfinished(project.id) if row.action == Action.DELETE_TIMELINE]
        room = max(0, MOST_WAITING - len(waiting))
        # Once more, now that nobody changes it: it may have been given another end since.
        due = _due(now).filter(project=project).order_by("expires_at", "id")
        for branch in due[:room]:
            operations = schedule_deletion(project, branch)
            record(branch_expired(project, branch, operations))
            log.info("branch expired", extra={"branch": branch.id})


def _due(now: datetime) -> QuerySet[Branch]:
    """Those whose time has come, that may go, and whose deletion is not under way."""
    deletions = Operation.objects.filter(branch=OuterRef("id"), action=Action.DELETE_TIMELINE)
    restores = Operation.objects.filter(
        resources__contains=[OuterRef("id")], action=Action.CREATE_BRANCH, status__in=UNFINISHED
    )
    lately = Q(status__in=GIVEN_UP, updated_at__gt=now - TRIED_AGAIN)
    return Branch.objects.filter(
        ~Exists(Branch.objects.filter(parent=OuterRef("id"), deleted_at=None, hidden=False)),
        # While it is restored there is one more branch, which keeps its data until then.
        ~Exists(restores),
        ~Exists(deletions.filter(Q(status__in=UNFINISHED) | lately)),
        expires_at__lte=now,
        deleted_at=None,
        default=False,
        protected=False,
        project__deleted_at=None,
    )

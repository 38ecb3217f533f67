"""Deletes branches and snapshots whose `expires_at` has passed, and hidden branches that are no
longer needed: data that a restore has replaced, the data of snapshots that are gone, and past
moments that no client reads any more."""

import logging
from datetime import datetime, timedelta
from itertools import chain, zip_longest

from django.db.models import Exists, Min, OuterRef, Q, QuerySet
from django.db.models.fields.json import KT

from controlplane import clock
from controlplane.actors import EXPIRY, acting_as
from controlplane.events.changes import branch_expired, snapshot_expired
from controlplane.events.recording import record
from controlplane.models import (
    GIVEN_UP,
    UNFINISHED,
    Action,
    Branch,
    Endpoint,
    EndpointState,
    Host,
    Operation,
    Project,
    RequestKind,
    Snapshot,
)
from controlplane.operations.engine.scheduling import (
    MAX_PER_PROJECT,
    Step,
    schedule,
    schedule_deletion,
    unfinished,
)
from controlplane.operations.locks import apart, locked_project

log = logging.getLogger(__name__)

# The most snapshots and hidden branches that one round removes, and the most projects that one
# deletes expired branches of; the next round continues with the others.
BATCH_SIZE = 50
# The most unfinished deletions of a project. More would only delay its other operations, and make
# every reader of its operations read more; only MAX_PER_PROJECT of them run at once anyway.
MAX_WAITING = 2 * MAX_PER_PROJECT
# The time before a deletion that failed or was cancelled is tried again. It lets the owner change
# or remove the branch's `expires_at`.
RETRY_DELAY = timedelta(minutes=5)


def expire_branches(host: Host) -> None:
    """Schedule the deletion of every branch of the host whose `expires_at` has passed.

    A branch that cannot be deleted now (the default, a protected one, a parent) is looked at again
    in every round. Accounts take turns: first one project of each account, then the second of each.
    An account with many branches that expire at once therefore does not delay the others.
    """
    now = clock.now()
    for project_id in _projects_due(host, now)[:BATCH_SIZE]:
        _expire_in(project_id, now)


def _projects_due(host: Host, now: datetime) -> list[str]:
    due = (
        _due(now)
        .filter(host=host)
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
    with apart(project_id), acting_as(EXPIRY), locked_project(project_id) as project:
        waiting = [row for row in unfinished(project.id) if row.action == Action.DELETE_TIMELINE]
        room = max(0, MAX_WAITING - len(waiting))
        # Check again under the project's lock: the branch's `expires_at` may have changed.
        due = _due(now).filter(project=project).order_by("expires_at", "id")
        for branch in due[:room]:
            operations = schedule_deletion(project, branch)
            record(branch_expired(project, branch, operations))
            log.info("branch expired", extra={"branch": branch.id})


def _due(now: datetime) -> QuerySet[Branch]:
    """Return the branches that have expired, can be deleted, and have no deletion under way."""
    deletions = Operation.objects.filter(branch=OuterRef("id"), action=Action.DELETE_TIMELINE)
    restores = Operation.objects.alias(source_id=KT("details__source_branch_id")).filter(
        Q(resources__contains=[OuterRef("id")]) | Q(source_id=OuterRef("id")),
        action=Action.CREATE_BRANCH,
        status__in=UNFINISHED,
    )
    given_up_recently = Q(status__in=GIVEN_UP, updated_at__gt=now - RETRY_DELAY)
    return Branch.objects.filter(
        ~Exists(Branch.objects.filter(parent=OuterRef("id"), deleted_at=None, hidden=False)),
        # A restore is going to make one more branch, which keeps the data that it replaces. And a
        # branch's history must stay while a past moment is recovered from it, which holds nothing.
        ~Exists(restores),
        ~Exists(deletions.filter(Q(status__in=UNFINISHED) | given_up_recently)),
        expires_at__lte=now,
        deleted_at=None,
        default=False,
        protected=False,
        project__deleted_at=None,
    )


def schedule_snapshot_deletion(project: Project, snapshot: Snapshot) -> list[Operation]:
    """Schedule the removal of the snapshot's data. The caller holds the project's lock."""
    step = Step(Action.DELETE_TIMELINE, branch=snapshot.data_branch)
    title = f"Delete snapshot {snapshot.name}"
    return schedule(project, [step], RequestKind.DELETE_SNAPSHOT, title=title)


def expire_snapshots(host: Host) -> None:
    """Delete the snapshots that are due, each with an operation that removes its data."""
    due = Snapshot.objects.filter(
        expires_at__lte=clock.now(), project__host=host, project__deleted_at=None
    )
    for snapshot_id, project_id in due.values_list("id", "project_id")[:BATCH_SIZE]:
        with apart(project_id), acting_as(EXPIRY), locked_project(project_id) as project:
            # It may have been deleted or given more time meanwhile, or its project deleted.
            found = due.select_related("data_branch").filter(id=snapshot_id).first()
            if found is not None:
                operations = schedule_snapshot_deletion(project, found)
                record(snapshot_expired(project, found, operations))
                found.delete()


HIDDEN_RETRY_DELAY = timedelta(minutes=10)


def remove_unwanted(host: Host) -> None:
    """Schedule the removal of each unneeded branch that no unfinished operation holds."""
    held = Operation.objects.filter(
        project=OuterRef("project"),
        resources__contains=[OuterRef("id")],
        status__in=UNFINISHED,
    )
    tried = Operation.objects.filter(
        branch=OuterRef("id"),
        action=Action.DELETE_TIMELINE,
        created_at__gt=clock.now() - HIDDEN_RETRY_DELAY,
    )
    read = Endpoint.objects.filter(
        branch=OuterRef("id"), deleted_at=None, current_state=EndpointState.ACTIVE
    )
    unwanted = Branch.objects.filter(
        ~Exists(held),
        ~Exists(read),
        ~Exists(tried),
        hidden=True,
        snapshot=None,
        deleted_at=None,
        host=host,
        project__deleted_at=None,
    )
    for branch in unwanted[:BATCH_SIZE]:
        project_id = branch.project_id
        with apart(project_id), locked_project(project_id) as project:
            current = unwanted.filter(id=branch.id).first()
            if current is not None:
                schedule_deletion(project, current)
                log.info("hidden branch removed", extra={"branch": current.id})

"""The hosts that receive the log of other hosts' computes (`log_receivers`): which ones can, asking
one to begin, and what rows and events say of it."""

import logging
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial

from django.conf import settings
from django.db import transaction

from controlplane import clock
from controlplane.database.version import perch_version
from controlplane.events.changes import durability_reduced, durability_restored
from controlplane.events.recording import record
from controlplane.fleet.messages import Link, host_links
from controlplane.fleet.receivers import standby
from controlplane.fleet.receivers.standby import NotAttached
from controlplane.models import Branch, Event, Host, LogReceiver, Project
from controlplane.operations.locks import locked_project

log = logging.getLogger(__name__)


class Elsewhere(Exception):
    """The branch was given to another host, which restores it from what its receivers have: no
    commit may be acknowledged here any more."""


# The branches of which an event of this process says that commits do not wait.
_reduced: set[str] = set()


def second_hosts(project: Project) -> list[Host]:
    """The hosts that can receive the log: first those that do so for the project already, then by
    their free disk. Raises NotAttached if there is none."""
    others = Host.objects.filter(
        region=project.region_id, lost_at=None, draining=False, version=perch_version()
    ).exclude(id=project.host_id)
    known = set(
        LogReceiver.objects.filter(branch__project=project).values_list("host_id", flat=True)
    )
    fitting = [
        one
        for one in others.exclude(peer_certificate="")
        if not one.silent_processes()
        and not one.is_full
        and project.pg_version in (one.pg_version, *one.pg_versions)
    ]
    if not fitting:
        raise NotAttached("the region has no other host that runs and has room")
    return sorted(fitting, key=lambda one: (one.id not in known, -(one.disk_free_bytes or 0)))


def ask_to_receive(row: LogReceiver) -> None:
    """Let the row's host begin to receive. Raises LinkBroken, MoveRefused."""
    with closing(Link(host_links().connect(row.host))) as link:
        link.send(receive=row.id)
        link.receive()


def note_attached(receiver_id: str) -> None:
    """Commits wait for the receiver, which the configuration names. Does nothing if this is noted
    already, or the receiver was lost since."""
    rows = LogReceiver.objects.filter(id=receiver_id, attached_at=None, lost_at=None)
    row = rows.first()
    if row is None:
        return
    branch_id = row.branch_id
    earlier = LogReceiver.objects.filter(branch=branch_id).exclude(id=row.id)
    with transaction.atomic():
        if branch_id in _reduced or earlier.filter(lost_at__isnull=False).exists():
            _tell(branch_id, partial(durability_restored, host=row.host_id))
        rows.update(attached_at=clock.now())
        # Their hosts remove what they have: the new receiver has all that the store has not.
        earlier.delete()
    _reduced.discard(branch_id)


def note_losses(branch_id: str, why: str, *, of: str | None = None) -> None:
    """The branch's commits are to go on without the receiver `of`, by default without any. Raises
    Elsewhere, django.db.Error; then they must not."""
    _refuse_elsewhere(branch_id)
    rows = LogReceiver.objects.filter(branch=branch_id, lost_at=None)
    # Commits wait for this, so it waits for no event about a receiver that is gone.
    if named := of or standby.receiver_named(branch_id):
        rows.filter(id=named, attached_at=None).update(attached_at=clock.now())
    for row in rows.filter(id=of) if of else rows:
        note_lost(row.id, why)
    # If it was given away meanwhile, what was restored may not have the note.
    _refuse_elsewhere(branch_id)


def _refuse_elsewhere(branch_id: str) -> None:
    if not Branch.objects.filter(id=branch_id, project__host=settings.HOST_NAME).exists():
        raise Elsewhere(f"the branch {branch_id} lives on another host")


def note_lost(receiver_id: str, why: str) -> None:
    """Commits do not wait for the receiver any more. Two processes may notice that; the first to
    write it also records the event. Not of one that never was attached: `attach` says why."""
    rows = LogReceiver.objects.filter(id=receiver_id, lost_at=None)
    row = rows.select_related("branch__project").first()
    if row is None:
        return
    # Without the project's lock, because the next commits wait for this.
    with transaction.atomic():
        is_told = _has_lost_one(row.branch_id) or row.branch.deleted_at is not None
        is_loss = rows.update(lost_at=clock.now()) and row.attached_at is not None
        if is_loss and not is_told:
            fields = {"branch": row.branch_id, "receiver": receiver_id, "reason": why}
            log.warning("commits wait for no second host", extra=fields)
            record(durability_reduced(row.branch.project, row.branch, why))


def record_reduced(branch_id: str, why: str) -> None:
    """Record an event that commits wait for no second host, unless one says so already."""
    if branch_id not in _reduced and not _has_lost_one(branch_id):
        log.warning("commits wait for no second host", extra={"branch": branch_id, "reason": why})
        _tell(branch_id, partial(durability_reduced, why=why))
    _reduced.add(branch_id)


def _has_lost_one(branch_id: str) -> bool:
    """Whether an event says that commits do not wait because a receiver was lost."""
    lost = LogReceiver.objects.filter(branch=branch_id, lost_at__isnull=False)
    return lost.exclude(attached_at=None).exists()


def forget_reduced(branch_id: str) -> None:
    """The branch's commits are not to wait for a second host."""
    _reduced.discard(branch_id)


def _tell(branch_id: str, event: Callable[[Project, Branch], Event]) -> None:
    branch = Branch.objects.filter(id=branch_id, deleted_at=None).first()
    if branch is not None:
        with suppress(Project.DoesNotExist), locked_project(branch.project_id) as project:
            record(event(project, branch))

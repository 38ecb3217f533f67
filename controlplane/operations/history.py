"""Keeps the history of this host's branches: copies their log, takes bases, and removes what is
older than the project's window.

One round looks at the branches whose compute runs, and at those whose compute has stopped since
their log was last copied. Idle branches cost nothing. A copy never makes a client wait: nothing
waits for this round, and while a base of a stopped branch is taken its lock is held only where that
takes some tenths of a second.
"""

import logging
from contextlib import ExitStack
from datetime import datetime, timedelta

from django.db import connection, transaction
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.db.models.functions import Coalesce, Greatest

from controlplane import clock
from controlplane.compute import compute
from controlplane.compute.branch_data import data_dir
from controlplane.compute.filesystem import lock_branches, remove_tree
from controlplane.compute.history import bases, chain, pulling
from controlplane.compute.history.chain import Chain, chains_of, holding_history, open_chain
from controlplane.compute.history.commits import activity
from controlplane.compute.recovery import is_to_recover
from controlplane.compute.session import socket_dir
from controlplane.compute.space import host_space
from controlplane.compute.tree import shares_blocks
from controlplane.events.changes import history_gap, history_trimmed
from controlplane.events.recording import record
from controlplane.events.types import EventType
from controlplane.models import Branch, Endpoint, EndpointState, Event, HistoryChain, Region
from controlplane.operations.looks import look_into

FORGET_PASSWORDS = """
DELETE FROM controlplane_formerpassword former
WHERE NOT EXISTS (
    SELECT FROM controlplane_branch branch
    JOIN controlplane_project project ON project.id = branch.project_id
    WHERE branch.id = former.branch_id AND branch.deleted_at IS NULL
        AND former.replaced_at >= now() - project.history_retention_seconds * interval '1 second')
"""

log = logging.getLogger(__name__)

HISTORY_ROUND = 5.0  # seconds
# The branches whose chains have changed, for the copy off the host.
changed_histories: set[str] = set()
# The least time between two bases of a running compute: each slows it down for a second.
BETWEEN_BASES = timedelta(minutes=5)
# The least time between two events about history that was removed for want of space.
BETWEEN_TRIMMINGS = timedelta(hours=1)


def keep_history(region: Region) -> None:
    """Copy the log of the branches that have written any, and take the bases that are due."""
    stopped = {one.id: one for one in _stopped(region)}
    looked_at = {**stopped, **{one.id: one for one in _running(region)}}

    def look(endpoint_id: str) -> tuple[list[Chain], bool]:
        endpoint = looked_at[endpoint_id]
        return keep(endpoint.branch_id, endpoint.project.history_retention_seconds)

    ids = [one.branch_id for one in looked_at.values()]
    published = set(
        HistoryChain.objects.filter(branch_id__in=ids).values_list("branch_id", flat=True)
    )
    for endpoint, (chains, has_changed) in look_into(looked_at.values(), look, at="history"):
        # Of a stopped branch the row says that its log was copied since.
        if has_changed or endpoint.id in stopped or endpoint.branch_id not in published:
            publish(endpoint.branch_id, chains)
        if has_changed:
            changed_histories.add(endpoint.branch_id)


def keep(branch_id: str, retention_seconds: int) -> tuple[list[Chain], bool]:
    """Do for one branch what the round does. Returns its chains, and whether they have changed.
    Raises LockTimeout, psycopg.Error, NotEnoughSpace, OSError."""
    with ExitStack() as held:
        running = compute.running_endpoint(branch_id)
        if running is None:
            # Nobody may start it while a base is taken.
            held.enter_context(lock_branches(branch_id, timeout=0))
            running = compute.running_endpoint(branch_id)
        if not data_dir(branch_id).exists():
            return [], True
        held.enter_context(holding_history(branch_id, within=0))
        before = [_summary(one) for one in chains_of(branch_id)]
        began = clock.now()
        if retention_seconds == 0:
            _switch_off(branch_id, running)
        else:
            window = timedelta(seconds=retention_seconds)
            if host_space().is_short:
                _make_room(branch_id, running)
            else:
                _copy(branch_id, running, window)
            _prune(branch_id, clock.now() - window)
        after = chains_of(branch_id)
        _record_gaps(branch_id, after, began)
        return after, before != [_summary(one) for one in after]


def _record_gaps(branch_id: str, chains: list[Chain], since: datetime) -> None:
    """Record an event for each chain that has ended since that time."""
    for one in chains:
        if one.ended_at and one.ended_at >= since and one.end_reason != chain.REPLACED:
            branch = Branch.objects.select_related("project").get(id=branch_id)
            with transaction.atomic():
                record(history_gap(branch, one.copied_at, one.end_reason))


def _record_trimming(branch_id: str) -> None:
    """Record an event, unless there is a recent one: a full disk costs a piece in each round."""
    recent = Event.objects.filter(
        branch_id=branch_id,
        type=EventType.HISTORY_TRIMMED,
        at__gt=clock.now() - BETWEEN_TRIMMINGS,
    )
    if not recent.exists():
        branch = Branch.objects.select_related("project").get(id=branch_id)
        with transaction.atomic():
            record(history_trimmed(branch))


def _summary(one: Chain) -> tuple[object, ...]:
    return one.number, one.copied, one.ended_at, tuple(base.end for base in one.bases())


def publish(branch_id: str, chains: list[Chain]) -> None:
    """Make the branch's rows equal to its chains."""
    now = clock.now()
    kept = []
    for one in chains:
        all_bases = one.bases()
        if not all_bases:
            continue
        kept.append(one.number)
        found = activity(one)
        HistoryChain.objects.update_or_create(
            branch_id=branch_id,
            number=one.number,
            defaults={
                "first_at": all_bases[0].at,
                "first_lsn": all_bases[0].end,
                "last_at": one.copied_at,
                "last_lsn": one.copied,
                "ended_at": one.ended_at,
                "end_reason": one.end_reason,
                "log_bytes": one.log_size(),
                "bases": [
                    {"at": base.at.isoformat(), "lsn": base.end, "bytes": base.size}
                    for base in all_bases
                ],
                "commit_span": found.seconds,
                "commits": found.commits,
                "removals": [
                    {"at": commit.at.isoformat(), "lsn": commit.lsn, "files": commit.removed}
                    for commit in found.removals
                ],
                "updated_at": now,
            },
        )
    HistoryChain.objects.filter(branch_id=branch_id).exclude(number__in=kept).delete()


def _running(region: Region) -> QuerySet[Endpoint]:
    return _endpoints(region).filter(current_state=EndpointState.ACTIVE)


def _stopped(region: Region) -> QuerySet[Endpoint]:
    """The endpoints that were suspended, or whose branch got other data, after its log was last
    copied, and those whose project keeps no history any more."""
    chains = HistoryChain.objects.filter(branch=OuterRef("branch"))
    copied = chains.filter(updated_at__gt=OuterRef("changed_at"))
    keeps_none = Q(project__history_retention_seconds=0)
    replaced_at = Coalesce("branch__last_reset_at", "suspended_at")
    changed = _endpoints(region).annotate(changed_at=Greatest("suspended_at", replaced_at))
    return changed.filter(
        (~keeps_none & ~Exists(copied)) | (keeps_none & Exists(chains)),
        current_state=EndpointState.IDLE,
        suspended_at__isnull=False,
    )


def _endpoints(region: Region) -> QuerySet[Endpoint]:
    return Endpoint.objects.select_related("project").filter(
        project__region=region, project__deleted_at=None, deleted_at=None
    )


def forget_former_passwords(region: Region) -> None:
    """Delete the passwords that no moment of a branch's history needs any more, those of branches
    that are gone too; a worker of any region may."""
    with connection.cursor() as cursor:
        cursor.execute(FORGET_PASSWORDS)


def copy_log(branch_id: str) -> None:
    """Copy the branch's log up to the present into its open chain, if it has one. The caller holds
    the branch's history lock. Raises psycopg.Error, ControlDataUnreadable, NotEnoughSpace,
    OSError."""
    going_on = open_chain(branch_id)
    if going_on is None:
        return
    if running := compute.running_endpoint(branch_id):
        pulling.pull_running(going_on, branch_id, socket_dir(running), whole=True)
    else:
        pulling.pull_stopped(going_on, branch_id)


def _copy(branch_id: str, running: str | None, window: timedelta) -> None:
    going_on = open_chain(branch_id)
    if running is None:
        if going_on is not None:
            pulling.pull_stopped(going_on, branch_id)
            going_on = open_chain(branch_id)
        if is_to_recover(data_dir(branch_id)):
            # The compute crashed: only its next start makes the data consistent.
            return
        if _base_is_due(branch_id, going_on, window) and bases.is_quick(branch_id):
            begun = bases.base_of_stopped(branch_id)
            pulling.pull_stopped(begun, branch_id)
        return
    sockets = socket_dir(running)
    if going_on is not None:
        pulling.pull_running(going_on, branch_id, sockets)
        going_on = open_chain(branch_id)
    if going_on and clock.now() - going_on.bases()[-1].at < BETWEEN_BASES:
        return
    if _base_is_due(branch_id, going_on, window):
        begun = bases.base_of_running(branch_id, sockets)
        pulling.pull_running(begun, branch_id, sockets, whole=True)


def _base_is_due(branch_id: str, going_on: Chain | None, window: timedelta) -> bool:
    if going_on is None:
        return True
    last = going_on.bases()[-1]
    if going_on.copied <= last.end:
        return False
    if shares_blocks(data_dir(branch_id).parent.parent):
        return going_on.copied - last.end >= bases.LOG_PER_BASE
    # A copy takes as much room as the branch: one in each window.
    return clock.now() - last.at >= window


def _make_room(branch_id: str, running: str | None) -> None:
    """Remove the oldest piece of the branch's history. The disk has less than its reserve."""
    for one in chains_of(branch_id):
        if one.ended_at is not None:
            remove_tree(one.place)
            _record_trimming(branch_id)
            return
        if one.drop_oldest():
            _record_trimming(branch_id)
            return
        # Postgres keeps no more log for it either. A new chain begins once there is room.
        one.end(chain.DISK_FULL, clock.now())
        if running is not None:
            pulling.drop_slot(socket_dir(running))


def _prune(branch_id: str, before: datetime) -> None:
    for one in chains_of(branch_id):
        if one.ended_at is not None and one.copied_at < before:
            remove_tree(one.place)
        else:
            one.prune(before)


def _switch_off(branch_id: str, running: str | None) -> None:
    if not chain.history_dir(branch_id).exists():
        return
    if running is not None:
        pulling.drop_slot(socket_dir(running))
    remove_tree(chain.history_dir(branch_id))

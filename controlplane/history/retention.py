"""Which part of a branch's history is removed, and when: what is older than the project's window,
and the oldest part when the disk or the branch's size limit leaves no room for it. Callers hold the
branch's history lock."""

from datetime import datetime, timedelta

from django.db import connection, transaction
from django.db.models import Exists, F, Min, OuterRef, Q
from django.db.models.functions import Now

from controlplane import clock
from controlplane.compute.data.branch_data import data_dir
from controlplane.compute.host.cloning import shares_blocks
from controlplane.compute.host.filesystem import remove_tree
from controlplane.compute.host.tree import tree_size
from controlplane.events.changes import history_trimmed
from controlplane.events.recording import record
from controlplane.events.types import EventType
from controlplane.history.local import chain
from controlplane.history.local.bases import LOG_BYTES_PER_BASE, NOT_IN_A_BASE
from controlplane.history.local.chain import Chain
from controlplane.models import Branch, Endpoint, EndpointState, Event, HistoryChain, Host, Project
from controlplane.operations.quotas import LOGICAL_SIZE, quota_of

FORGET_PASSWORDS = """
DELETE FROM controlplane_formerpassword former
WHERE NOT EXISTS (
    SELECT FROM controlplane_branch branch
    JOIN controlplane_project project ON project.id = branch.project_id
    WHERE branch.id = former.branch_id AND branch.deleted_at IS NULL
        AND former.replaced_at >= now() - project.history_retention_seconds * interval '1 second')
"""
# The least time between two events about history that was removed for want of room.
TRIM_EVENT_INTERVAL = timedelta(hours=1)
WORDS = {
    chain.DISK_FULL: "the disk is nearly full",
    chain.SIZE_LIMIT: "the limit of the branch's size leaves no more room for it",
}


def prune(chains: list[Chain], before: datetime) -> None:
    """Remove what no moment from `before` on needs, chains of `chains` too."""
    for one in list(chains):
        if one.ended_at is not None and one.until < before:
            remove_tree(one.place)
            chains.remove(one)
        else:
            one.prune(before)


def outdated(host: Host) -> set[tuple[str, int]]:
    """The branches that nobody writes to with histories older than their window, each with its
    window in seconds."""
    projects = Project.objects.filter(host=host, deleted_at=None)
    windows = projects.filter(history_retention_seconds__gt=0)
    shortest = windows.aggregate(seconds=Min("history_retention_seconds"))["seconds"]
    writers = Endpoint.objects.filter(branch=OuterRef("branch"), current_state=EndpointState.ACTIVE)
    chains = HistoryChain.objects.filter(
        ~Exists(writers), host=host, branch__deleted_at=None, branch__project__deleted_at=None
    ).values_list("branch_id", "branch__project__history_retention_seconds")
    without_history = projects.filter(history_retention_seconds=0)
    found = set(chains.filter(branch__project__in=without_history))
    if shortest is not None:
        window = F("branch__project__history_retention_seconds") * timedelta(seconds=1)
        # By the index of times, those that the shortest window does not reach. Of these, the ones
        # that their own window does not reach.
        beyond_any = Q(spent_at__lt=Now() - timedelta(seconds=shortest))
        found.update(chains.filter(beyond_any, spent_at__lt=Now() - window))
    return found


def switch_off(branch_id: str, chains: list[Chain]) -> None:
    """Remove the whole history."""
    chains.clear()
    remove_tree(chain.history_dir(branch_id))


def remove_oldest(branch_id: str, chains: list[Chain], reason: str) -> None:
    """Remove the oldest piece of the branch's chains; of the last piece, end the chain. `reason` is
    one for which chains end."""
    if not chains:
        return
    oldest = chains[0]
    if oldest.ended_at is not None:
        remove_tree(oldest.place)
        chains.remove(oldest)
    elif not oldest.drop_oldest():
        # A new chain begins once there is room.
        oldest.end(reason, clock.now())
        return
    _record_trimming(branch_id, WORDS[reason])


def allowed_bytes(branch: Branch) -> int | None:
    """Bytes that the limits of the plan and of the project's quota leave for the branch's history
    beside its data; None without a limit."""
    limits = [branch.project.account.branch_size_limit, quota_of(branch.project).get(LOGICAL_SIZE)]
    known = [limit for limit in limits if limit is not None]
    return max(0, min(known) - branch.stored_size) if known else None


def may_begin(branch_id: str, room: int) -> bool:
    """Whether `room` bytes are enough for a new chain: its base, and so much log that a base is
    seldom taken in vain."""
    if room < 2 * LOG_BYTES_PER_BASE:
        return False
    data = data_dir(branch_id)
    if shares_blocks(data.parent.parent):
        return True
    base = tree_size(data, skip=NOT_IN_A_BASE)
    return room >= base + max(2 * LOG_BYTES_PER_BASE, base // 2)


def forget_former_passwords(host: Host) -> None:
    """Delete the passwords that no moment of a branch's history needs any more, those of branches
    that are gone too; any worker may."""
    with connection.cursor() as cursor:
        cursor.execute(FORGET_PASSWORDS)


def _record_trimming(branch_id: str, why: str) -> None:
    """Record an event, unless there is a recent one: want of room costs a piece in each round."""
    recent = Event.objects.filter(
        branch_id=branch_id,
        type=EventType.HISTORY_TRIMMED,
        at__gt=clock.now() - TRIM_EVENT_INTERVAL,
    )
    if not recent.exists():
        branch = Branch.objects.select_related("project").get(id=branch_id)
        with transaction.atomic():
            record(history_trimmed(branch, why))

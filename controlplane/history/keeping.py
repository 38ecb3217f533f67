"""Keeps the history of this host's branches: copies their log, takes bases, and removes what is
older than the project's window.

One round looks at the branches whose compute runs, and at those whose compute has stopped, or whose
endpoint has left them, since their log was last copied. Idle branches cost nothing. A copy never
makes a client wait: nothing waits for this round, and while a base of a stopped branch is taken its
lock is held only where that takes some tenths of a second.
"""

import logging
import math
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from datetime import datetime, timedelta
from typing import Any

import psycopg
from django.db import transaction
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.db.models.functions import Coalesce, Greatest, Now

from controlplane import clock
from controlplane.compute import compute
from controlplane.compute.data.branch_data import data_dir, takes_long_to_copy
from controlplane.compute.host.cloning import shares_blocks
from controlplane.compute.host.filesystem import LockTimeout, lock_branches
from controlplane.compute.host.space import NotEnoughSpace, host_space
from controlplane.compute.host.steps import step
from controlplane.compute.host.tree import TreeUntrusted
from controlplane.compute.host.wal import LogUnreadable
from controlplane.compute.processes.session import socket_dir
from controlplane.compute.settings.configuration import HISTORY_SLOT
from controlplane.compute.slots import drop_slot
from controlplane.events.changes import history_gap
from controlplane.events.recording import record
from controlplane.history.local import bases, chain, pulling
from controlplane.history.local.bases import measure_bases
from controlplane.history.local.chain import (
    Base,
    Chain,
    Follows,
    chains_of,
    holding_history,
    open_chain,
    open_chain_of,
)
from controlplane.history.local.commits import activity
from controlplane.history.retention import (
    allowed_bytes,
    may_begin,
    outdated,
    prune,
    remove_oldest,
    switch_off,
)
from controlplane.models import Branch, Endpoint, EndpointState, HistoryChain, Host, Operation
from controlplane.models.history import LEFT
from controlplane.operations.disk import must_make_room
from controlplane.operations.locks import apart
from controlplane.operations.rounds.looks import look_at_each

log = logging.getLogger(__name__)

HISTORY_INTERVAL = 5.0  # seconds
# Seconds that a round waits for branches alone whose base or log takes longer: meanwhile the log of
# others is not copied, and gets lost if it is too much.
WAITING_TIME = 5.0
# Each round looks at the branches that have stopped within this time, and one in FULL_LOOK_INTERVAL
# at all that have stopped: those whose log could not be copied for long, or that have come from
# another host.
RECENT_AGE, FULL_LOOK_INTERVAL = timedelta(minutes=15), 600.0
# When this process last looked at all, by the monotonic clock.
_looked_at_all = -math.inf
# The branches whose chains have changed, for the copy off the host; and the stopped ones that have
# log which could not be copied yet.
changed_histories: set[str] = set()
uncopied_branches: set[str] = set()
# Bytes of log after which it is measured again what the bases take.
LOG_BYTES_PER_MEASURE = 8 << 20
# Why a first base could not be taken. The round tries again.
UNTAKEN = (bases.NoBase, LogUnreadable, NotEnoughSpace, TreeUntrusted, OSError)
# The least time between two bases of a running compute: each slows it down for a second.
MIN_BASE_INTERVAL = timedelta(minutes=5)


def keep_history(host: Host) -> None:
    """Copy the log of the branches that have written any, and take the bases that are due."""
    global _looked_at_all
    began = time.monotonic()
    looks_at_all = began - _looked_at_all >= FULL_LOOK_INTERVAL
    stopped = _stopped(host, since=None if looks_at_all else RECENT_AGE)
    if looks_at_all:
        _looked_at_all = began
    looked_at = {one.id: one for one in (*_left(host), *stopped, *_running(host))}

    def look(endpoint_id: str) -> bool:
        endpoint = looked_at[endpoint_id]
        retention, room = endpoint.project.history_retention_seconds, allowed_bytes(endpoint.branch)
        has_rows = endpoint.branch_id in published
        return keep(endpoint.branch_id, retention, room=room, has_rows=has_rows)

    ids = [one.branch_id for one in looked_at.values()]
    published = set(
        HistoryChain.objects.filter(branch_id__in=ids).values_list("branch_id", flat=True)
    )
    for endpoint, has_changed in look_at_each(
        looked_at.values(), look, at="history", waiting=WAITING_TIME
    ):
        if has_changed:
            changed_histories.add(endpoint.branch_id)


def remove_outdated(host: Host) -> None:
    """Remove what has become older than the window from the histories of branches that nobody
    writes to, which `keep_history` does not look at."""
    for branch_id, retention_seconds in outdated(host):
        with suppress(LockTimeout), apart(branch_id), holding_history(branch_id, timeout=0):
            chains = chains_of(branch_id)
            if retention_seconds == 0:
                switch_off(branch_id, chains)
            else:
                prune(chains, clock.now() - timedelta(seconds=retention_seconds))
            publish(branch_id, chains)
            changed_histories.add(branch_id)


def keep(
    branch_id: str, retention_seconds: int, *, room: int | None = None, has_rows: bool = True
) -> bool:
    """Do for one branch what the round does: `room` is how many bytes its history may take; None
    for no limit. Returns whether its chains have changed. They are published if they have, if the
    branch has no rows of them yet, and if all log of its stopped compute was copied. Raises
    LockTimeout, psycopg.Error, NotEnoughSpace, OSError."""
    with ExitStack() as held:
        running = compute.running_endpoint(branch_id)
        if running is None:
            # Nobody may start it while a base is taken.
            held.enter_context(lock_branches(branch_id, timeout=0))
            running = compute.running_endpoint(branch_id)
        held.enter_context(holding_history(branch_id, timeout=0))
        if not data_dir(branch_id).exists():
            _publish(branch_id, [], None)
            return True
        if running is None:
            uncopied_branches.add(branch_id)
        chains = chains_of(branch_id)
        before = [_summary(one) for one in chains]
        began, is_copied = clock.now(), True
        if retention_seconds == 0:
            switch_off(branch_id, chains)
        else:
            window = timedelta(seconds=retention_seconds)
            if host_space().is_short:
                is_copied = False
                if must_make_room():
                    remove_oldest(branch_id, chains, chain.DISK_FULL)
            elif begun := _copy(branch_id, open_chain_of(chains), running, window, room):
                chains[:] = [*(one for one in chains if one.number != begun.number), begun]
            prune(chains, clock.now() - window)
            for one in chains:
                _measure(one, branch_id)
            while room is not None and sum(one.disk_size() for one in chains) > room:
                remove_oldest(branch_id, chains, chain.SIZE_LIMIT)
        _record_gaps(branch_id, chains, began)
        has_changed = before != [_summary(one) for one in chains]
        has_all = is_copied and running is None
        # Under the history's lock, so that whoever replaces the data publishes later.
        if has_changed or has_all or not has_rows:
            _publish(branch_id, chains, began if has_all else None)
        if running is not None and open_chain_of(chains) is None:
            # No history needs the log. The next round tries again.
            with suppress(psycopg.Error):
                drop_slot(branch_id, socket_dir(running), HISTORY_SLOT)
        if is_copied:
            uncopied_branches.discard(branch_id)
        return has_changed


def _publish(branch_id: str, chains: list[Chain], copied_at: datetime | None) -> None:
    # A branch that was deleted meanwhile has no history any more.
    with apart(branch_id), suppress(FileNotFoundError):
        publish(branch_id, chains, copied_at)


def _record_gaps(branch_id: str, chains: list[Chain], since: datetime) -> None:
    """Record an event for each chain that has ended since that time."""
    for one in chains:
        if one.ended_at and one.ended_at >= since and one.end_reason not in chain.NO_LOSS:
            branch = Branch.objects.select_related("project").get(id=branch_id)
            with transaction.atomic():
                record(history_gap(branch, one.copied_at, one.end_reason))


def _summary(one: Chain) -> tuple[object, ...]:
    ends = tuple(base.end for base in one.bases())
    return one.number, one.copied, one.ended_at, one.measured, ends


def _measure(one: Chain, branch_id: str) -> None:
    """Measure what the chain's bases take, if there is so much new log that it may differ."""
    if one.measured is not None and one.copied - one.measured < LOG_BYTES_PER_MEASURE:
        return
    try:
        measure_bases(one, branch_id)
    except (OSError, TreeUntrusted) as error:
        log.warning("size of bases unknown", extra={"branch": branch_id, "error": str(error)})
    one.measured = one.copied
    one.write()


def publish(branch_id: str, chains: list[Chain], copied_at: datetime | None = None) -> None:
    """Make the branch's rows equal to its chains. `copied_at` is when the copy of all log of the
    stopped compute began; without one, the rows keep what they say about that."""
    kept, total = [], 0
    for one in chains:
        all_bases = one.bases()
        if not all_bases:
            continue
        kept.append(one.number)
        found, disk_size = activity(one), one.disk_size()
        total += disk_size
        values = {
            "first_at": all_bases[0].at,
            "first_lsn": all_bases[0].end,
            "last_at": one.until,
            "last_lsn": one.copied,
            "ended_at": one.ended_at,
            "end_reason": one.end_reason,
            "log_bytes": one.log_size(),
            "disk_bytes": disk_size,
            "spent_at": _outdated_at(one, all_bases),
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
        }
        HistoryChain.objects.update_or_create(
            branch_id=branch_id,
            number=one.number,
            defaults=values | ({"updated_at": copied_at} if copied_at else {}),
            create_defaults=values | {"updated_at": copied_at or one.copied_at},
        )
    HistoryChain.objects.filter(branch_id=branch_id).exclude(number__in=kept).delete()
    stored = Branch.objects.filter(id=branch_id).exclude(history_bytes=total)
    stored.update(history_bytes=total)


def _outdated_at(one: Chain, all_bases: Sequence[Base]) -> datetime | None:
    if len(all_bases) > 1:
        return all_bases[1].at
    return one.until if one.ended_at else None


def _running(host: Host) -> QuerySet[Endpoint]:
    running = compute.possibly_running()
    return _endpoints(host).filter(id__in=running, current_state=EndpointState.ACTIVE)


def _left(host: Host) -> list[Endpoint]:
    """For each branch without an endpoint whose log may not all be copied, an endpoint that is not
    saved and stands for the branch in the round."""
    chains = HistoryChain.objects.filter(host=host, updated_at=LEFT)
    branches = Branch.objects.select_related("project__account").filter(
        ~Exists(Endpoint.objects.filter(branch=OuterRef("id"), deleted_at=None)),
        id__in=chains.values("branch"),
        host=host,
        deleted_at=None,
        project__deleted_at=None,
    )
    return [Endpoint(id=one.id, branch=one, project=one.project) for one in branches]


def _stopped(host: Host, *, since: timedelta | None) -> QuerySet[Endpoint]:
    """The endpoints that were suspended, or whose branch got other data, after its log was last
    copied, and those whose project keeps no history any more. With `since`, of those only the ones
    that were suspended, or whose branch got other data, within that time."""
    chains = HistoryChain.objects.filter(branch=OuterRef("branch"))
    copied = chains.filter(updated_at__gt=OuterRef("changed_at"))
    keeps_none = Q(project__history_retention_seconds=0)
    replaced_at = Coalesce("branch__last_reset_at", "suspended_at")
    changed = _endpoints(host).annotate(changed_at=Greatest("suspended_at", replaced_at))
    if since is not None:
        # Each of the two is read by an index.
        suspended = _idle(host).filter(suspended_at__gt=Now() - since)
        reset = Branch.objects.filter(host=host, last_reset_at__gt=Now() - since)
        of_reset = _idle(host).filter(branch__in=reset)
        changed = changed.filter(
            id__in=suspended.values("id").union(of_reset.values("id"), all=True)
        )
    return changed.filter(
        (~keeps_none & ~Exists(copied)) | (keeps_none & Exists(chains)),
        current_state=EndpointState.IDLE,
        suspended_at__isnull=False,
    )


def _idle(host: Host) -> QuerySet[Endpoint]:
    return Endpoint.objects.filter(host=host, deleted_at=None, current_state=EndpointState.IDLE)


def _endpoints(host: Host) -> QuerySet[Endpoint]:
    return Endpoint.objects.select_related("project", "branch__project__account").filter(
        host=host,
        # The conditions on the branch and on the project's host follow from the others. With them,
        # Postgres can also read the rows of these tables by their host.
        branch__host=host,
        branch__deleted_at=None,
        project__host=host,
        project__deleted_at=None,
        deleted_at=None,
    )


def begin_history(operation: Operation, branch: Branch, follows: Follows | None = None) -> None:
    """Take the first base of the branch, to which the operation has given new data, before a
    compute can change it. Where that would take long, the round takes one of the running compute.

    If the operation has ended the chain of the data before, the new one begins at that moment. Does
    nothing if a chain is open. The caller holds the branch's lock and its history lock.
    """
    chains = chains_of(branch.id)
    if not open_chain_of(chains):
        ended_at = (
            chains[-1].ended_at if chains and chains[-1].end_reason in chain.NO_LOSS else None
        )
        at = ended_at if ended_at and ended_at >= operation.created_at else None
        take_first_base(operation, branch, at=at, follows=follows)
    publish(branch.id, chains_of(branch.id))
    changed_histories.add(branch.id)


def take_first_base(
    operation: Operation, branch: Branch, *, place: str | None = None, **of_new_data: Any
) -> None:
    """Take the first base of the branch's history, and write no rows about it. `place` is the name
    of the branch's directory while that is not in its own place yet. `of_new_data` are parameters
    of `base_of_stopped`."""
    retention, place = operation.project.history_retention_seconds, place or branch.id
    if not retention or host_space().is_short:
        return
    try:
        with step("taking_base"):
            window, room = timedelta(seconds=retention), allowed_bytes(branch)
            begun = _copy(place, None, None, window, room, **of_new_data)
            if flushed := pulling.flushed_logs.pop(place, None):
                pulling.flushed_logs[branch.id] = flushed
            # Where blocks are shared, it takes none of its own yet.
            if begun is not None and not shares_blocks(data_dir(place).parent.parent):
                _measure(begun, place)
    except UNTAKEN as error:
        log.warning("no first base", extra={"branch": branch.id, "error": str(error)})


def copy_log(branch_id: str) -> None:
    """Copy the branch's log up to the present into its open chain, if it has one. The caller holds
    the branch's history lock. Raises psycopg.Error, LogUnreadable, NotEnoughSpace, OSError."""
    going_on = open_chain(branch_id)
    if going_on is None:
        return
    if running := compute.running_endpoint(branch_id):
        pulling.pull_running(going_on, branch_id, socket_dir(running), whole=True)
    else:
        pulling.pull_stopped(going_on, branch_id)


def _copy(
    branch_id: str,
    going_on: Chain | None,
    running: str | None,
    window: timedelta,
    room: int | None,
    **of_new_data: Any,
) -> Chain | None:
    """Copy the log into the chain that goes on, and take a base if one is due, `of_new_data` as
    `base_of_stopped` takes it. Returns the chain with the base; None without one."""
    if running is None:
        if going_on is not None:
            pulling.pull_stopped(going_on, branch_id)
        if not _base_is_due(branch_id, going_on, window, room) or takes_long_to_copy(branch_id):
            return None
        begun = bases.base_of_stopped(branch_id, **of_new_data)
        pulling.pull_stopped(begun, branch_id, end=of_new_data.get("end"))
        return begun
    sockets = socket_dir(running)
    if going_on is not None:
        pulling.pull_running(going_on, branch_id, sockets)
        goes_on = going_on.ended_at is None
        if goes_on and clock.now() - going_on.bases()[-1].at < MIN_BASE_INTERVAL:
            return None
    if not _base_is_due(branch_id, going_on, window, room):
        return None
    begun = bases.base_of_running(branch_id, sockets)
    pulling.pull_running(begun, branch_id, sockets, whole=True)
    return begun


def _base_is_due(
    branch_id: str, going_on: Chain | None, window: timedelta, room: int | None
) -> bool:
    if going_on is None or going_on.ended_at is not None:
        return room is None or may_begin(branch_id, room)
    last = going_on.bases()[-1]
    if going_on.copied <= last.end:
        return False
    if shares_blocks(data_dir(branch_id).parent.parent):
        return going_on.copied - last.end >= bases.LOG_BYTES_PER_BASE
    # A copy takes as much room as the branch: one in each window.
    return clock.now() - last.at >= window

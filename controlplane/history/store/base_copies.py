"""Copies bases to the store, and the data of branches whose history does not go on; deletes there
what is older than the project's window.

A base is copied when as much log lies behind the last one as the base is large, so that bases
together take no more than the log, or when the last one is older than the window, so that older log
can be deleted.

One look (`copy_bases_to_store`) is at all branches whose log was copied, at branches without
history and, once an hour, at what the store has of branches that are gone.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial

from django.conf import settings
from django.db.models import Exists, OuterRef

from controlplane import clock
from controlplane.backup.branch_copy import idle_data, state_of
from controlplane.backup.taking import branches_with_data, ready_branches
from controlplane.compute.compute import running_endpoint
from controlplane.compute.data.base_backup import PROCESS_FILES
from controlplane.compute.data.branch_data import branch_dir, data_dir
from controlplane.compute.host.tree import open_directory
from controlplane.compute.host.wal import segment_start
from controlplane.history.local.bases import NOT_IN_A_BASE
from controlplane.history.local.chain import Base, Chain, chains_of, holding_history, open_chain
from controlplane.history.store.copier import Copier, Copies, id_of, publish, stored_chain
from controlplane.history.store.layout import (
    BranchList,
    StoredBase,
    StoredChain,
    StoredData,
    pieces_in,
)
from controlplane.history.store.objects import random_name
from controlplane.history.store.packing import tree_stream
from controlplane.history.store_status import state
from controlplane.models import Branch, HistoryChain, Project

# Bytes of log after which a further base is copied at the earliest: so much is quickly replayed.
MIN_LOG_BYTES_PER_BASE = 128 << 20
LOCK_TIMEOUT = 5.0
# The least time between two copies of the whole data of a branch: it may be suspended often.
MIN_DATA_INTERVAL = timedelta(minutes=5)
# Seconds between two looks for branches without history, and between two looks at every branch.
LOOK_INTERVAL, SWEEP_INTERVAL = 20.0, 3600.0

_looked = _swept = float("-inf")


def copy_bases_to_store(copier: Copier) -> None:
    """Copy the bases and data that are due, and delete what is too old."""
    global _swept, _looked
    if time.monotonic() - _looked > LOOK_INTERVAL:
        _looked = time.monotonic()
        _copy_without_history(copier)
        _count_left_out(copier)
    due = list(copier.bases_due)
    rows = Branch.objects.filter(id__in=due, deleted_at=None)
    windows = dict(rows.values_list("id", "project__history_retention_seconds"))
    for branch_id in due:
        if branch_id not in windows:
            copier.bases_due.discard(branch_id)
            continue
        window = timedelta(seconds=windows[branch_id])
        if copier.attempt(f"base of {branch_id}", partial(_look, copier, branch_id, window)):
            copier.bases_due.discard(branch_id)
    if time.monotonic() - _swept > SWEEP_INTERVAL and copier.attempt(
        "sweep", partial(_sweep, copier)
    ):
        _swept = time.monotonic()


def _look(copier: Copier, branch_id: str, window: timedelta) -> bool:
    copies = copier.copies
    if copy_base(copies, branch_id, window):
        with copies.holding(branch_id) as branch:
            publish(branch)
        # It may have counted as behind for the lack of this base.
        copier.logs_due.add(branch_id)
    prune(copies, branch_id, window)
    return True


def _copy_without_history(copier: Copier) -> None:
    """Copy the data of branches whose history does not go on: snapshots, branches that were never
    started, and those without room for a history. Without this they, or what was written since,
    would be lost with the host."""
    ready = branches_with_data().filter(
        ~Exists(HistoryChain.objects.filter(branch=OuterRef("id"), ended_at=None)),
        project__history_retention_seconds__gt=0,
    )
    ids = set(ready.values_list("id", flat=True))
    copier.data_copied &= ids
    for branch in ready.exclude(id__in=copier.data_copied):
        if copier.attempt(f"data of {branch.id}", partial(_copy_data, copier, branch)):
            copier.data_behind.discard(branch.id)
            state.behind.pop(branch.id, None)
        else:
            copier.data_behind.add(branch.id)
            state.behind.setdefault(branch.id, clock.now())
    for branch_id in copier.data_behind - ids:
        copier.data_behind.discard(branch_id)
        state.behind.pop(branch_id, None)


def _copy_data(copier: Copier, branch: Branch) -> bool:
    """See `copy_data`."""
    if open_chain(branch.id) or not data_dir(branch.id).exists():
        return True  # the rows do not say so yet
    is_copied = copy_data(copier.copies, branch)
    if is_copied and branch.hidden:
        copier.data_copied.add(branch.id)
    return is_copied


def _count_left_out(copier: Copier) -> None:
    """Publish how many projects are not in the store, because their owners keep no history."""
    left_out = Project.objects.filter(
        host=copier.host, deleted_at=None, history_retention_seconds=0
    )
    state.projects_left_out = left_out.count()


def _sweep(copier: Copier) -> bool:
    """Look at the bases of all branches, and delete what the store has of branches that are
    gone."""
    copies = copier.copies
    living = set(ready_branches())
    copier.bases_due |= living
    keep_for = timedelta(hours=settings.RECOVERY_HOURS)
    for branch_id in set(copies.store.folders(f"{copies.host}/branches")) - living:
        if not branch_dir(branch_id).exists():
            gone = partial(delete_gone, copies, branch_id, keep_for)
            copier.attempt(f"end of {branch_id}", gone)
    return True


def copy_base(copies: Copies, branch_id: str, window: timedelta) -> bool:
    """Copy the newest base of the branch's last chain, if one is due. Returns whether one was.

    Raises StoreFails, Damaged, WrongKey, LockTimeout, OSError.
    """
    chain = next(reversed(chains_of(branch_id)), None)
    if chain is None:
        return False
    with copies.holding(branch_id) as branch:
        stored = stored_chain(branch, chain)
        base = _due(chain, stored, window) if stored else None
    if stored is None or base is None:
        return False
    if base.template:
        name = _template(copies, chain, base)
    else:
        name = f"{copies.folder(branch_id)}/{stored.id}/bases/{base.end:016X}-{random_name()}"
    copies.in_flight.add(name)
    try:
        if not base.template:
            with _base(branch_id, chain, base, stored) as directory:
                copies.store.put(name, tree_stream(directory, skip=NOT_IN_A_BASE))
        with copies.holding(branch_id) as branch:
            return _list_base(copies, branch, chain, StoredBase(base, name))
    finally:
        copies.in_flight.discard(name)


def _list_base(copies: Copies, branch: BranchList, chain: Chain, made: StoredBase) -> bool:
    """Add the base to the list, which the caller holds. Returns False if the chain is gone, or if
    another thread has copied this base or a later one meanwhile."""
    stored = stored_chain(branch, chain)
    if stored is None or any(one.base.end >= made.base.end for one in stored.bases):
        if not made.base.template:
            copies.store.delete([made.name])
        return False
    stored.bases.append(made)
    copies.write(branch)
    return True


def has_data(stored: BranchList, branch: Branch) -> bool:
    """Whether the store has a copy of the branch's data as it is now. Raises OSError."""
    reset_at = branch.last_reset_at
    if stored.data is None or (reset_at is not None and reset_at >= stored.data.at):
        return False
    if branch.hidden and not stored.data.state:
        return True  # copied by an earlier release; nothing writes to snapshots
    with open_directory(data_dir(branch.id)) as directory:
        return stored.data.state == state_of(directory)


def copy_data(copies: Copies, branch: Branch) -> bool:
    """Copy the data of a branch whose history does not go on and whose compute does not run, unless
    the store has it. Returns False if the store does not get it now, because the compute runs or
    because other data of the branch was copied a moment ago.

    Raises DataInUse if it did not stay idle, StoreFails, Damaged, WrongKey, LockTimeout, OSError.
    """
    with copies.holding(branch.id) as stored:
        known = stored.data
        if has_data(stored, branch):
            return True
    at = clock.now()
    name = f"{copies.folder(branch.id)}/data/{at:%Y%m%dT%H%M%S}-{random_name()}"
    if running_endpoint(branch.id) is not None or (known and at - known.at < MIN_DATA_INTERVAL):
        return False
    with idle_data(branch.id) as directory:
        state = state_of(directory)
        copies.store.put(name, tree_stream(directory, skip=PROCESS_FILES))
    with copies.holding(branch.id) as stored:
        stored.project_id, stored.gone_at = branch.project_id, None
        stored.data = StoredData(name, at, state)
        copies.write(stored)
    if known:
        copies.store.delete([known.name])
    return True


def prune(copies: Copies, branch_id: str, window: timedelta) -> None:
    """Delete what no moment within the window needs, and what no list names.

    Raises StoreFails, Damaged, WrongKey.
    """
    before = clock.now() - window
    with copies.holding(branch_id) as branch:
        unchanged = branch.as_json()
        on_disk = {id_of(chain) for chain in chains_of(branch_id)}
        _prune_chains(branch, before, on_disk)
        if not window:
            # The project keeps no history, and nothing off the host.
            branch.chains = [one for one in branch.chains if one.id in on_disk]
            branch.data = None
        if branch.newest is not branch.data:
            branch.data = None
        if branch.as_json() != unchanged:
            copies.write(branch)
            copies.store.delete(_unlisted_objects(copies, branch))


def delete_gone(copies: Copies, branch_id: str, keep_for: timedelta) -> None:
    """Delete all of a branch that is deleted on the host, once it has been found so for `keep_for`.

    Raises StoreFails, Damaged, WrongKey.
    """
    with copies.holding(branch_id) as branch:
        if branch.gone_at is None:
            branch.gone_at = clock.now()
            copies.write(branch)
        if clock.now() - branch.gone_at >= keep_for:
            copies.store.delete(copies.store.names(copies.folder(branch_id)))
            copies.forget(branch_id)


def _due(chain: Chain, stored: StoredChain, window: timedelta) -> Base | None:
    """The base to copy now, if one is due."""
    bases = [one for one in chain.bases() if one.redo >= stored.start]
    if not bases:
        return None
    newest = bases[-1]
    if not stored.bases:
        return newest
    last = stored.bases[-1].base
    if newest.end <= last.end:
        return None
    most_log = max(MIN_LOG_BYTES_PER_BASE, newest.size)
    is_due = stored.end - last.end >= most_log or clock.now() - last.at >= window
    return newest if is_due else None


def _template(copies: Copies, chain: Chain, base: Base) -> str:
    """The object that holds the template, which many branches have as their first base. It is
    copied once."""
    version = base.template
    if version not in copies.templates:
        folder = f"{copies.host}/templates/{version}"
        # Without the key, others may have put something there.
        name = next(filter(copies.store.is_whole, copies.store.names(folder)), None)
        if name is None:
            name = f"{folder}/{random_name()}"
            with open_directory(chain.data_of(base)) as directory:
                copies.store.put(name, tree_stream(directory, skip=NOT_IN_A_BASE))
        copies.templates[version] = name
    return copies.templates[version]


@contextmanager
def _base(branch_id: str, chain: Chain, base: Base, stored: StoredChain) -> Iterator[int]:
    """The base's directory. It may be removed meanwhile: then a file is missing."""
    with holding_history(branch_id, timeout=LOCK_TIMEOUT):
        if id_of(chain) != stored.id:
            raise FileNotFoundError("the chain is gone")
        descriptor = os.open(chain.data_of(base), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _prune_chains(branch: BranchList, before: datetime, on_disk: set[str | None]) -> None:
    newest = branch.newest
    for stored in list(branch.chains):
        over = stored.id not in on_disk or stored.ended_at is not None
        # What has the newest state stays until newer data is there.
        over = over and stored is not newest
        if over and (stored.until is None or stored.until < before):
            branch.chains.remove(stored)
            continue
        older = [one for one in stored.usable_bases if one.base.at <= before]
        if older:
            stored.bases = [one for one in stored.bases if one.base.end >= older[-1].base.end]
            stored.start = max(stored.start, segment_start(older[-1].base.redo))


def _unlisted_objects(copies: Copies, branch: BranchList) -> list[str]:
    """The branch's objects that its list does not name, without the base that another thread is
    storing. The caller holds the list."""
    names = list(copies.store.names(copies.folder(branch.branch_id)))
    kept = {*branch.names, *(base.name for one in branch.chains for base in one.bases)}
    kept |= copies.in_flight
    if branch.data:
        kept.add(branch.data.name)
    for stored in branch.chains:
        log = f"{copies.folder(branch.branch_id)}/{stored.id}/log/"
        pieces = pieces_in(name for name in names if name.startswith(log))
        kept |= {piece.name for piece in pieces if piece.end > stored.start}
    return [name for name in names if name not in kept]

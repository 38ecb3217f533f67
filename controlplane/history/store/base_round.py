"""One look at the bases of all branches whose log was copied, at branches without history, and,
once an hour, at what the store has of branches that are gone."""

import time
from datetime import timedelta
from functools import partial

from django.conf import settings
from django.db.models import Exists, OuterRef

from controlplane import clock
from controlplane.backup.taking import branches_with_data, ready_branches
from controlplane.compute.data.branch_data import branch_dir, data_dir
from controlplane.history.local.chain import open_chain
from controlplane.history.store.base_copies import copy_base, copy_data, delete_gone, prune
from controlplane.history.store.copier import Copier, publish
from controlplane.history.store_status import state
from controlplane.models import Branch, HistoryChain, Project

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

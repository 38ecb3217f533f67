"""One look at the log of all branches that have written any."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from controlplane import clock
from controlplane.compute import compute
from controlplane.compute.data.branch_data import branch_dir
from controlplane.history.keeping import changed_histories, uncopied_branches
from controlplane.history.local.pulling import flushed_logs
from controlplane.history.store.behind import note_behind
from controlplane.history.store.copier import Copier, publish
from controlplane.history.store.layout import BranchList
from controlplane.history.store.log_copies import copy_log, is_behind
from controlplane.history.store.signs import Sign, store_sign
from controlplane.history.store_status import state
from controlplane.models import Branch

# Branches are copied side by side, as most of the time is spent waiting for the store.
MAX_CONCURRENT_COPIES = 8

# How far the log of each branch was flushed when it was last copied, and the host's last sign.
_seen: dict[str, int] = {}
_sign: Sign | None = None


def copy_logs_to_store(copier: Copier) -> None:
    """Copy the log that was flushed since the last look, and give the host's sign."""
    global _sign
    while changed_histories:
        copier.logs_due.add(changed_histories.pop())
    for branch_id, flushed in list(flushed_logs.items()):
        if _seen.get(branch_id) != flushed.lsn:
            copier.logs_due.add(branch_id)
    due = sorted(copier.logs_due)
    projects = dict(Branch.objects.filter(id__in=due).values_list("id", "project_id"))
    with ThreadPoolExecutor(MAX_CONCURRENT_COPIES, thread_name_prefix="store-log") as threads:
        copied = threads.map(partial(_copy, copier, projects), due)
        for branch_id, branch in zip(due, copied, strict=True):
            if branch is not None:
                copier.attempt(f"row of {branch_id}", partial(publish, branch))
            elif branch_id not in projects or not branch_dir(branch_id).exists():
                copier.logs_due.discard(branch_id)
                state.behind.pop(branch_id, None)
    note_behind()
    copies, working = copier.copies, compute.working_branches()
    uncopied = {one for one in uncopied_branches.copy() if branch_dir(one).exists()}
    behind = {*copier.data_behind, *state.behind, *uncopied}
    given = copier.attempt("sign", lambda: store_sign(copies, _sign, _seen, behind, working))
    _sign = given or _sign


def _copy_log(
    copier: Copier, projects: Mapping[str, str], branch_id: str
) -> tuple[BranchList, bool]:
    branch = copy_log(copier.copies, branch_id, projects[branch_id])
    return branch, is_behind(branch, branch_id)


def _copy(copier: Copier, projects: Mapping[str, str], branch_id: str) -> BranchList | None:
    """Copy the branch's log. None if that fails, or if there is no such branch any more."""
    if branch_id not in projects or not branch_dir(branch_id).exists():
        return None
    flushed = flushed_logs.get(branch_id)
    found = copier.attempt(f"log of {branch_id}", partial(_copy_log, copier, projects, branch_id))
    branch, behind = found or (None, True)
    if branch is None or behind:
        state.behind.setdefault(branch_id, clock.now())
        return branch
    copier.logs_due.discard(branch_id)
    copier.bases_due.add(branch_id)
    if flushed:
        _seen[branch_id] = flushed.lsn
    if not branch.chains or branch.chains[-1].copied_at:
        # Of a branch whose history does not go on, the log is not the newest.
        if branch_id not in copier.data_behind:
            state.behind.pop(branch_id, None)
    else:
        # The log cannot be used before a base is there.
        state.behind.setdefault(branch_id, clock.now())
    return branch

"""The worker's rounds that copy the history to the store.

Each round only starts a thread, unless its last one still works: a slow store delays nothing else.
The threads have a low priority. One copies the log, so that a large base copy does not delay it;
the other copies bases, rows and what else is due.
"""

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

from django.conf import settings
from django.db import connections
from django.db.models import Exists, OuterRef

from controlplane import clock
from controlplane.backup.metadata_copy import DumpFailed
from controlplane.compute.branch_data import branch_dir, data_dir
from controlplane.compute.filesystem import LockTimeout
from controlplane.compute.history.chain import chains_of
from controlplane.compute.history.pulling import LogLost, flushed_logs
from controlplane.compute.patience import OutOfPatience
from controlplane.compute.state_directory import identity
from controlplane.history_store import base_copies
from controlplane.history_store.behind import note_behind
from controlplane.history_store.copies import Copies
from controlplane.history_store.drills import drill
from controlplane.history_store.layout import BranchList
from controlplane.history_store.log_copies import LogDamaged, copy_log, is_behind
from controlplane.history_store.objects import StoreFails, the_store
from controlplane.history_store.packing import Damaged, WrongKey
from controlplane.history_store.row_copies import copy_rows, newest_change
from controlplane.history_store.signs import Sign, give_sign
from controlplane.history_store.trees import TreeChanged
from controlplane.models import Branch, BranchState, HistoryChain, Region
from controlplane.operations.history import changed_histories
from controlplane.operations.history_copies import state
from controlplane.operations.upkeep import Round

log = logging.getLogger(__name__)

# The priority of the threads: a small part of what others leave of a busy processor.
NICE = 10
# Seconds: the first and the longest pause after a failure.
FIRST_PAUSE, LONGEST_PAUSE = 2.0, 60.0
# Seconds between two copies of the rows: at least, after a change, and at most. A copy may take a
# twentieth of the time.
ROWS_AFTER, ROWS_AT_MOST, ROWS_PART = 10.0, 3600.0, 20
# Seconds between two looks at every branch.
BETWEEN_SWEEPS = 3600.0
BETWEEN_DRILLS = timedelta(days=1)

# What concerns one branch only, or may be over at the next attempt.
OF_A_BRANCH = (
    *(Damaged, LogDamaged, LogLost, LockTimeout, TreeChanged, OutOfPatience),
    *(FileNotFoundError, StoreFails, OSError),
)


@dataclass
class Pause:
    """A growing pause between attempts."""

    until: float = 0.0
    length: float = 0.0

    def is_over(self) -> bool:
        return time.monotonic() >= self.until

    def grow(self) -> None:
        self.length = min(max(2 * self.length, FIRST_PAUSE), LONGEST_PAUSE)
        self.until = time.monotonic() + self.length


@dataclass
class Copier:
    """What the threads of this process have done."""

    copies: Copies
    region: Region
    # Branches whose log, and whose bases, are to be looked at.
    to_copy: set[str] = field(default_factory=set)
    bases_due: set[str] = field(default_factory=set)
    # How far the log was flushed that each branch's last look at it has seen.
    seen: dict[str, int] = field(default_factory=dict)
    pauses: dict[str, Pause] = field(default_factory=dict)
    # Branches without history whose data is in the store.
    data_copied: set[str] = field(default_factory=set)
    rows_copied: float = float("-inf")
    rows_took: float = 0.0
    rows_change: int = -1
    swept: float = float("-inf")
    sign: Sign | None = None


_copier: Copier | None = None
_threads: dict[str, threading.Thread] = {}


def copy_logs_off_host(region: Region) -> None:
    """Copy the log that was flushed since the last look."""
    _begin("log", _copy_logs, region)


def copy_bases_off_host(region: Region) -> None:
    """Copy the bases and rows that are due, and delete what is too old."""
    _begin("bases", _copy_bases, region)


ROUNDS = (Round(1, copy_logs_off_host), Round(5, copy_bases_off_host))


def rounds() -> tuple[Round, ...]:
    """The rounds, if the settings name a store. Raises StoreMisnamed."""
    if the_store() is None:
        return ()
    state.is_used, state.began_at = True, clock.now()
    return ROUNDS


def _begin(name: str, do: Callable[[Copier], None], region: Region) -> None:
    """Do it in a thread, unless the last one goes on. Raises StoreMisnamed."""
    global _copier
    if _copier is None:
        store = the_store()
        assert store is not None
        _copier = Copier(Copies(store, region=region.id, host=identity()), region)
        of_region = HistoryChain.objects.filter(branch__project__region=region)
        _copier.to_copy.update(of_region.values_list("branch_id", flat=True))
    if (last := _threads.get(name)) and last.is_alive():
        return
    copier = _copier

    def work() -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        try:
            do(copier)
        except Exception:
            log.exception("copy to the store failed")
        finally:
            connections.close_all()

    _threads[name] = threading.Thread(target=work, name=f"store-{name}", daemon=True)
    _threads[name].start()


def _copy_logs(copier: Copier) -> None:
    while changed_histories:
        copier.to_copy.add(changed_histories.pop())
    for branch_id, flushed in list(flushed_logs.items()):
        if copier.seen.get(branch_id) != flushed.lsn:
            copier.to_copy.add(branch_id)
    projects = dict(Branch.objects.filter(id__in=copier.to_copy).values_list("id", "project_id"))
    for branch_id in sorted(copier.to_copy):
        flushed_now = flushed_logs.get(branch_id)
        if branch_id not in projects or not branch_dir(branch_id).exists():
            copier.to_copy.discard(branch_id)
            state.behind.pop(branch_id, None)
            continue
        copied = _try_log(copier, branch_id, projects[branch_id])
        if copied is None or is_behind(copied, branch_id):
            state.behind.setdefault(branch_id, clock.now())
            continue
        copier.to_copy.discard(branch_id)
        if flushed_now:
            copier.seen[branch_id] = flushed_now.lsn
        copier.bases_due.add(branch_id)
        if copied.copied_at:
            state.behind.pop(branch_id, None)
        else:
            # The log cannot be used before a base is there.
            state.behind.setdefault(branch_id, clock.now())
        _publish(copied)
    note_behind()
    if copier.pauses.setdefault("sign", Pause()).is_over():
        try:
            copies = copier.copies
            copier.sign = give_sign(copies.store, copies.host, copier.sign, copier.seen)
        except StoreFails as error:
            _failed(copier, "sign", error)
        else:
            copier.pauses.pop("sign")


def _try_log(copier: Copier, branch_id: str, project_id: str) -> BranchList | None:
    """Copy the branch's log, unless its last failure was a moment ago; None if that fails."""
    pause = copier.pauses.setdefault(branch_id, Pause())
    if not pause.is_over():
        return None
    try:
        copied = copy_log(copier.copies, branch_id, project_id)
    except (*OF_A_BRANCH, WrongKey) as error:
        _failed(copier, branch_id, error)
        return None
    copier.pauses.pop(branch_id, None)
    state.error = ""
    return copied


def _failed(copier: Copier, what: str, error: BaseException) -> None:
    copier.pauses.setdefault(what, Pause()).grow()
    state.error = f"{type(error).__name__}: {error}"
    log.warning("not copied to the store", extra={"what": what, "error": state.error})


def _publish(branch: BranchList) -> None:
    """Tell the API until when the branch can be restored from the store."""
    if branch.chains and branch.copied_at:
        rows = HistoryChain.objects.filter(
            branch_id=branch.branch_id, number=branch.chains[-1].number
        )
        rows.exclude(stored_at=branch.copied_at).update(stored_at=branch.copied_at)


def _copy_bases(copier: Copier) -> None:
    _copy_rows(copier)
    _copy_chainless(copier)
    due = list(copier.bases_due)
    windows = _windows(due)
    for branch_id in due:
        copier.bases_due.discard(branch_id)
        if branch_id not in windows:
            continue
        _copy_base(copier, branch_id, windows[branch_id])
    if time.monotonic() - copier.swept > BETWEEN_SWEEPS:
        copier.swept = time.monotonic()
        _sweep(copier)
    last = state.drilled_at or state.began_at
    if last and clock.now() - last > BETWEEN_DRILLS:
        drill(copier.copies)


def _copy_base(copier: Copier, branch_id: str, window: timedelta) -> None:
    copies, name = copier.copies, f"base of {branch_id}"
    if not copier.pauses.setdefault(name, Pause()).is_over():
        copier.bases_due.add(branch_id)
        return
    try:
        if base_copies.copy_base(copies, branch_id, window):
            with copies.holding(branch_id) as branch:
                _publish(branch)
            # Its log may have waited for this.
            copier.to_copy.add(branch_id)
        base_copies.prune(copies, branch_id, window)
    except (*OF_A_BRANCH, WrongKey) as error:
        _failed(copier, name, error)
        copier.bases_due.add(branch_id)
    else:
        copier.pauses.pop(name, None)


def _windows(branch_ids: list[str]) -> dict[str, timedelta]:
    rows = Branch.objects.filter(id__in=branch_ids, deleted_at=None)
    seconds = rows.values_list("id", "project__history_retention_seconds")
    return {branch_id: timedelta(seconds=found) for branch_id, found in seconds}


def _copy_rows(copier: Copier) -> None:
    """Copy the rows if any have changed, at most once a minute."""
    pause = copier.pauses.setdefault("rows", Pause())
    since, change = time.monotonic() - copier.rows_copied, newest_change()
    if change != copier.rows_change and state.rows_behind is None:
        state.rows_behind = clock.now()
    wait = max(ROWS_AFTER, ROWS_PART * copier.rows_took)
    is_due = since > wait if change != copier.rows_change else since > ROWS_AT_MOST
    if not is_due or not pause.is_over():
        return
    began = time.monotonic()
    try:
        copy_rows(copier.copies)
    except (StoreFails, DumpFailed, OSError) as error:
        _failed(copier, "rows", error)
        return
    copier.pauses.pop("rows")
    copier.rows_copied, copier.rows_took = time.monotonic(), time.monotonic() - began
    copier.rows_change, state.rows_behind = change, None


def _copy_chainless(copier: Copier) -> None:
    """Copy the data of branches that have no history yet, such as snapshots, and branches that were
    never started. Without this they would be lost with the host."""
    ready = Branch.objects.filter(
        ~Exists(HistoryChain.objects.filter(branch=OuterRef("id"))),
        project__region=copier.region,
        project__history_retention_seconds__gt=0,
        deleted_at=None,
        current_state=BranchState.READY,
    )
    for branch in ready.exclude(id__in=copier.data_copied):
        if chains_of(branch.id) or not data_dir(branch.id).exists():
            continue
        name = f"data of {branch.id}"
        if not copier.pauses.setdefault(name, Pause()).is_over():
            continue
        try:
            if base_copies.copy_data(copier.copies, branch):
                copier.data_copied.add(branch.id)
        except (*OF_A_BRANCH, WrongKey) as error:
            _failed(copier, name, error)
        else:
            copier.pauses.pop(name)


def _sweep(copier: Copier) -> None:
    """Look at every branch's bases, and delete what is gone on this host."""
    copies, region = copier.copies, copier.region
    try:
        stored = set(copies.store.folders(f"{copies.host}/branches"))
    except StoreFails as error:
        _failed(copier, "sweep", error)
        copier.swept = float("-inf")
        return
    ready = Branch.objects.filter(
        project__region=region, deleted_at=None, current_state=BranchState.READY
    )
    living = set(ready.values_list("id", flat=True))
    copier.bases_due |= living
    stored -= living
    for branch_id in stored:
        if branch_dir(branch_id).exists():
            continue
        try:
            base_copies.delete_gone(copies, branch_id, timedelta(hours=settings.RECOVERY_HOURS))
        except (*OF_A_BRANCH, WrongKey) as error:
            _failed(copier, branch_id, error)

"""The worker's rounds that copy the history to the store.

Each round only starts a thread, unless its last one still works: a slow store delays nothing else,
and a large base copy or a drill delays neither the log nor the rows. The threads have a low
priority. What finds the bases to copy, or to delete, is here; `log_copies` and `host_copies` have
the rounds of the log and of the rows.
"""

import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial, wraps

from django.conf import settings
from django.db import connections
from django.db.models import Exists, OuterRef

from controlplane import clock, encryption
from controlplane.backup.taking import branches_with_data, ready_branches
from controlplane.compute.data.branch_data import branch_dir, data_dir
from controlplane.compute.data.state_directory import identity
from controlplane.features import Round
from controlplane.history.local.chain import open_chain
from controlplane.history.store.base_copies import copy_base, copy_data, delete_gone, prune
from controlplane.history.store.copier import Copier, Copies, publish
from controlplane.history.store.drills import drill
from controlplane.history.store.host_copies import copy_rows_to_store
from controlplane.history.store.log_copies import copy_logs_to_store
from controlplane.history.store.lost_branches import enable_restores, look_after_lost_hosts
from controlplane.history.store.objects import configured_store
from controlplane.history.store.received_logs import copy_before_receiving
from controlplane.history.store_status import state
from controlplane.models import Branch, HistoryChain, Host, Project, SecretKey

log = logging.getLogger(__name__)

# The priority of the threads: they get a small part of a busy processor.
NICENESS = 10
# The time between two drills, and from the start to the first one, when little may be copied.
DRILL_INTERVAL, FIRST_DRILL_DELAY = timedelta(days=1), timedelta(minutes=30)
# Seconds between two looks for branches without history, and between two looks at every branch.
LOOK_INTERVAL, SWEEP_INTERVAL = 20.0, 3600.0
_looked = _swept = float("-inf")


def store_rounds(host: Host) -> tuple[Round, ...]:
    """The rounds, if the settings name a store. Raises StoreMisnamed."""
    store = configured_store()
    if store is None:
        return ()
    enable_restores(store)
    copier = Copier(Copies(store, region=host.region_id, host=identity()), host)
    copy_before_receiving(copier.copies)
    of_host = HistoryChain.objects.filter(branch__project__host=host)
    copier.logs_due.update(of_host.values_list("branch_id", flat=True))
    state.is_used, state.began_at = True, clock.now()
    known = host.history_store.get("drilled_at")
    state.drilled_at = datetime.fromisoformat(known) if known else None
    return (
        Round(60, _in_thread(keep_keys_in_store, copier)),
        Round(2, _in_thread(copy_logs_to_store, copier)),
        Round(5, _in_thread(copy_bases_to_store, copier)),
        Round(2, _in_thread(copy_rows_to_store, copier)),
        Round(3600, _in_thread(drill_restore, copier)),
        Round(5, look_after_lost_hosts),
    )


def drill_restore(copier: Copier) -> None:
    """Once a day, restore a branch from the store to check it; after a failure, once an hour."""
    last = state.drilled_at or state.began_at
    is_first = state.drilled_at is None or state.drill_error
    if last and clock.now() - last > (FIRST_DRILL_DELAY if is_first else DRILL_INTERVAL):
        drill(copier)


def keep_keys_in_store(copier: Copier) -> None:
    """Keep in the store the keys that its older objects are encrypted with, once after each
    start. A key that the operator has chosen for the history does not change with the secret
    key."""
    if state.keeps_keys or settings.HISTORY_KEY:
        return
    retired = SecretKey.encrypted_history_keys()
    keys = [encryption.decrypt(one, purpose=encryption.HISTORY_KEYS) for one in retired]
    keys += encryption.history_keys()[1:]
    done = copier.attempt("keys", lambda: copier.copies.store.keep_former_keys(keys))
    state.keeps_keys = done is not None


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


def _in_thread(do: Callable[[Copier], None], copier: Copier) -> Callable[[Host], None]:
    """A round that does it in a thread, unless the thread of the last time goes on."""
    thread = threading.Thread()

    def work() -> None:
        # Refused if the service was started with a higher niceness: only root may lower one.
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        try:
            do(copier)
        except Exception as error:
            state.error = type(error).__name__
            log.exception("the copy to the store failed")
        finally:
            connections.close_all()

    @wraps(do)
    def begin(_: object) -> None:
        nonlocal thread
        if not thread.is_alive():
            thread = threading.Thread(target=work, name=f"store-{do.__name__}", daemon=True)
            thread.start()

    return begin

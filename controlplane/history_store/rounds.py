"""The worker's rounds that copy the history to the store.

Each round only starts a thread, unless its last one still works: a slow store delays nothing else,
and a large base copy or a drill delays neither the log nor the rows. The threads have a low
priority.
"""

import logging
import os
import threading
from collections.abc import Callable
from datetime import datetime, timedelta

from django.conf import settings
from django.db import connections

from controlplane import clock, encryption
from controlplane.compute.state_directory import identity
from controlplane.history_store.base_round import copy_bases
from controlplane.history_store.copier import Copier
from controlplane.history_store.copies import Copies
from controlplane.history_store.drills import drill
from controlplane.history_store.log_round import copy_logs
from controlplane.history_store.lost_branches import look_after_lost_hosts, restore_with
from controlplane.history_store.objects import the_store
from controlplane.history_store.received_logs import copy_before_receiving
from controlplane.history_store.row_copies import copy_rows_if_due
from controlplane.models import HistoryChain, Host, SecretKey
from controlplane.operations.history_copies import state
from controlplane.operations.upkeep import Round

log = logging.getLogger(__name__)

# The priority of the threads: they get a small part of a busy processor.
NICE = 10
# The time between two drills, and from the start to the first one, when little may be copied.
BETWEEN_DRILLS, FIRST_DRILL = timedelta(days=1), timedelta(minutes=30)

_copier: Copier | None = None
_threads: dict[str, threading.Thread] = {}


def copy_logs_to_store(host: Host) -> None:
    """Copy the log that was flushed since the last look."""
    _begin(copy_logs)


def copy_bases_to_store(host: Host) -> None:
    """Copy the bases that are due, and delete what is too old."""
    _begin(copy_bases)


def copy_rows_to_store(host: Host) -> None:
    """Copy the rows if any have changed."""
    _begin(copy_rows_if_due)


def drill_restore(host: Host) -> None:
    """Once a day, restore a branch from the store to check it; after a failure, once an hour."""
    last = state.drilled_at or state.began_at
    is_first = state.drilled_at is None or state.drill_error
    if last and clock.now() - last > (FIRST_DRILL if is_first else BETWEEN_DRILLS):
        _begin(drill)


def keep_keys_in_store(host: Host) -> None:
    """Keep in the store the keys that its older objects are encrypted with, once after each
    start."""
    if not state.keeps_keys:
        _begin(_keep_keys)


ROUNDS = (
    Round(60, keep_keys_in_store),
    Round(2, copy_logs_to_store),
    Round(5, copy_bases_to_store),
    Round(2, copy_rows_to_store),
    Round(3600, drill_restore),
    Round(5, look_after_lost_hosts),
)


def store_rounds(host: Host) -> tuple[Round, ...]:
    """The rounds, if the settings name a store. Raises StoreMisnamed."""
    global _copier
    store = the_store()
    if store is None:
        return ()
    restore_with(store)
    _copier = Copier(Copies(store, region=host.region_id, host=identity()), host)
    copy_before_receiving(_copier.copies)
    of_host = HistoryChain.objects.filter(branch__project__host=host)
    _copier.logs_due.update(of_host.values_list("branch_id", flat=True))
    state.is_used, state.began_at = True, clock.now()
    known = host.history_store.get("drilled_at")
    state.drilled_at = datetime.fromisoformat(known) if known else None
    return ROUNDS


def _keep_keys(copier: Copier) -> None:
    # A key that the operator has chosen for the history does not change with the secret key.
    if settings.HISTORY_KEY:
        state.keeps_keys = True
        return
    retired = SecretKey.encrypted_history_keys()
    keys = [encryption.decrypt(one, purpose=encryption.HISTORY_KEYS) for one in retired]
    keys += encryption.history_keys()[1:]
    done = copier.attempt("keys", lambda: copier.copies.store.keep_former_keys(keys))
    state.keeps_keys = done is not None


def _begin(do: Callable[[Copier], object]) -> None:
    """Do it in a thread, unless the last one goes on."""
    copier = _copier
    assert copier is not None
    if (last := _threads.get(do.__name__)) and last.is_alive():
        return

    def work() -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        try:
            do(copier)
        except Exception as error:
            state.error = type(error).__name__
            log.exception("the copy to the store failed")
        finally:
            connections.close_all()

    thread = threading.Thread(target=work, name=f"store-{do.__name__}", daemon=True)
    _threads[do.__name__] = thread
    thread.start()

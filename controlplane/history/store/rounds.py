"""The worker's rounds that copy the history to the store.

Each round only starts a thread, unless its last one still works: a slow store delays nothing else,
and a large base copy or a drill delays neither the log nor the rows. The threads have a low
priority.
"""

import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from functools import wraps

from django.conf import settings
from django.db import connections

from controlplane import clock, encryption
from controlplane.compute.data.state_directory import identity
from controlplane.features import Round
from controlplane.history.store.base_copies import copy_bases_to_store
from controlplane.history.store.copier import Copier, Copies
from controlplane.history.store.drills import drill
from controlplane.history.store.host_copies import copy_rows_to_store
from controlplane.history.store.log_copies import copy_logs_to_store
from controlplane.history.store.lost_branches import enable_restores, look_after_lost_hosts
from controlplane.history.store.objects import configured_store
from controlplane.history.store.received_logs import copy_before_receiving
from controlplane.history.store_status import state
from controlplane.models import HistoryChain, Host, SecretKey

log = logging.getLogger(__name__)

# The priority of the threads: they get a small part of a busy processor.
NICENESS = 10
# The time between two drills, and from the start to the first one, when little may be copied.
DRILL_INTERVAL, FIRST_DRILL_DELAY = timedelta(days=1), timedelta(minutes=30)


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

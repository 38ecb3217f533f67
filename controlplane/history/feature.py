"""The feature of history: what it keeps on the host, and the store off the host."""

import logging
from collections.abc import Sequence

import psycopg
from psycopg.types.json import Jsonb

from controlplane.compute.host.wal import LogUnreadable
from controlplane.compute.processes.session import socket_dir
from controlplane.features import LONG_REST_INTERVAL, REST_INTERVAL, Feature, Round
from controlplane.history.from_store import note_restored, restore_from_store, undo_restore
from controlplane.history.keeping import HISTORY_INTERVAL, keep_history, remove_outdated
from controlplane.history.local.moments import NoSuchMoment
from controlplane.history.local.pulling import hold_log
from controlplane.history.local.recovering import NotRecovered
from controlplane.history.retention import forget_former_passwords
from controlplane.history.store_status import StoreUnusable, state
from controlplane.models import Action, Endpoint, Host, Lane
from controlplane.operations.actions.table import RETRY_DELAYS, ActionRule
from controlplane.operations.actions.words import AGAIN, OPERATOR
from controlplane.operations.details import RestoreFromStoreDetails

log = logging.getLogger(__name__)


def _begin(host: Host) -> Sequence[Round]:
    # Only a worker needs it, and it brings the client of object stores into memory.
    from controlplane.history.store.rounds import store_rounds

    return store_rounds(host)


def _hold_log(endpoint: Endpoint) -> None:
    try:
        hold_log(endpoint.branch_id, socket_dir(endpoint.id))
    except psycopg.Error as error:
        # The round tries again.
        log.warning("log not held", extra={"endpoint": endpoint.id, "error": str(error)})


HISTORY = Feature(
    actions={
        # Without its data the branch is of no use: a store that is away is waited for, for a day.
        Action.RESTORE_FROM_STORE: ActionRule(
            restore_from_store,
            details=RestoreFromStoreDetails,
            lane=Lane.UPKEEP,
            bound=600.0,
            retry_pauses=(*RETRY_DELAYS, 8.0, 15.0, 30.0, *(1440 * (60.0,))),
            undo=undo_restore,
            effect=note_restored,
        ),
    },
    rounds=(
        Round(HISTORY_INTERVAL, keep_history, at_rest=REST_INTERVAL),
        Round(60, remove_outdated),
        Round(60, forget_former_passwords, at_rest=LONG_REST_INTERVAL),
    ),
    begin=_begin,
    on_start=_hold_log,
    advice={
        NoSuchMoment: "name another moment; GET …/history answers which there are",
        NotRecovered: AGAIN,
        LogUnreadable: AGAIN,
        StoreUnusable: f"it is tried again; {OPERATOR}",
    },
    checks=(state.problems,),
    published=lambda: {"history_store": Jsonb(state.as_json())},
)

"""Restores the branches of lost hosts one by one on this host, for `history.from_store`, and has
the round that declares a host lost after PERCH_HOST_LOST_AFTER."""

import logging
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from types import NoneType

import psycopg
from django.conf import settings
from django.db.models import Exists, OuterRef

from controlplane.compute.host.steps import step
from controlplane.compute.processes.session import NotPostgres, session, values_of
from controlplane.fleet.lost_hosts import continue_with_lost, declare_lost
from controlplane.history import from_store
from controlplane.history.from_store import FromStore, NotInStore
from controlplane.history.local.moments import NoSuchMoment
from controlplane.history.store.fetching import (
    Fetched,
    NothingStored,
    create_branch,
    fetched_branch,
)
from controlplane.history.store.host_copies import Sign, last_sign
from controlplane.history.store.layout import branch_folder, host_folder
from controlplane.history.store.objects import Store, StoreFails
from controlplane.history.store.packing import Damaged, WrongKey
from controlplane.history.store.received_logs import add_received_log
from controlplane.history.store_status import StoreUnusable
from controlplane.models import Branch, Host, Project
from controlplane.operations.locks import apart
from controlplane.services.errors import ServiceError

log = logging.getLogger(__name__)

# In the state directory, with the branch's id: what is brought from the store.
SCRATCH = ".from-store"
# Seconds. A round that did not run for longer has seen nothing in between.
MAX_GAP_SECONDS = 30.0


def enable_restores(store: Store) -> None:
    """Let this process's operations restore branches from the store."""
    from_store.restorer = partial(_restore, store)


def _restore(store: Store, branch: Branch) -> FromStore:
    """Make the branch's directory from the newest copy that the lost hosts have left, with the log
    up to its last position. Raises StoreUnusable, NotInStore, and what `create_from_history`
    raises."""
    reason = "the store has nothing of it"
    try:
        for state_id in branch.copied_by:
            host = host_folder(branch.project.region_id, state_id)
            try:
                found = _restore_copy(store, host, branch.id)
                if state_id == branch.copied_by[0]:
                    return found
                words = "the host that was lost last had not copied it"
                return replace(found, chain=None, shortfall=words)
            except NothingStored as error:
                # The host before had it, if this one was lost before it had copied the branch.
                reason = str(error)
    except (Damaged, NoSuchMoment) as error:
        raise NotInStore(f"the copy of the branch in the store cannot be used: {error}") from error
    except (StoreFails, WrongKey) as error:
        raise StoreUnusable(f"the store cannot be read: {error}") from error
    raise NotInStore(f"the branch cannot be restored: {reason}")


def _restore_copy(store: Store, host: str, branch_id: str) -> FromStore:
    """Restore the branch as the host with this folder has copied it."""
    place = Path(settings.STATE_DIR) / f"{SCRATCH}-{branch_id}"
    sign = last_sign(store, host)
    number = sign.lists.get(branch_id, 0) if sign else 0
    with ExitStack() as held:
        with step("fetching"):
            found = fetched_branch(store, branch_folder(host, branch_id), place, number)
            fetched = held.enter_context(found)
        branch = Branch.objects.select_related("project__host").get(id=branch_id)
        fetched, is_complete = add_received_log(branch, branch.project.host, fetched, place)
        last_commit = _LastCommit()
        create_branch(branch_id, fetched, last_commit.read)
    return FromStore(
        _complete_until(sign, branch_id, fetched, last_commit.at),
        log_end=fetched.moment.stop if fetched.moment else None,
        chain=fetched.moment.chain.number if fetched.moment and not fetched.shortfall else None,
        shortfall=fetched.shortfall,
        last_commit_at=last_commit.at,
        is_complete=is_complete,
    )


def _complete_until(
    sign: Sign | None, branch_id: str, fetched: Fetched, last_commit: datetime | None
) -> datetime:
    """Until when all commits are in what was fetched. A compute that wrote nothing was looked at
    later than it was copied, which the host's last sign says."""
    looked_at = sign.running.get(branch_id) if sign and not fetched.shortfall else None
    return max(filter(None, (fetched.at, looked_at, last_commit)))


class _LastCommit:
    """When the last commit of the log was made that Postgres has replayed; None without one."""

    at: datetime | None = None

    def read(self, sockets: Path) -> None:
        # A forged log may say any time.
        with session(sockets) as connection, suppress(psycopg.DataError, NotPostgres):
            row = connection.execute("SELECT pg_last_xact_replay_timestamp()").fetchone()
            (self.at,) = values_of(row, (datetime, NoneType))


@dataclass
class _Silence:
    """What this process has seen of a silent host, by time.monotonic()."""

    last_sign: datetime | None
    since: float
    looked_at: float


_silences: dict[str, _Silence] = {}


def look_after_lost_hosts(host: Host) -> None:
    """Continue with hosts that were declared lost. Declare those lost that have been silent for
    PERCH_HOST_LOST_AFTER minutes, if it is set.

    Only the time counts in which this process looked every few seconds and found the host silent:
    while the database is away, no host can give a sign of life.
    """
    continue_with_lost(host.region_id)
    if settings.HOST_LOST_AFTER is None:
        return
    others = Host.objects.filter(
        Exists(Project.objects.filter(host=OuterRef("id"), deleted_at=None)),
        region=host.region_id,
        lost_at=None,
    ).exclude(id=host.id)
    for other in others:
        if _silent_seconds(other, time.monotonic()) < settings.HOST_LOST_AFTER * 60:
            continue
        with apart(other.id):
            try:
                declare_lost(other.id)
            except ServiceError as error:
                fields = {"host": other.id, "reason": error.message}
                log.warning("silent host not taken over", extra=fields)


def _silent_seconds(other: Host, now: float) -> float:
    """For how long this process has seen no new sign of life of the host."""
    last_sign = max(filter(None, (other.worker_seen_at, other.proxy_seen_at)), default=None)
    known = _silences.get(other.id)
    if known is None or known.last_sign != last_sign or now - known.looked_at > MAX_GAP_SECONDS:
        known = _silences[other.id] = _Silence(last_sign, now, now)
    known.looked_at = now
    return now - known.since

"""Restores a branch of a lost host from the store: the work of `restore_from_store`.

`history.store.lost_branches` reads the store. The worker sets it as the `restorer` when it starts
with a store; no other process loads the store's client."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta

from controlplane import durable
from controlplane.compute import compute
from controlplane.compute.compute import OtherMajorVersion
from controlplane.compute.data import branch_data
from controlplane.compute.data.branch_data import branch_dir
from controlplane.compute.host.space import NotEnoughSpace
from controlplane.events.changes import history_lost
from controlplane.events.recording import record
from controlplane.history.store_status import StoreUnusable
from controlplane.models import Branch, Operation
from controlplane.operations.actions.computes import StartRefused
from controlplane.operations.actions.handlers import Attempt
from controlplane.operations.actions.words import failure_message
from controlplane.operations.details import Details, RestoreFromStoreDetails

# In the branch's directory: which operation restored it, and what it restored.
RESTORED = "restored-from-store"


class NotInStore(Exception):
    """The store has no state of the branch that can be restored; the message says why."""


@dataclass(frozen=True)
class FromStore:
    """What was restored of a branch."""

    # All that was committed until then is there.
    until: datetime
    # Where its log ends; None if it was restored from a copy of its data.
    log_end: int | None = None
    # The number of its chain, if that was still open when it was copied last; otherwise None.
    chain: int | None = None
    # Why newer data may be missing, if that is known.
    shortfall: str = ""
    last_commit_at: datetime | None = None
    # Whether nothing is missing: commits waited for a second host, whose log was added.
    is_complete: bool = False


# Makes the branch's directory. Raises StoreUnusable, NotInStore, and what `compute` raises.
Restorer = Callable[[Branch], FromStore]
restorer: Restorer | None = None


def restore_from_store(attempt: Attempt) -> None:
    """Make the branch's data from the store, and note in the operation what it has. The end of the
    operation writes that to the branch."""
    operation, details = attempt.operation, attempt.details
    assert isinstance(details, RestoreFromStoreDetails)
    branch = attempt.branch
    found = _restored_before(operation)
    if found is None:
        # Left from an earlier time at which the project lived on this host, or by an attempt that
        # was killed before it had written the note. No compute has run on it for this operation.
        compute.stop(branch.id)
        branch_data.remove(branch.id)
        found = _restored(branch)
        note = {"operation": str(operation.id), **asdict(found)}
        content = json.dumps(note, default=datetime.isoformat).encode()
        durable.write(branch_dir(branch.id) / RESTORED, content, 0o600)
    until = found.until
    if found.is_complete and details.ran_until is not None:
        until = max(until, datetime.fromisoformat(details.ran_until))
    lost, shortfall = _lost(details, found)
    operation.details = replace(
        details,
        restored_until=until.isoformat(),
        last_commit_at=found.last_commit_at.isoformat() if found.last_commit_at else None,
        lost_seconds=lost.total_seconds(),
        shortfall=shortfall,
    ).as_json()
    operation.save(update_fields=["details"])


def note_restored(operation: Operation, details: Details, now: datetime) -> None:
    """Say how much was lost with the branch's host."""
    assert isinstance(details, RestoreFromStoreDetails)
    assert details.restored_until is not None
    branch = operation.branch
    assert branch is not None
    Branch.objects.filter(id=branch.id).update(lost_seconds=details.lost_seconds)
    if not branch.hidden:
        record(
            history_lost(
                operation,
                branch,
                until=details.restored_until,
                last_commit_at=details.last_commit_at,
                lost_seconds=details.lost_seconds,
                shortfall=details.shortfall,
            )
        )


def undo_restore(operation: Operation) -> None:
    """Remove what an attempt that failed may have left."""
    if _restored_before(operation) is None:
        branch_data.remove(str(operation.branch_id))


def _restored(branch: Branch) -> FromStore:
    if restorer is None:
        raise StoreUnusable("this host's worker has no store (PERCH_HISTORY_STORE)")
    try:
        return restorer(branch)
    except NotInStore as error:
        raise StartRefused(str(error)) from error
    except (NotEnoughSpace, OtherMajorVersion) as error:
        raise StartRefused(failure_message(error)) from error


def _lost(details: RestoreFromStoreDetails, found: FromStore) -> tuple[timedelta, str]:
    """Of which time commits may be lost, and why: from what was restored until the compute ended
    or, if what was restored is not the chain that was open, until the branch got other data."""
    nothing = timedelta(0), ""
    is_open_chain = found.chain is not None and found.chain == details.chain
    has_all = details.log_end is not None and (found.log_end or 0) >= details.log_end
    # Positions of different chains say nothing: each may be of other data.
    if found.is_complete or (is_open_chain and has_all):
        return nothing
    changes = [details.ran_until, None if is_open_chain else details.reset_at]
    ran_until, reset_at = (datetime.fromisoformat(at) if at else found.until for at in changes)
    if reset_at > found.until:
        why = f"the store lacks the data that a restore or reset gave it at {details.reset_at}"
        return max(ran_until, reset_at) - found.until, f"{why}, so it has the data of before"
    return (ran_until - found.until, found.shortfall) if ran_until > found.until else nothing


def _restored_before(operation: Operation) -> FromStore | None:
    """What an earlier attempt at this operation has restored completely; None for nothing."""
    try:
        note = json.loads((branch_dir(str(operation.branch_id)) / RESTORED).read_text())
    except FileNotFoundError:
        return None
    if note.pop("operation") != str(operation.id):
        return None
    for name in ("until", "last_commit_at"):
        note[name] = note[name] and datetime.fromisoformat(note[name])
    return FromStore(**note)

"""Checks whether branches can be restored from the store: restores each in a place of its own, from
its newest base and the log, reads its catalog, checks its indexes and tables with amcheck, reads
all checksums, and removes it."""

import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import psycopg
from django.conf import settings

from controlplane import clock
from controlplane.backup.trial import serving_copy
from controlplane.compute import compute
from controlplane.compute.data import branch_data
from controlplane.compute.data.branch_data import branch_dir, data_dir
from controlplane.compute.data.integrity import DataDamaged, check_structures
from controlplane.compute.host.accounts import account_of, run_as
from controlplane.compute.host.binaries import bin_for
from controlplane.compute.host.filesystem import LockTimeout, lock_branches
from controlplane.compute.host.space import NotEnoughSpace
from controlplane.compute.processes.process import StartFailed
from controlplane.history.local.moments import NoSuchMoment
from controlplane.history.local.recovering import NotRecovered
from controlplane.history.store.copier import Copier
from controlplane.history.store.fetching import NothingStored, create_branch, fetched_branch
from controlplane.history.store.layout import branch_folder
from controlplane.history.store.objects import Store, StoreFails
from controlplane.history.store.packing import Damaged, WrongKey
from controlplane.history.store_status import state

log = logging.getLogger(__name__)

# Stands for the branch's id in the directories of the drill.
DRILL = "history-drill"
FAILURES = (
    *(Damaged, WrongKey, StoreFails, NoSuchMoment, NotRecovered, StartFailed, DataDamaged),
    *(NotEnoughSpace, psycopg.Error, OSError, ValueError, ArithmeticError),
)


@dataclass(frozen=True)
class Verified:
    """The result of a drill with one branch."""

    branch_id: str
    # The moment until which its commits were restored.
    at: datetime | None = None
    # Why it could not be restored; "" if it could.
    error: str = ""


def drill(copier: Copier) -> None:
    """Check one branch of the store, chosen at random, and note the result."""
    copies, results = copier.copies, list[Verified]()
    try:
        results = verify(copies.store, copies.host, say=lambda words: None, at_most=1)
        for result in results:
            state.drill_error = result.error and f"{result.branch_id}: {result.error}"
    except LockTimeout:
        return
    except FAILURES as error:
        state.drill_error = str(error)
    if results and not state.drill_error:
        state.drilled_at = clock.now()
    log.info("restored a branch from the store to check it", extra={"error": state.drill_error})


def verify(
    store: Store,
    host: str,
    *,
    say: Callable[[str], object],
    branch_ids: Sequence[str] = (),
    at_most: int | None = None,
) -> list[Verified]:
    """Check these branches, or at most `at_most` of the host's branches in the store, chosen at
    random. `host` is the host's folder. Raises LockTimeout if another drill is under way,
    StoreFails."""
    # Without this lock, the worker would end what runs here as left by a compute.
    with lock_branches(DRILL, timeout=0):
        chosen = list(branch_ids)
        if not chosen:
            chosen = store.folders(f"{host}/branches")
            random.shuffle(chosen)
        results: list[Verified] = []
        for branch_id in chosen:
            if at_most is not None and len(results) >= at_most:
                break
            try:
                result = _verify(store, branch_folder(host, branch_id), branch_id)
            except NothingStored as error:
                # A branch chosen at random that has no complete copy yet is passed over.
                if not branch_ids:
                    continue
                result = Verified(branch_id, error=str(error))
            results.append(result)
            say(_result_text(result))
        return results


def _result_text(result: Verified) -> str:
    if result.error and not result.at:
        return f"{result.branch_id}  cannot be restored: {result.error}"
    until = f"{result.at:%Y-%m-%d %H:%M:%S.%f} UTC"
    return f"{result.branch_id}  can be restored until {until}{result.error and '; '}{result.error}"


def _verify(store: Store, folder: str, branch_id: str) -> Verified:
    try:
        _clear()
        with fetched_branch(store, folder, Path(settings.STATE_DIR) / f".{DRILL}") as fetched:
            create_branch(DRILL, fetched)
        with serving_copy(DRILL) as sockets:
            check_structures(sockets)
        _check_checksums()
        # It can be restored, and the next damage may be one too many.
        return Verified(branch_id, at=fetched.at, error=fetched.damage)
    except FAILURES as error:
        return Verified(branch_id, error=str(error))
    finally:
        _clear()


def _clear() -> None:
    """Remove what this drill, or one that was killed, has left."""
    compute.stop(DRILL)
    branch_data.remove(DRILL)


def _check_checksums() -> None:
    """Read every page of the data, which is shut down. Raises DataDamaged, OSError."""
    command: list[Path | str] = [
        *(bin_for(data_dir(DRILL)) / "pg_checksums", "--check", "-D", data_dir(DRILL))
    ]
    done = run_as(account_of(branch_dir(DRILL)), command, capture_output=True)
    if done.returncode:
        raise DataDamaged(done.stderr.decode(errors="replace").strip().partition("\n")[0])

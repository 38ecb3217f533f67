"""Makes data of a newer major version of Postgres from a branch's data, by pg_upgrade, and puts it
in the place of the old data.

The old data is only read. What pg_upgrade works on is a copy of it in the branch's staging
directory. pg_upgrade needs an account with a name, which branches' accounts do not have: all of
this host, of every Perch there, share `perch-upgrade`, one after the other, and its processes are
killed before the next.
The complete new data waits beside the branch until the operation that made it switches all branches
of the project.

pg_upgrade restores what clients wrote as a superuser. So `upgrade_catalogs` takes what Postgres
would evaluate out of the copy before, and brings it back afterwards. pg_upgrade runs confined
(`pg_upgrade`). If the rights in the new data are not those in the old, or Postgres's own rows in
its catalogs are not those of a fresh cluster (`rights`), the upgrade fails.
"""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path

from controlplane import durable
from controlplane.compute.catalog.rights import changed_rows, own_rows
from controlplane.compute.data import branch_data
from controlplane.compute.data.branch_data import NoSuchBranchData, branch_dir, data_dir
from controlplane.compute.host import account_numbers
from controlplane.compute.host.accounts import Account, shared_account, upgrade_account
from controlplane.compute.host.binaries import major_of
from controlplane.compute.host.cloning import clone_tree
from controlplane.compute.host.filesystem import (
    LockTimeout,
    forget_lock,
    lock_branches,
    remove_tree,
)
from controlplane.compute.host.foreign_files import remove_from
from controlplane.compute.host.patience import check_cancelled, report_progress
from controlplane.compute.host.steps import step
from controlplane.compute.host.tree import give_tree, open_inside
from controlplane.compute.processes.account_processes import end_upgrade_account
from controlplane.compute.processes.limits import end_group, forget_limits
from controlplane.compute.processes.occupants import end_processes_in
from controlplane.compute.processes.recovery import is_to_recover
from controlplane.compute.schemas.schema_only import UNSAFE
from controlplane.compute.settings.configuration import HISTORY_SLOT, REGION_SLOT
from controlplane.compute.upgrade.pg_upgrade import OLD, WORK, require_programs, run_pg_upgrade
from controlplane.compute.upgrade.upgrade_catalogs import (
    UpgradeFailed,
    UpgradeRefused,
    listed,
    refuse_unsupported,
    restore_client_code,
    strip_client_code,
)
from controlplane.compute.workshop import (
    MAX_PREPARED_TRANSACTIONS,
    end_workshop,
    serving,
    sockets_of,
)

# Files by which a server's settings or its recovery could be changed.
STEERING = (
    *("postgresql.auto.conf", "standby.signal", "recovery.signal"),
    *("backup_label", "tablespace_map"),
)
CANCEL_CHECK_INTERVAL = 0.5  # seconds between two looks whether the work was cancelled


def upgraded_place(branch_id: str, key: str) -> Path:
    """Where the branch's new data waits; `key` names the operation."""
    return branch_dir(branch_id).with_name(f".{branch_id}.{key}")


def prepare(branch_id: str, key: str, *, to: int) -> bool:
    """Make the branch's data as it is of the major version `to`, beside the branch. Does nothing if
    it is there already; False if the branch needs none. The branch may run; then what it commits
    later is not included.

    Raises UpgradeRefused, UpgradeFailed, PostgresUnusable, NoSuchBranchData, AccountUnusable,
    NotEnoughSpace, TreeUntrusted, StartFailed, psycopg.Error, OSError.
    """
    source, place = data_dir(branch_id), upgraded_place(branch_id, key)
    if place.exists():
        return True
    if not source.exists():
        raise NoSuchBranchData(f"the branch {branch_id} has no data")
    before = major_of(source)
    if before == to:
        return False
    if before > to:
        raise UpgradeRefused(f"the branch's data is of Postgres {before}, which is newer")
    require_programs(before, to)
    _refuse_slots(source)
    workshop = branch_data.staging_id(branch_id)
    with lock_branches(workshop):
        try:
            _end_earlier(branch_id)
            with branch_data.new_branch(branch_id, place=place) as (staging, account):
                branch_data.grant_access(staging, account)
                branch_data.copy_branch(source, staging, account)
                _upgrade(branch_id, account, before=before, to=to)
        finally:
            forget_lock(workshop)
    return True


def switch(branch_id: str, key: str) -> None:
    """Put the new data in the place of the old, which is removed. The branch does not run. May be
    called again after a crash; does nothing without new data."""
    place, fresh = branch_dir(branch_id), upgraded_place(branch_id, key)
    old = _replaced_place(branch_id, key)
    if fresh.exists():
        if place.exists():
            durable.rename(place, old)
        durable.rename(fresh, place)
    remove_tree(old)


def discard(branch_id: str, key: str) -> None:
    """End what a dead attempt has left running for the branch, and remove the new data. If a switch
    was cut off between its renames, the branch gets its old data back."""
    workshop = branch_data.staging_id(branch_id)
    with lock_branches(workshop):
        _end_earlier(branch_id)
        remove_tree(branch_dir(workshop))
        forget_lock(workshop)
    old = _replaced_place(branch_id, key)
    if old.exists() and not branch_dir(branch_id).exists():
        durable.rename(old, branch_dir(branch_id))
    remove_tree(old)
    remove_tree(upgraded_place(branch_id, key))


def _replaced_place(branch_id: str, key: str) -> Path:
    return branch_dir(branch_id).with_name(f".{branch_id}.{key}-replaced")


def _refuse_slots(source: Path) -> None:
    """Slots are not copied, so a subscriber would miss what it has not received yet."""
    with open_inside(source, "pg_replslot") as slots:
        names = sorted({*os.listdir(slots)} - {HISTORY_SLOT, REGION_SLOT})
    if names:
        raise UpgradeRefused(
            f"it has the replication slot {listed(names)}, which would be lost: drop it first, and "
            "let its subscriber copy the data anew afterwards"
        )


def _upgrade(branch_id: str, account: Account, *, before: int, to: int) -> None:
    workshop = branch_data.staging_id(branch_id)
    staging, data = branch_dir(workshop), data_dir(workshop)
    with _running_postgres(branch_id) as sockets, step("checking_catalog"):
        refuse_unsupported(sockets, to)
        found = strip_client_code(sockets)
    data.rename(staging / OLD)
    clone_tree(branch_data.template(to), data, owner=account)
    with _running_postgres(branch_id) as sockets:
        fresh = own_rows(sockets)
    with _upgrade_lock(branch_id), step("upgrading", **{"from": before, "to": to}):
        runner = Account(upgrade_account().uid, account.gid)
        give_tree(staging / OLD, account, runner)
        give_tree(data, account, runner)
        run_pg_upgrade(branch_id, runner, before=before, to=to)
    remove_tree(staging / OLD)
    remove_tree(staging / WORK)
    remove_from(data, *STEERING)
    give_tree(data, runner, account)
    with _running_postgres(branch_id) as sockets, step("restoring_functions"):
        if changed := changed_rows(sockets, fresh):
            raise UpgradeFailed(f"the upgrade would change what is Postgres's own: {changed}")
        restore_client_code(sockets, found)
    for path in staging.glob("upgrade-*.conf"):
        path.unlink()


def _locked_account(timeout: float) -> AbstractContextManager[None]:
    """Hold the lock on pg_upgrade's account. Unless all computes share an account, another Perch of
    this host has the same one, and its upgrade would be killed. Raises LockTimeout."""
    place = account_numbers.CLAIMS
    # The worker may have an account of its own, which may write there by a capability.
    is_common = shared_account() is None and os.access(place, os.W_OK, effective_ids=True)
    directory = place if is_common else None
    return lock_branches("upgrade", timeout=timeout, directory=directory)


@contextmanager
def _upgrade_lock(branch_id: str) -> Iterator[None]:
    """Wait for this host's other upgrades, since all use one account, and end what is left of the
    last one. At the end, end what pg_upgrade has left running."""
    with ExitStack() as held:
        while True:
            with suppress(LockTimeout):
                held.enter_context(_locked_account(CANCEL_CHECK_INTERVAL))
                break
            check_cancelled()
            report_progress()
        _end_processes(branch_id)
        try:
            yield
        finally:
            _end_processes(branch_id)


@contextmanager
def _running_postgres(branch_id: str) -> Iterator[Path]:
    """Run Postgres on the data in the staging directory, for ourselves alone."""
    workshop = branch_data.staging_id(branch_id)
    data = data_dir(workshop)
    chosen = {**UNSAFE, "max_prepared_transactions": str(MAX_PREPARED_TRANSACTIONS)}
    with serving(workshop, sockets_of(branch_id), chosen) as sockets:
        yield sockets
    if is_to_recover(data):
        raise UpgradeFailed("Postgres did not shut down in order")


def _end_earlier(branch_id: str) -> None:
    """End what a dead attempt has left running, unless another upgrade holds the account: that has
    ended it."""
    with suppress(LockTimeout), _locked_account(0):
        _end_processes(branch_id)
    end_workshop(branch_id)


def _end_processes(branch_id: str) -> None:
    """End pg_upgrade and all that it has started. The caller holds the lock of the upgrades. Raises
    StopFailed."""
    staging, sockets = branch_dir(branch_data.staging_id(branch_id)), sockets_of(branch_id)
    end_group(sockets.name)
    end_upgrade_account()
    if staging.exists():
        end_processes_in(staging)
    forget_limits(sockets.name)
    remove_tree(sockets)

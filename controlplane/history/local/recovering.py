"""Makes a branch as another one was at a past moment: a base, and the log up to the moment.

The log is cut at the moment, so Postgres replays it to its end: a recovery target that lies after
the last commit would be an error. Recovery then begins a timeline of the new branch's own.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from controlplane.compute.compute import refuse_other_major
from controlplane.compute.data import branch_data
from controlplane.compute.data.branch_data import branch_dir
from controlplane.compute.host.accounts import Account
from controlplane.compute.host.cloning import clone_file, clone_tree, copy_beginning
from controlplane.compute.host.filesystem import lock_branches
from controlplane.compute.host.foreign_files import put_into
from controlplane.compute.host.steps import step
from controlplane.compute.host.tree import SEGMENT_SIZE, open_directory, start_of
from controlplane.compute.host.wal import lsn_text, parse_lsn, timeline_file
from controlplane.compute.processes.recovery import is_to_recover
from controlplane.compute.processes.session import session, values_of
from controlplane.compute.workshop import (
    MAX_PREPARED_TRANSACTIONS,
    making,
    serving,
    sockets_of,
)
from controlplane.history.local.bases import NOT_IN_A_BASE
from controlplane.history.local.moments import Moment, check_log

# The staging directory is flushed as a whole before it is put in place.
SETTINGS = {
    "fsync": "off",
    "autovacuum": "off",
    # All log that it needs is in pg_wal.
    "restore_command": "false",
    "recovery_target_action": "promote",
    # That of the base. By its number Postgres would refuse it without its file, which copies of
    # running branches lacked in earlier releases.
    "recovery_target_timeline": "current",
    # Clients' connections of the time, whose number would have to be allowed, do not matter.
    "hot_standby": "off",
    "max_prepared_transactions": str(MAX_PREPARED_TRANSACTIONS),
}


class NotRecovered(Exception):
    """Postgres did not reach the moment; the message says how it ended."""


def create_from_history(
    branch_id: str,
    find: Callable[[], Moment],
    *,
    holding: Callable[[], AbstractContextManager[None]],
    on_recovered: Callable[[Path], None],
) -> None:
    """Make the branch's directory with the data of the moment that `find` finds. Does nothing if
    the directory exists already.

    `holding` gives the context in which the source's history does not change; it is left once all
    that is needed was copied. `on_recovered` is called with the directory of the sockets of the
    recovered Postgres, before the branch is put in place. Raises NoSuchMoment, NotRecovered,
    OtherMajorVersion, NotEnoughSpace, StartFailed, AccountUnusable, psycopg.Error, OSError, and
    what these functions raise.
    """
    if branch_dir(branch_id).exists():
        return
    with making(branch_id), branch_data.new_branch(branch_id) as (staging, account):
        with _recovered(branch_id, staging, account, find, holding) as sockets:
            on_recovered(sockets)
        if is_to_recover(staging / "data"):
            raise NotRecovered("the recovered Postgres did not shut down in order")


@contextmanager
def serving_moment(
    branch_id: str,
    find: Callable[[], Moment],
    *,
    holding: Callable[[], AbstractContextManager[None]],
) -> Iterator[Path]:
    """Yields the directory of the sockets of a Postgres with the data of the moment, which nobody
    else reaches and which is removed at the end. `branch_id` is an id that no branch has. Raises
    what `create_from_history` raises."""
    with (
        # Without this lock the worker would end Postgres, as that of a branch that is gone.
        lock_branches(branch_id),
        making(branch_id),
        branch_data.scratch_branch(branch_id) as (staging, account),
        _recovered(branch_id, staging, account, find, holding) as sockets,
    ):
        yield sockets


@contextmanager
def _recovered(
    branch_id: str,
    staging: Path,
    account: Account,
    find: Callable[[], Moment],
    holding: Callable[[], AbstractContextManager[None]],
) -> Iterator[Path]:
    """Copy the moment into the staging directory and run Postgres on it."""
    with holding():
        moment = find()
        _copy(moment, staging, account)
    refuse_other_major(staging / "data")
    branch_data.grant_access(staging, account)
    with serving(branch_data.staging_id(branch_id), sockets_of(branch_id), SETTINGS) as sockets:
        _check_reached(moment, sockets)
        yield sockets


def _check_reached(moment: Moment, sockets: Path) -> None:
    """Raise NotRecovered if Postgres has left out commits of the moment: it takes a record that it
    cannot read for the end of the log."""
    with session(sockets) as connection:
        row = connection.execute("SELECT pg_last_wal_replay_lsn()::text").fetchone()
    reached = values_of(row, str)[0]
    if moment.last is not None and parse_lsn(reached) <= moment.last.lsn:
        last = lsn_text(moment.last.lsn)
        raise NotRecovered(f"the log was replayed to {reached}, the last commit is at {last}")


def _copy(moment: Moment, staging: Path, account: Account) -> None:
    """Copy the base and the log up to the moment. Raises NoSuchMoment."""
    names = check_log(moment)
    end = max(moment.stop, moment.base.end)
    source, data = moment.chain.data_of(moment.base), staging / "data"
    with step("copying_base", **branch_data.require_space(source, staging, skip=NOT_IN_A_BASE)):
        clone_tree(source, data, owner=account, skip=NOT_IN_A_BASE)
    with (
        step("adding_log", of_bytes=end - start_of(names[0])),
        open_directory(moment.chain.log) as log,
        open_directory(data / "pg_wal") as target,
    ):
        timeline = timeline_file(moment.base.timeline)
        with suppress(FileNotFoundError):
            clone_file(timeline, source=log, target=target, owner=account)
        for name in names:
            copy_beginning(
                name,
                source=log,
                target=target,
                draft=name,
                size=min(SEGMENT_SIZE, end - start_of(name)),
                owner=account,
                share=True,
            )
            os.truncate(f"/proc/self/fd/{target}/{name}", SEGMENT_SIZE)
    put_into(data, "recovery.signal", "", account)

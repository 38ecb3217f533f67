"""A branch on disk: its directory, made from the template or from its parent.

`<state-dir>/branches/<branch_id>/` holds `data` (Postgres's own), `run` (where a pooler may
write), `postgresql.conf`, and `postgres.log` with the pipe that it comes through. As root it is
root's, and its group is the branch's account, which may pass through it and read, but write only
below `data` and `run`: so none of the names in it can be put in the way of what root does there.

It is made beside its place, where only we can look in, and renamed into it, so that it is there
as a whole or not at all. Callers hold the branch's lock.
"""

import os
import re
import subprocess
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import MappingProxyType

from django.conf import settings

from controlplane import durable
from controlplane.compute.account_numbers import new_account
from controlplane.compute.accounts import (
    Account,
    account_of,
    give,
    own_account,
    running_as,
    service_account,
)
from controlplane.compute.binaries import postgres_bin, postgres_version
from controlplane.compute.configuration import PLATFORM_ROLE
from controlplane.compute.filesystem import lock_branches, remove_tree, sync_tree
from controlplane.compute.process import socket_dir_of
from controlplane.compute.session import session
from controlplane.compute.space import require, telling_of_full_disk
from controlplane.compute.steps import step
from controlplane.compute.tree import (
    NEW_FILE,
    clone_file,
    clone_tree,
    open_directory,
    shares_blocks,
    tree_size,
)

# What belongs to the running process, not to the data: the documentation of Postgres's
# low-level backup says to leave these out.
OF_THE_PROCESS = ("postmaster.pid", "postmaster.opts", "pg_stat_tmp", "pg_dynshmem")
# And of one branch alone: a copy has no subscribers, so nobody would ever advance its slots.
OF_THE_BRANCH = (*OF_THE_PROCESS, "pg_replslot")
OF_THE_RUNNING = (
    *OF_THE_BRANCH,
    *("pg_notify", "pg_serial", "pg_snapshots", "pg_subtrans"),
    *("pg_wal", "pg_wal/archive_status", "pg_wal/summaries", "backup_label"),
)

# Seconds: beginning a backup of a running parent makes it write all its dirty pages.
CHECKPOINT_BOUND = 600.0
INITDB_BOUND = 120.0
# Bytes that a new branch takes in any case: its first segment of the log, and the directories.
LEAST = 20 << 20
# Bytes, copied in some tenths of a second.
QUICKLY_COPIED = 128 << 20


class NoSuchBranchData(Exception):
    """A branch's data directory is missing."""


def branch_dir(branch_id: str) -> Path:
    return Path(settings.STATE_DIR) / "branches" / branch_id


def data_dir(branch_id: str) -> Path:
    return branch_dir(branch_id) / "data"


def create_from_template(branch_id: str) -> None:
    """Make the branch's directory as a fresh cluster. Does nothing where it is already.

    Raises AccountUnusable, NotEnoughSpace, OSError.
    """
    if branch_dir(branch_id).exists():
        return
    source = template()
    with new_branch(branch_id) as (staging, account):
        to_copy = require_space(source, staging)
        with step("copying", **to_copy):
            clone_tree(source, staging / "data", owner=account)


def create_from_parent(branch_id: str, parent_id: str) -> None:
    """Make the branch's directory hold all that is committed on the parent now.

    The parent may run; then Postgres's backup functions make the copy consistent. Does
    nothing where the directory is already. Raises NoSuchBranchData, AccountUnusable,
    NotEnoughSpace, TreeUntrusted, psycopg.Error, OSError.
    """
    if branch_dir(branch_id).exists():
        return
    parent = data_dir(parent_id)
    if not parent.exists():
        raise NoSuchBranchData(f"the parent branch {parent_id} has no data")
    with new_branch(branch_id) as (staging, account):
        _copy_branch(parent, staging, account)


def replace(branch_id: str, source_id: str, *, kept_as: str, must_keep: bool) -> None:
    """Make the branch hold all that is committed on the source now, and the branch `kept_as`,
    whose id nothing else ever had, what it held until then. Where that is lost, nothing is done if
    it `must_keep` it.

    Nothing runs on either. The copy is made beside both places; then two renames follow each
    other, and what lies where after a crash tells which of them were done. Raises as
    `create_from_parent` does.
    """
    place, kept, fresh = branch_dir(branch_id), branch_dir(kept_as), _fresh(branch_id, kept_as)
    if not kept.exists():
        if must_keep and not place.exists():
            raise NoSuchBranchData(f"the branch {branch_id} has no data that could be preserved")
        if not fresh.exists():
            # What an operation has left that came to nothing.
            for other in _fresh_ones(branch_id):
                remove_tree(other)
            source = data_dir(source_id)
            if not source.exists():
                raise NoSuchBranchData(f"the source branch {source_id} has no data")
            with new_branch(branch_id, place=fresh) as (staging, account):
                _copy_branch(source, staging, account)
        if place.exists():
            durable.rename(place, kept)
    if fresh.exists():
        durable.rename(fresh, place)


def take_back(branch_id: str, *, kept_as: str) -> None:
    """Undo `replace`, however far it came; does nothing where it had not begun."""
    place, kept, doomed = branch_dir(branch_id), branch_dir(kept_as), _staging_place(branch_id)
    remove_tree(doomed)
    if kept.exists():
        if place.exists():
            place.rename(doomed)
        durable.rename(kept, place)
    remove_tree(doomed)
    remove_tree(_fresh(branch_id, kept_as))


def _copy_branch(source: Path, staging: Path, account: Account) -> None:
    """Copy the data directory of another branch, which may run."""
    if socket_dir := socket_dir_of(source):
        to_copy = require_space(source, staging, skip=OF_THE_RUNNING)
        back_up(source, socket_dir, staging / "data", account, to_copy=to_copy)
    else:
        with step("copying", **require_space(source, staging, skip=OF_THE_BRANCH)):
            clone_tree(source, staging / "data", owner=account, skip=OF_THE_BRANCH)


def create_from_copy(branch_id: str, copy: Path) -> None:
    """Make the branch's directory of a copy of its data that a backup holds.

    Raises AccountUnusable, TreeUntrusted, OSError.
    """
    with new_branch(branch_id) as (staging, account):
        clone_tree(copy, staging / "data", owner=account)


def takes_long_to_copy(branch_id: str) -> bool:
    """Whether a copy of the branch takes so long that a client would notice: its blocks cannot
    be shared, and there are many."""
    data = data_dir(branch_id)
    if not data.exists() or shares_blocks(data.parent.parent):
        return False
    return tree_size(data, skip=OF_THE_PROCESS) > QUICKLY_COPIED


def remove(branch_id: str) -> None:
    """Remove the branch's directory, at once as far as anyone can see."""
    place, doomed = branch_dir(branch_id), _staging_place(branch_id)
    remove_tree(doomed)
    for fresh in _fresh_ones(branch_id):
        remove_tree(fresh)
    if place.exists():
        with step("removing"):
            # Makes nothing new: on a full disk it is by removing that there comes to be room.
            place.rename(doomed)
            remove_tree(doomed)
            # Its rows say so next: were it to come back, nobody would ever remove it.
            durable.sync(place.parent)


def write_for(branch_id: str, name: str, text: str) -> Path:
    """Write the file `name` of the branch's directory, which its account may read, whole or
    not at all; returns its path."""
    path = branch_dir(branch_id) / name
    draft = path.with_name(f".{name}.{threading.get_ident()}")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, NEW_FILE, 0o640)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        let_in(descriptor, account_of(branch_dir(branch_id)))
    draft.rename(path)
    return path


def run_dir(branch_id: str) -> Path:
    """Where the branch's pooler may write; made where it is missing, as in a branch that release
    0.1 has left. The caller holds the branch's lock."""
    place = branch_dir(branch_id)
    return _make_run_dir(place, account_of(place))


def _make_run_dir(place: Path, account: Account) -> Path:
    """In a branch's directory, which the account cannot write to. May be called again after a
    crash in the midst of it."""
    run = place / "run"
    run.mkdir(mode=0o700, exist_ok=True)
    give(run, account)
    return run


def template() -> Path:
    """The cluster that new projects are cloned from, made by the first caller; root's, as all
    that is made of it trusts it."""
    place: Path = settings.STATE_DIR / "templates" / postgres_version()
    if place.exists():
        return place
    with lock_branches("template"):
        if place.exists():
            return place
        staging = place.with_name(f".{place.name}")
        remove_tree(staging)
        staging.mkdir(mode=0o700)
        give(staging, service_account())
        done = subprocess.run(
            [
                postgres_bin() / "initdb",
                *("--pgdata", staging, "--username", PLATFORM_ROLE, "--encoding", "UTF8"),
                *("--auth", "trust", "--no-locale", "--no-sync", "--no-instructions"),
                "--data-checksums",
            ],
            capture_output=True,
            text=True,
            timeout=INITDB_BOUND,
            **running_as(service_account()),
        )
        if done.returncode:
            raise RuntimeError(f"initdb failed: {done.stderr.strip()}")
        # A copy of our own: whoever could write to the original can do so no more.
        owned = place.with_name(f".{place.name}.owned")
        remove_tree(owned)
        clone_tree(staging, owned, owner=own_account())
        remove_tree(staging)
        sync_tree(owned)
        owned.rename(place)
    return place


def back_up(
    parent: Path,
    socket_dir: Path,
    target: Path,
    account: Account,
    *,
    at_end: AbstractContextManager[object] | None = None,
    to_copy: Mapping[str, int] = MappingProxyType({}),
) -> None:
    """A low-level base backup of the running `parent`, in one session as it must be: where the
    Postgres ends meanwhile, the backup fails.

    The copy is of the moment of its end: what was committed before is in it. `at_end` is held
    around that moment, and `to_copy` told of the copy's step. Raises TreeUntrusted,
    psycopg.Error, OSError, and what `at_end` raises.
    """
    with session(socket_dir, bound=CHECKPOINT_BOUND) as connection:
        with step("writing_checkpoint"):
            # The slot keeps the log we need from being recycled; it goes with the session.
            connection.execute(
                "SELECT pg_create_physical_replication_slot("
                "'perch_' || pg_backend_pid(), true, true)"
            )
            connection.execute("SELECT pg_backup_start('branch', fast => true)")
        with step("copying", **to_copy):
            clone_tree(parent, target, owner=account, skip=OF_THE_RUNNING)
            with at_end or nullcontext():
                row = connection.execute(
                    "SELECT labelfile, pg_walfile_name(lsn)"
                    " FROM pg_backup_stop(wait_for_archive => false)"
                ).fetchone()
        assert row is not None
        label, last = str(row[0]), str(row[1])
        found = re.search(r"START WAL LOCATION: \S+ \(file ([0-9A-F]{24})\)", label)
        assert found is not None
        with step("copying_log"):
            _copy_log(parent, target, first=found[1], last=last, account=account)
    descriptor = os.open(target / "backup_label", NEW_FILE, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(label)
        give(descriptor, account)


def _copy_log(parent: Path, target: Path, *, first: str, last: str, account: Account) -> None:
    """The segments of the log that recovering the copy needs."""
    with (
        open_directory(parent) as data,
        open_directory("pg_wal", within=data) as log,
        open_directory(target / "pg_wal") as copy,
    ):
        for name in os.listdir(log):
            if re.fullmatch("[0-9A-F]{24}", name) and first <= name <= last:
                clone_file(name, source=log, target=copy, owner=account)


@contextmanager
def new_branch(branch_id: str, *, place: Path | None = None) -> Iterator[tuple[Path, Account]]:
    """A directory to make the branch in, and its account; put in its place, or in another, at the
    end, and removed at once where that is not reached."""
    staging, account = _staging(branch_id)
    try:
        with telling_of_full_disk("the branch"):
            yield staging, account
            _put_in_place(staging, place or branch_dir(branch_id), account)
    except BaseException:
        remove_tree(staging)
        raise


def require_space(source: Path, staging: Path, *, skip: Collection[str] = ()) -> dict[str, int]:
    """Raises NotEnoughSpace where a copy of `source` would not fit. Returns how many bytes are
    to be copied, for the copy's step; {} where the copy shares its blocks."""
    together = source.lstat().st_dev == staging.lstat().st_dev
    size = 0 if together and shares_blocks(staging) else tree_size(source, skip=skip)
    require(max(size, LEAST), at=staging, what="the branch")
    return {"of_bytes": size} if size else {}


def _staging(branch_id: str) -> tuple[Path, Account]:
    """An empty directory beside the branch's place, and the account that the branch will have."""
    with lock_branches("accounts"):
        staging = _empty_staging(branch_id)
        account = new_account(staging.parent)
        # Takes the account: none that comes later gets the same.
        give(staging, Account(own_account().uid, account.gid))
    return staging, account


def staging_id(branch_id: str) -> str:
    """What the branch is called, to everything that works on a branch's directory, while it is
    being made."""
    return f".{branch_id}"


def _staging_place(branch_id: str) -> Path:
    return branch_dir(staging_id(branch_id))


def _fresh(branch_id: str, kept_as: str) -> Path:
    """Where the data lies, whole, that is to replace the branch's."""
    return branch_dir(branch_id).with_name(f".{branch_id}.{kept_as}")


def _fresh_ones(branch_id: str) -> list[Path]:
    return list(branch_dir(branch_id).parent.glob(f".{branch_id}.*"))


def _empty_staging(branch_id: str) -> Path:
    """What a dead attempt left is removed."""
    staging = _staging_place(branch_id)
    remove_tree(staging)
    staging.mkdir(mode=0o700)
    return staging


def _put_in_place(staging: Path, place: Path, account: Account) -> None:
    _make_run_dir(staging, account)
    let_in(staging, account)
    with step("syncing"):
        sync_tree(staging)
        durable.rename(staging, place)


def let_in(path: Path | int, account: Account) -> None:
    """Let the account read what stays ours: pass through, if it is a directory."""
    give(path, Account(own_account().uid, account.gid))
    os.chmod(path, 0o710 if isinstance(path, Path) else 0o640)

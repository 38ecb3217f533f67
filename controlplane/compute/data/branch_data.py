"""A branch on disk: its directory, made from the template or from the parent's.

`<state-dir>/branches/<branch_id>/` holds `data` (Postgres's own), `run` (where a pooler may
write), `postgresql.conf`, and `postgres.log` with the pipe that its lines come through. As root,
root owns the directory and its group is the branch's account. The account may read there and pass
through, but write only below `data` and `run`. So it cannot replace a file that root works on.

A branch is made in a staging directory that only Perch can enter, and then renamed to its own
place. So the directory is complete or absent. Callers hold the branch's lock.
"""

import os
import subprocess
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from django.conf import settings

from controlplane import durable
from controlplane.compute.catalog.system_views import CLOSE, MARK
from controlplane.compute.data.base_backup import (
    BRANCH_FILES,
    PROCESS_FILES,
    RUNNING_FILES,
    back_up,
)
from controlplane.compute.host.account_numbers import new_account
from controlplane.compute.host.accounts import (
    Account,
    account_of,
    own_account,
    running_as,
    service_account,
    set_owner,
)
from controlplane.compute.host.binaries import default_major, postgres_bin, postgres_version
from controlplane.compute.host.cloning import clone_tree, shares_blocks, sync_clone
from controlplane.compute.host.filesystem import (
    WORKSHOP,
    lock_branches,
    remove_tree,
    sync_tree,
)
from controlplane.compute.host.filesystem import branch_dir as branch_dir
from controlplane.compute.host.space import require, translate_disk_full
from controlplane.compute.host.steps import step
from controlplane.compute.host.tree import NEW_FILE, SEGMENT_SIZE, tree_size
from controlplane.compute.host.wal import segment_start
from controlplane.compute.processes.process import socket_dir_of
from controlplane.compute.settings.configuration import LOCALE, PLATFORM_ROLE

INITDB_TIMEOUT = 120.0  # seconds
# The first major version that has LOCALE itself. Before, the host has it.
LOCALE_SINCE = 17
# Bytes that every new branch takes: its first segment of the log, and the directories.
MIN_BRANCH_BYTES = 20 << 20
# Bytes that are copied within some tenths of a second.
MAX_QUICK_COPY_BYTES = 128 << 20
# Copies the data directory of another branch, which may be running, to a staging directory. Returns
# where the log of the copy ends, if that is known.
Copy = Callable[[Path, Path, Account], int | None]


class NoSuchBranchData(Exception):
    """A branch's data directory is missing."""


def data_dir(branch_id: str) -> Path:
    return branch_dir(branch_id) / "data"


def create_from_template(
    branch_id: str,
    *,
    major: int | None = None,
    locale: str = LOCALE,
    begin_history: Callable[[Path, Path], None] | None = None,
) -> None:
    """Make the branch's directory as a fresh cluster of the major version, by default this host's
    default, and of the locale. Does nothing if it exists already.

    `begin_history` is called with the branch's staging directory and that of the template.

    Raises PostgresUnusable, AccountUnusable, NotEnoughSpace, OSError.
    """
    if branch_dir(branch_id).exists():
        return
    source = template(major, locale)
    with new_branch(branch_id, flush=sync_clone) as (staging, account):
        to_copy = require_space(source, staging)
        with step("copying", **to_copy):
            clone_tree(source, staging / "data", owner=account)
        (staging / MARK).touch()
        if begin_history is not None:
            begin_history(staging, source)


def create_from_parent(
    branch_id: str,
    parent_id: str,
    *,
    begin_history: Callable[[int | None], None] = lambda end: None,
    copy: Copy | None = None,
    flush: Callable[[Path], None] = sync_clone,
) -> None:
    """Make the branch's directory with all that is committed on the parent now.

    The parent may run; then the copy is a base backup. Does nothing if the directory exists
    already. `begin_history` is called when the staging directory has the copy, with what
    `copy_branch` returns, which `copy` replaces. Raises NoSuchBranchData, AccountUnusable,
    NotEnoughSpace, TreeUntrusted, psycopg.Error, OSError.
    """
    if branch_dir(branch_id).exists():
        return
    parent = data_dir(parent_id)
    if not parent.exists():
        raise NoSuchBranchData(f"the parent branch {parent_id} has no data")
    with new_branch(branch_id, flush=flush) as (staging, account):
        begin_history((copy or copy_branch)(parent, staging, account))


def replace(
    branch_id: str,
    source_id: str,
    *,
    kept_as: str,
    must_keep: bool,
    takes_source: bool = False,
    hand_over: Callable[[Path, Path], None] = lambda old, fresh: None,
    copy: Copy | None = None,
    flush: Callable[[Path], None] = sync_clone,
) -> None:
    """Give the branch all that is committed on the source now, and give its previous data to the
    branch `kept_as`, whose id was never used for anything else. If the branch has no data to keep,
    `must_keep` makes this raise NoSuchBranchData and change nothing.

    `takes_source` moves the source's directory instead of copying it: the source is of no use
    afterwards. `hand_over` is called with the directory of the previous data and that of the copy,
    before the copy takes its place. The branch does not run. The copy is made in a third place;
    then two renames follow. After a crash, the directories that exist show which renames were done.
    Raises what `create_from_parent` raises.
    """
    place, kept, fresh = branch_dir(branch_id), branch_dir(kept_as), _fresh(branch_id, kept_as)
    if not kept.exists():
        if must_keep and not place.exists():
            raise NoSuchBranchData(f"the branch {branch_id} has no data to preserve")
        if not fresh.exists():
            # Left by earlier operations that failed.
            for other in _fresh_ones(branch_id):
                remove_tree(other)
            source = data_dir(source_id)
            if not source.exists():
                raise NoSuchBranchData(f"the source branch {source_id} has no data")
            if takes_source:
                durable.rename(source.parent, fresh)
            else:
                with new_branch(branch_id, place=fresh, flush=flush) as (staging, account):
                    (copy or copy_branch)(source, staging, account)
        if place.exists():
            hand_over(place, fresh)
            durable.rename(place, kept)
    if fresh.exists():
        durable.rename(fresh, place)


def undo_replace(branch_id: str, *, kept_as: str) -> None:
    """Undo `replace`, however far it got; does nothing if it had not begun."""
    place, kept, doomed = branch_dir(branch_id), branch_dir(kept_as), _staging_place(branch_id)
    remove_tree(doomed)
    if kept.exists():
        if place.exists():
            place.rename(doomed)
        durable.rename(kept, place)
    remove_tree(doomed)
    remove_tree(_fresh(branch_id, kept_as))


def copy_branch(source: Path, staging: Path, account: Account) -> int | None:
    """Copy the data directory of another branch, which may be running. Returns where the log of the
    copy ends; None if the source does not run."""
    if (source.parent / MARK).exists():
        (staging / MARK).touch()
    if socket_dir := socket_dir_of(source):
        to_copy = require_space(source, staging, skip=RUNNING_FILES)
        end = back_up(source, socket_dir, staging / "data", account, to_copy=to_copy)
        # At the end of a low-level backup, Postgres switches to another segment.
        has_label = (staging / "data" / "backup_label").exists()
        return segment_start(end - 1) + SEGMENT_SIZE if has_label else end
    with step("copying", **require_space(source, staging, skip=BRANCH_FILES)):
        clone_tree(source, staging / "data", owner=account, skip=BRANCH_FILES)
    return None


def create_from_copy(branch_id: str, copy: Path) -> None:
    """Make the branch's directory from a copy of its data in a backup.

    Raises AccountUnusable, TreeUntrusted, OSError.
    """
    with new_branch(branch_id) as (staging, account):
        clone_tree(copy, staging / "data", owner=account)


def takes_long_to_copy(branch_id: str) -> bool:
    """True if copying the branch takes so long that a client would notice: its blocks cannot be
    shared, and there are many."""
    data = data_dir(branch_id)
    if not data.exists() or shares_blocks(data.parent.parent):
        return False
    return tree_size(data, skip=PROCESS_FILES) > MAX_QUICK_COPY_BYTES


def remove(branch_id: str) -> None:
    """Remove the branch's directory. It disappears from its place at once, by a rename."""
    place, doomed = branch_dir(branch_id), _staging_place(branch_id)
    remove_tree(doomed)
    for fresh in _fresh_ones(branch_id):
        remove_tree(fresh)
    if place.exists():
        with step("removing"):
            # Creates nothing new: on a full disk, removing is what makes room.
            place.rename(doomed)
            remove_tree(doomed)
            # Next, the branch's row records the removal. If a power cut undid the rename after
            # that, nothing would ever remove the directory.
            durable.sync(place.parent)


def write_branch_file(branch_id: str, name: str, text: str) -> Path:
    """Write the file `name` in the branch's directory, where its account may read it. The file is
    replaced as a whole or not at all. Returns its path."""
    path = branch_dir(branch_id) / name
    draft = path.with_name(f".{name}.{threading.get_ident()}")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, NEW_FILE, 0o640)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        grant_access(descriptor, account_of(branch_dir(branch_id)))
    draft.rename(path)
    return path


def make_run_dir(place: Path, account: Account) -> None:
    """Make `run` in a branch's directory, which the account cannot write to: the branch's pooler
    may write there. It is missing in a branch made by release 0.1. May be called again after a
    crash halfway. The caller holds the branch's lock."""
    run = place / "run"
    run.mkdir(mode=0o700, exist_ok=True)
    set_owner(run, account)


def template(major: int | None = None, locale: str = LOCALE) -> Path:
    """The cluster that projects of the major version, by default this host's default, and of the
    locale are cloned from; the first caller makes it. We own it, since everything cloned from it
    trusts it."""
    # Bases of branches' histories name its directory, so another template needs another name: those
    # of earlier releases have writable system views.
    name = postgres_version(major) + (f"-{locale}" if locale == LOCALE else "") + "-closed"
    place = Path(settings.STATE_DIR) / "templates" / name
    if place.exists():
        return place
    with lock_branches("template"):
        if place.exists():
            return place
        staging = place.with_name(f".{place.name}")
        remove_tree(staging)
        staging.mkdir(mode=0o700)
        set_owner(staging, service_account())
        _run(
            postgres_bin(major) / "initdb",
            *("--pgdata", staging, "--username", PLATFORM_ROLE, "--encoding", "UTF8"),
            *("--auth", "trust", "--no-locale", "--no-sync", "--no-instructions"),
            *("--data-checksums", *_initdb_options(major or default_major(), locale)),
        )
        for database in ("template1", "template0", "postgres"):
            command = (postgres_bin(major) / "postgres", "--single", "-F", "-D", staging)
            _run(*command, "-c", "exit_on_error=on", database, given=CLOSE + "\n")
        # A copy of our own: a process that could write to the original cannot write to the copy.
        owned = place.with_name(f".{place.name}.owned")
        remove_tree(owned)
        clone_tree(staging, owned, owner=own_account())
        remove_tree(staging)
        sync_tree(owned)
        owned.rename(place)
    return place


def _run(*command: Path | str, given: str = "") -> None:
    done = subprocess.run(
        command,
        input=given,
        capture_output=True,
        text=True,
        timeout=INITDB_TIMEOUT,
        **running_as(service_account()),
    )
    if done.returncode:
        name = Path(command[0]).name
        raise RuntimeError(f"{name} failed for the template: {done.stderr.strip()[-400:]}")


def _initdb_options(major: int, locale: str) -> list[str]:
    if locale != LOCALE:
        return []
    # Texts are sorted by their bytes, so no index depends on the host. LC_CTYPE says which
    # characters are letters; full text search before Postgres 18 looks at nothing else.
    options = [f"--lc-ctype={LOCALE}"]
    if major >= LOCALE_SINCE:
        options += ["--locale-provider=builtin", f"--builtin-locale={LOCALE}"]
    return options


@contextmanager
def new_branch(
    branch_id: str, *, place: Path | None = None, flush: Callable[[Path], None] = sync_tree
) -> Iterator[tuple[Path, Account]]:
    """Yields an empty staging directory for the branch, and its account. At the end the directory
    is flushed and renamed to the branch's place, or to `place`; after an exception it is removed.
    """
    with scratch_branch(branch_id) as (staging, account):
        yield staging, account
        with translate_disk_full("the branch"):
            make_run_dir(staging, account)
            grant_access(staging, account)
            with step("syncing"):
                flush(staging)
                durable.rename(staging, place or branch_dir(branch_id))


@contextmanager
def scratch_branch(branch_id: str) -> Iterator[tuple[Path, Account]]:
    """Yields an empty staging directory for the branch, and its account. It is removed at the
    end."""
    with lock_branches("accounts"):
        staging = _staging_place(branch_id)
        remove_tree(staging)  # what a dead attempt left there
        staging.mkdir(mode=0o700)
        account = new_account(staging.parent)
        # Takes the account number, so that no later branch gets the same.
        set_owner(staging, Account(own_account().uid, account.gid))
    try:
        with translate_disk_full("the branch"):
            yield staging, account
    finally:
        remove_tree(staging)


def require_space(source: Path, staging: Path, *, skip: Collection[str] = ()) -> dict[str, int]:
    """Raise NotEnoughSpace if a copy of `source` would not fit. Returns how many bytes are to be
    copied, as the copying step's detail; {} if the copy shares its blocks."""
    together = source.lstat().st_dev == staging.lstat().st_dev
    size = 0 if together and shares_blocks(staging) else tree_size(source, skip=skip)
    require(max(size, MIN_BRANCH_BYTES), at=staging, what="the branch")
    return {"of_bytes": size} if size else {}


def staging_id(branch_id: str) -> str:
    """The name that stands for the branch's id while it is being made, in every function that takes
    a branch id to find a directory."""
    return WORKSHOP + branch_id


def _staging_place(branch_id: str) -> Path:
    return branch_dir(staging_id(branch_id))


def _fresh(branch_id: str, kept_as: str) -> Path:
    """The place of the complete data that is about to replace the branch's."""
    return branch_dir(branch_id).with_name(f".{branch_id}.{kept_as}")


def _fresh_ones(branch_id: str) -> list[Path]:
    return list(branch_dir(branch_id).parent.glob(f".{branch_id}.*"))


def grant_access(path: Path | int, account: Account) -> None:
    """Let the account read the open file, or pass through the directory `path`; we stay owner."""
    set_owner(path, Account(own_account().uid, account.gid))
    os.chmod(path, 0o710 if isinstance(path, Path) else 0o640)

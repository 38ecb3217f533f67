"""A branch on disk: its directory, made from the template or from its parent.

`<state-dir>/branches/<branch_id>/` holds `data` (Postgres's own), `postgresql.conf` and
`postgres.log`. It is made beside its place and renamed into it, so that it is there as a
whole or not at all. Callers hold the branch's lock.
"""

import re
import subprocess
from pathlib import Path

from django.conf import settings

from controlplane.compute.binaries import (
    as_compute_account,
    give_to_account,
    own_directory,
    postgres_bin,
    postgres_version,
)
from controlplane.compute.configuration import PLATFORM_ROLE
from controlplane.compute.filesystem import (
    clone_tree,
    lock_branches,
    remove_tree,
    sync_tree,
)
from controlplane.compute.process import socket_dir_of
from controlplane.compute.session import session

# What belongs to the running process, not to the data: the documentation of Postgres's
# low-level backup says to leave these out.
OF_THE_PROCESS = ("postmaster.pid", "postmaster.opts", "pg_stat_tmp", "pg_dynshmem")
OF_THE_RUNNING = (
    *OF_THE_PROCESS,
    *("pg_notify", "pg_serial", "pg_snapshots", "pg_subtrans", "pg_replslot"),
    *("pg_wal", "pg_wal/archive_status", "pg_wal/summaries", "backup_label"),
)

# Seconds: beginning a backup of a running parent makes it write all its dirty pages.
CHECKPOINT_BOUND = 600.0


class NoSuchBranchData(Exception):
    """A branch's data directory is missing."""


def branch_dir(branch_id: str) -> Path:
    return Path(settings.STATE_DIR) / "branches" / branch_id


def data_dir(branch_id: str) -> Path:
    return branch_dir(branch_id) / "data"


def create_from_template(branch_id: str) -> None:
    """Make the branch's directory as a fresh cluster. Does nothing where it is already."""
    if branch_dir(branch_id).exists():
        return
    template = _template()
    staging = _staging(branch_id)
    clone_tree(template, staging / "data")
    _put_in_place(staging, branch_id)


def create_from_parent(branch_id: str, parent_id: str) -> None:
    """Make the branch's directory hold all that is committed on the parent now.

    The parent may run; then Postgres's backup functions make the copy consistent. Does
    nothing where the directory is already. Raises NoSuchBranchData, psycopg.Error.
    """
    if branch_dir(branch_id).exists():
        return
    parent = data_dir(parent_id)
    if not parent.exists():
        raise NoSuchBranchData(f"the parent branch {parent_id} has no data")
    staging = _staging(branch_id)
    if socket_dir := socket_dir_of(parent):
        _back_up(parent, socket_dir, staging / "data")
    else:
        clone_tree(parent, staging / "data", skip=OF_THE_PROCESS)
    _put_in_place(staging, branch_id)


def remove(branch_id: str) -> None:
    """Remove the branch's directory, at once as far as anyone can see."""
    place = branch_dir(branch_id)
    if place.exists():
        doomed = _staging(branch_id) / "removed"
        place.rename(doomed)
    remove_tree(place.parent / f".{branch_id}")


def _template() -> Path:
    """The cluster that new projects are cloned from, made by the first caller."""
    template: Path = settings.STATE_DIR / "templates" / postgres_version()
    if template.exists():
        return template
    own_directory(template.parent)
    with lock_branches("template"):
        if template.exists():
            return template
        staging = template.with_name(f".{template.name}")
        remove_tree(staging)
        done = subprocess.run(
            [
                postgres_bin() / "initdb",
                *("--pgdata", staging, "--username", PLATFORM_ROLE, "--encoding", "UTF8"),
                *("--auth", "trust", "--no-locale", "--no-sync", "--no-instructions"),
                "--data-checksums",
            ],
            capture_output=True,
            text=True,
            **as_compute_account(),
        )
        if done.returncode:
            raise RuntimeError(f"initdb failed: {done.stderr.strip()}")
        sync_tree(staging)
        staging.rename(template)
    return template


def _back_up(parent: Path, socket_dir: Path, target: Path) -> None:
    """A low-level base backup of the running `parent`, in one session as it must be."""
    with session(socket_dir, bound=CHECKPOINT_BOUND) as connection:
        # The slot keeps the log we need from being recycled; it goes with the session.
        connection.execute(
            "SELECT pg_create_physical_replication_slot('perch_' || pg_backend_pid(), true, true)"
        )
        connection.execute("SELECT pg_backup_start('branch', fast => true)")
        clone_tree(parent, target, skip=OF_THE_RUNNING)
        row = connection.execute(
            "SELECT labelfile, pg_walfile_name(lsn) FROM pg_backup_stop(wait_for_archive => false)"
        ).fetchone()
        assert row is not None
        label, last = str(row[0]), str(row[1])
        found = re.search(r"START WAL LOCATION: \S+ \(file ([0-9A-F]{24})\)", label)
        assert found is not None
        first = found[1]
        for segment in (parent / "pg_wal").iterdir():
            if re.fullmatch("[0-9A-F]{24}", segment.name) and first <= segment.name <= last:
                clone_tree(segment, target / "pg_wal" / segment.name)
    (target / "backup_label").write_text(label)
    give_to_account(target / "backup_label")


def _staging(branch_id: str) -> Path:
    """An empty directory beside the branch's place; what a dead attempt left is removed."""
    own_directory(branch_dir(branch_id).parent)
    staging = branch_dir(branch_id).with_name(f".{branch_id}")
    remove_tree(staging)
    return own_directory(staging)


def _put_in_place(staging: Path, branch_id: str) -> None:
    sync_tree(staging)
    staging.rename(branch_dir(branch_id))

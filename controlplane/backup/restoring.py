"""Creates a state directory from a backup, for `manage.py restore`."""

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

from django.conf import settings
from django.core.management import call_command

from controlplane import durable
from controlplane.backup.manifest import (
    METADATA_DUMP,
    BranchCopy,
    Manifest,
    branch_copy,
    read_file,
    read_manifest,
    verify,
)
from controlplane.backup.metadata_copy import check_empty, check_loads, load, metadata_cluster
from controlplane.backup.restored_rows import settle_lost_host, settle_rows
from controlplane.backup.taking import FALLBACKS, KEPT, SECRET_KEY, ready_branches, require_room
from controlplane.compute.data.branch_data import create_from_copy
from controlplane.compute.data.state_directory import (
    UNFINISHED_RESTORE,
    hold_state_directory,
    prepare_state_directory,
)
from controlplane.compute.host.binaries import WHAT_TO_DO, majors
from controlplane.compute.host.filesystem import remove_tree, sync_tree
from controlplane.compute.processes import metadata
from controlplane.database.secret_keys import refuse_other_key
from controlplane.database.version import (
    TOO_OLD,
    is_too_old,
    refuse_other_version,
    unknown_migrations,
)
from controlplane.environment import Unstored
from controlplane.models import Host, LogReceiver

# Releases up to 0.1 created this file wherever a command was run.
HARMLESS = {"secret-key"}


class RestoreRefused(Exception):
    """The backup cannot be restored here; the message says why and what to do."""


def restore(backup: Path, say: Callable[[str], object], *, mark: str) -> Manifest:
    """Create the state directory of the settings from the backup; `up` can then run it.

    If this is interrupted, it leaves a directory that only another restore accepts. Raises
    RestoreRefused, NoBackup, NoRoom, DumpFailed, StateDirectoryUnusable, AccountUnusable,
    TreeUntrusted, OSError.
    """
    manifest = read_manifest(backup)
    check_fits(manifest, has_data=bool(manifest.branches))
    check_key(backup)
    check_database()
    check_place()
    check_complete(backup, say)
    check_loads(backup / METADATA_DUMP)
    with new_state_directory():
        copy_branches(backup, manifest.branches, say)
        restore_secrets(backup)
        restore_rows(backup, manifest, mark=mark)
    return manifest


def restore_rows(backup: Path, manifest: Manifest, *, mark: str) -> None:
    """Load the rows and make them match the branches of the backup. The caller holds the state
    directory. Raises DumpFailed."""
    with loaded_rows(backup, mark=mark):
        settle_rows(manifest)


def restore_host(backup: Path, say: Callable[[str], object]) -> Manifest:
    """Create the state directory of the settings from the backup of this host, which was lost, for
    a database that has gone on without it. The rows stay; they are made to match the data.

    Returns the manifest, whose `not_copied` has the branches that the rows call ready and that the
    backup lacks. Until the end, no row changes. Raises what `restore` raises, and OtherVersion,
    OtherSecretKey.
    """
    manifest = read_manifest(backup)
    check_fits(manifest, has_data=bool(manifest.branches))
    check_lost_host(say)
    check_place()
    check_complete(backup, say)
    ready = set(ready_branches())
    present = {name: copy for name, copy in manifest.branches.items() if name in ready}
    if ready and not present:
        raise RestoreRefused(f"{backup} has no branch that this database has: it is of another one")
    with new_state_directory():
        copy_branches(backup, present, say)
        restore_secrets(backup)
        missing = settle_lost_host(present, present)
    reasons = dict.fromkeys(missing, "the backup has no copy of it")
    known = {name: why for name, why in manifest.not_copied.items() if name in reasons}
    return replace(manifest, not_copied=reasons | known)


def check_key(backup: Path) -> None:
    """Raise RestoreRefused if the service would start with other secret keys than the backup is
    encrypted with: the environment's have precedence over the restored ones."""
    if isinstance(settings.SECRET_KEY, Unstored):
        return
    key = read_file(backup / SECRET_KEY).decode().strip()
    if key not in (one.strip() for one in (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)):
        raise RestoreRefused(
            f"the secret key of this command is not that of the backup, {backup / SECRET_KEY}: "
            "unset PERCH_SECRET_KEY and PERCH_SECRET_KEY_FILE, or set them to the backup's key"
        )


def check_complete(backup: Path, say: Callable[[str], object]) -> None:
    """Raise RestoreRefused if the backup's files are not those that `backup` wrote."""
    say("Reading the backup …")
    if problems := verify(backup):
        raise RestoreRefused(f"{backup} is not complete: {'; '.join(problems[:5])}")


@contextmanager
def new_state_directory() -> Iterator[None]:
    """Hold the state directory, which an interruption of the block marks as unfinished."""
    clear_leftovers()
    prepare_state_directory()
    with hold_state_directory():
        unfinished = settings.STATE_DIR / UNFINISHED_RESTORE
        durable.write(unfinished, b"", 0o600)
        yield
        unfinished.unlink()
        durable.sync(settings.STATE_DIR)


def copy_branches(
    backup: Path, copies: Mapping[str, BranchCopy], say: Callable[[str], object]
) -> None:
    """Make the branches' directories. Raises NoRoom, AccountUnusable, TreeUntrusted, OSError."""
    trees = (branch_copy(backup, name) for name in copies)
    require_room(trees, at=settings.STATE_DIR / "branches")
    for number, (branch_id, copy) in enumerate(copies.items(), start=1):
        create_from_copy(branch_id, branch_copy(backup, branch_id))
        say(f"{number:>5}  {branch_id}  {copy.size / 1e6:,.0f} MB")


def check_fits(manifest: Manifest, *, has_data: bool) -> None:
    """Raise RestoreRefused if this Perch could not run what would be restored. `has_data` tells
    whether that includes data of branches."""
    if is_too_old(set(manifest.migrations)):
        raise RestoreRefused(f"the backup is {TOO_OLD}")
    if newer := unknown_migrations(manifest.migrations):
        raise RestoreRefused(
            f"the backup was made by a newer Perch, {manifest.perch} (it knows {newer[0]}): "
            "restore "
            "it with that version"
        )
    lacking = set(manifest.majors) - set(majors())
    if has_data and lacking:
        raise RestoreRefused(
            f"branches are of Postgres {' and '.join(map(str, sorted(lacking)))}, which this host "
            f"does not have: {WHAT_TO_DO}"
        )
    if manifest.region != settings.REGION:
        raise RestoreRefused(
            f'the backup is of the region "{manifest.region}": set PERCH_REGION to this region, '
            "for this command and for `up`"
        )
    if manifest.host_name != settings.HOST_NAME:
        raise RestoreRefused(
            f'the backup is of the host "{manifest.host_name}": set PERCH_HOST_NAME to this name, '
            "for this command and for `up`"
        )


def check_database() -> None:
    """Raise RestoreRefused or DumpFailed if rows cannot be restored into the named database."""
    if "DATABASE_URL" in os.environ:
        _check_answers()
        check_empty()


def check_lost_host(say: Callable[[str], object]) -> None:
    """Raise RestoreRefused, OtherVersion or OtherSecretKey if the database does not have this host
    as one that is lost. Warn if other hosts have commits that the restore does not use."""
    if "DATABASE_URL" not in os.environ:
        raise RestoreRefused("set DATABASE_URL to the database that the other hosts use")
    _check_answers()
    refuse_other_version()
    host = Host.objects.filter(id=settings.HOST_NAME).first()
    if host is None:
        known = ", ".join(Host.objects.order_by("id").values_list("id", flat=True))
        raise RestoreRefused(f'the database has no host "{settings.HOST_NAME}"; it has: {known}')
    if not host.is_away or "proxy" not in host.silent_processes():
        raise RestoreRefused(f"the host {host.id} still runs its worker or its proxy")
    # Without a key in the environment, `up` will use the backup's.
    if any(os.environ.get(name) for name in ("PERCH_SECRET_KEY", "PERCH_SECRET_KEY_FILE")):
        refuse_other_key()
    received = LogReceiver.objects.filter(
        branch__project__host=host, branch__deleted_at=None, host__lost_at=None
    ).exclude(attached_at=None)
    if names := ", ".join(sorted({row.branch_id for row in received})):
        say(
            f"WARNING: other hosts have received the newest commits of {names}. This restore does "
            "not use them, and they are removed after it. To keep them, interrupt this command and "
            f"let another host of the region take over: hosts lost {host.id}"
        )


def _check_answers() -> None:
    if complaint := metadata.why_unreachable(os.environ["DATABASE_URL"]):
        raise RestoreRefused(f"the database of DATABASE_URL does not answer: {complaint}")


def check_place() -> None:
    """Raise RestoreRefused if the state directory holds anything, unless an interrupted restore has
    left it there."""
    place = settings.STATE_DIR
    found = {path.name for path in place.iterdir()} if place.exists() else set()
    if found - HARMLESS and UNFINISHED_RESTORE not in found:
        raise RestoreRefused(f"{place} is not empty: name a directory that does not exist yet")


def clear_leftovers() -> None:
    """Remove what an earlier, interrupted restore has left."""
    place = settings.STATE_DIR
    if not (place / UNFINISHED_RESTORE).exists():
        return
    with hold_state_directory():
        for path in place.iterdir():
            # `locks` holds the lock of the state directory, which this function holds.
            if path.name in (UNFINISHED_RESTORE, "locks"):
                continue
            if path.is_dir() and not path.is_symlink():
                remove_tree(path)
            else:
                path.unlink()
        (place / UNFINISHED_RESTORE).unlink()


def restore_secrets(backup: Path) -> None:
    """Put the secrets that `taking.copy_secrets` has copied into the state directory. Raises
    OSError."""
    for name in (SECRET_KEY, FALLBACKS, *KEPT):
        source, place = backup / name, settings.STATE_DIR / name
        if source.is_dir():
            shutil.copytree(source, place)
            sync_tree(place)
        elif source.exists():
            durable.write(place, read_file(source), 0o600)
    durable.sync(settings.STATE_DIR)


@contextmanager
def loaded_rows(backup: Path, *, mark: str) -> Iterator[None]:
    """Load the rows into the empty database, which is available inside this context. The caller
    holds the state directory. Raises DumpFailed."""
    with nullcontext() if "DATABASE_URL" in os.environ else metadata_cluster(mark=mark):
        load(backup / METADATA_DUMP)
        # Migrate the rows of an older Perch before changing any.
        call_command("migrate", verbosity=0)
        yield

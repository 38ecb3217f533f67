"""Takes a backup of this host's service while it runs, for `manage.py backup`. Notes in the host's
row when that was, and how old the newest verified backup is: /healthz reports their age."""

import shutil
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from django.conf import settings
from django.db.models import QuerySet
from django.db.models.functions import Coalesce, Greatest

from controlplane import clock, durable
from controlplane.backup.branch_copy import CopyFailed, copy_branch
from controlplane.backup.manifest import (
    METADATA_DUMP,
    BranchCopy,
    Manifest,
    branch_copy,
    write_manifest,
    write_sums,
)
from controlplane.backup.metadata_copy import check_can_dump, dump, snapshot
from controlplane.compute.data.branch_data import NoSuchBranchData, data_dir
from controlplane.compute.host.binaries import major_of
from controlplane.compute.host.cloning import shares_blocks
from controlplane.compute.host.filesystem import LockTimeout, lock_branches, remove_tree, sync_tree
from controlplane.compute.host.tree import TreeUntrusted, tree_size
from controlplane.database.version import applied_migrations, perch_version
from controlplane.models import UNFINISHED, Action, Branch, BranchState, Host, Operation

# The most passes over the branches created since the previous pass; each is far shorter than the
# one before.
MAX_PASSES = 10
# What a restored service needs besides the database and the secret key. Each of these is secret.
KEPT = ("tls", "api-key")
# The files of the secret keys, in a backup and in the state directory.
SECRET_KEY, FALLBACKS = "secret-key", "secret-key-fallbacks"
# Bytes for the rows and the lists, and for what is written while the copy is made.
MARGIN_BYTES = 256 << 20


class NoRoom(Exception):
    """The copy does not fit; the message says how much space is needed and how much is left."""


class BackupRefused(Exception):
    """No backup can be made; the message says why and what to do."""


def take_backup(target: Path, say: Callable[[str], object]) -> Manifest:
    """Make a backup in the directory `target`, which must be absent or empty. It appears there
    complete or not at all. `say` is called with each message about the progress.

    The service's database must be available. Raises BackupRefused, NoRoom, DumpFailed, OSError.
    """
    _check_target(target)
    check_can_dump()
    with _backup_lock(), _staging(target) as staging:
        require_room(map(data_dir, ready_branches()), at=staging)
        began = clock.now()
        copies: dict[str, BranchCopy] = {}
        failed: dict[str, str] = {}
        for _ in range(MAX_PASSES):
            _copy_branches(staging, copies, failed, say)
            manifest = _copy_rows(staging, began, copies, failed)
            if manifest is not None:
                break
        else:
            raise BackupRefused("branches were restored repeatedly during the backup; try again")
        # Branches that were deleted after they were copied.
        for branch_id in copies.keys() - manifest.branches.keys():
            remove_tree(branch_copy(staging, branch_id))
        copy_secrets(staging)
        write_manifest(staging, manifest)
        say("Reading it back …")
        write_sums(staging)
        sync_tree(staging)
        durable.rename(staging, target)
    return manifest


def _copy_branches(
    staging: Path,
    copies: dict[str, BranchCopy],
    failed: dict[str, str],
    say: Callable[[str], object],
) -> None:
    """Copy every ready branch that is not among the copies, those that become ready meanwhile, and
    again those whose data was replaced since. Adds the copies to `copies`, and to `failed` the
    branches that could not be copied, with the reason."""
    (staging / "branches").mkdir(mode=0o700, exist_ok=True)
    for _ in range(MAX_PASSES):
        for branch_id in replaced_since(copies):
            del copies[branch_id]
            remove_tree(branch_copy(staging, branch_id))
        new = [ready for ready in ready_branches() if ready not in {*copies, *failed}]
        if not new:
            break
        # A compute that delays its copy delays no others: its next attempt comes after them.
        waiting = deque((branch_id, 1) for branch_id in new)
        while waiting:
            branch_id, attempt = waiting.popleft()
            began = time.monotonic()
            try:
                copy = copy_branch(branch_id, branch_copy(staging, branch_id), attempt)
            except (NoSuchBranchData, CopyFailed) as error:
                failed[branch_id] = str(error)
                continue
            if copy is None:
                waiting.append((branch_id, attempt + 1))
                continue
            copies[branch_id] = copy
            say(
                f"{len(copies):>5}  {branch_id}  {copy.size / 1e6:,.0f} MB"
                f" in {time.monotonic() - began:.1f} s{', running' if copy.was_running else ''}"
            )


def replaced_since(copies: Mapping[str, BranchCopy]) -> list[str]:
    """Return the branches whose data was replaced after their copy had begun: the copy's roles and
    databases are not those of the present rows."""
    resets = Branch.objects.filter(id__in=copies).exclude(last_reset_at=None)
    return [
        branch_id
        for branch_id, at in resets.values_list("id", "last_reset_at")
        if at is not None and at > copies[branch_id].taken_at
    ]


def _copy_rows(
    staging: Path, began: datetime, copies: dict[str, BranchCopy], failed: dict[str, str]
) -> Manifest | None:
    """Dump the rows as they are now, after all branches were copied, so that every branch that they
    call ready could be copied. Returns None, without a dump, if the data of a copied branch was
    replaced since."""
    with snapshot() as seen:
        if replaced_since(copies):
            return None
        ready = ready_branches()
        doomed = ids_being_deleted()
        # Of the data: this command may use programs of another version, for the database's sake.
        majors = sorted({major_of(branch_copy(staging, branch_id)) for branch_id in copies})
        manifest = replace(
            manifest_of_now(",".join(map(str, majors))),
            began_at=began,
            branches={name: copies[name] for name in ready if name in copies},
            not_copied={
                name: why for name, why in failed.items() if name in ready and name not in doomed
            },
        )
        dump(staging / METADATA_DUMP, snapshot=seen)
    return manifest


def manifest_of_now(postgres: str) -> Manifest:
    """The manifest of a copy of this host's rows as they are now. `postgres` has the major versions
    of its branches."""
    now = clock.now()
    return Manifest(
        perch=perch_version(),
        postgres=postgres,
        region=settings.REGION,
        host=settings.HOST_NAME,
        began_at=now,
        rows_at=now,
        migrations=sorted(applied_migrations()),
        branches={},
    )


def branches_with_data() -> QuerySet[Branch]:
    """Return this host's branches that have data, by the rows, oldest first."""
    found: QuerySet[Branch] = Branch.objects.filter(
        project__host_id=settings.HOST_NAME,
        project__deleted_at=None,
        deleted_at=None,
        current_state=BranchState.READY,
    )
    return found.order_by("created_at", "id")


def ready_branches() -> list[str]:
    """Return the ids of these branches."""
    return list(branches_with_data().values_list("id", flat=True))


def ids_being_deleted() -> set[str]:
    """Return the ids of branches whose data an operation will remove or is removing. Their rows say
    ready until the operation has ended."""
    deletions = Operation.objects.filter(action=Action.DELETE_TIMELINE, status__in=UNFINISHED)
    return {found for found in deletions.values_list("branch_id", flat=True) if found}


def copy_secrets(staging: Path) -> None:
    """Copy what a restored service needs besides its rows and data into the directory."""
    durable.write_new(staging / SECRET_KEY, settings.SECRET_KEY, 0o600)
    if settings.SECRET_KEY_FALLBACKS:
        # Until the key's rotation has ended, some values are encrypted with these.
        fallbacks = "\n".join(settings.SECRET_KEY_FALLBACKS)
        durable.write_new(staging / FALLBACKS, fallbacks, 0o600)
    for name in KEPT:
        source = settings.STATE_DIR / name
        if source.is_dir():
            shutil.copytree(source, staging / name)
        elif source.exists():
            shutil.copy(source, staging / name)


def record_backup(host_id: str, at: datetime) -> None:
    """Note that there is a complete backup with the rows of the time `at`."""
    Host.objects.filter(id=host_id).update(
        backup_taken_at=at, backups_since=Coalesce("backups_since", at)
    )


def record_verification(host_id: str, at: datetime) -> bool:
    """Note that the backup with the rows of the time `at` was verified. False if the database has
    no such host."""
    # Greatest ignores NULL in Postgres.
    changed = Host.objects.filter(id=host_id).update(
        backup_verified_at=Greatest("backup_verified_at", at),
        backups_since=Coalesce("backups_since", at),
    )
    return bool(changed)


def _check_target(target: Path) -> None:
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise BackupRefused(f"{target} is not a directory")
    if target.exists() and any(target.iterdir()):
        raise BackupRefused(f"{target} is not empty: name a directory that does not exist yet")
    if target.is_mount():
        raise BackupRefused(f"{target} is a mount point: name a directory below it")
    if not target.parent.is_dir():
        raise BackupRefused(f"{target.parent} is not there")
    if target.resolve().is_relative_to(settings.STATE_DIR):
        raise BackupRefused("a backup within the state directory would be lost with it")


@contextmanager
def _staging(target: Path) -> Iterator[Path]:
    """Create the directory, beside the target, in which the backup is made. Removes what a killed
    backup left there. At the end the directory is removed, unless it was renamed to the target."""
    staging = target.with_name(f".{target.name}.partial")
    remove_tree(staging)
    staging.mkdir(mode=0o700)
    try:
        yield staging
    finally:
        remove_tree(staging)


@contextmanager
def _backup_lock() -> Iterator[None]:
    try:
        with lock_branches("backup", timeout=0):
            yield
    except LockTimeout:
        raise BackupRefused("another backup of this service is being made") from None


def require_room(trees: Iterable[Path], *, at: Path) -> None:
    """Raise NoRoom if copies of the trees do not fit into the directory `at`, which only Perch
    uses. A tree may be missing, or refused for what is in it: whoever copies it says so."""
    trees = [tree for tree in trees if tree.exists()]
    needed = MARGIN_BYTES
    if not (all(tree.stat().st_dev == at.stat().st_dev for tree in trees) and shares_blocks(at)):
        for tree in trees:
            with suppress(TreeUntrusted, OSError):
                needed += tree_size(tree)
    free = shutil.disk_usage(at).free
    if free < needed:
        raise NoRoom(f"{at.parent} has {free / 1e9:.1f} GB left, and {needed / 1e9:.1f} are needed")

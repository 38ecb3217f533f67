"""Restores a lost host from the store into an empty state directory, for `manage.py restore
--from-store`.

First the rows come back, then each branch that they call ready: its newest base copy, and its log
up to the last position in the store. The data of a branch is usually younger than the rows, so its
catalog is the truth: the first start brings the rows to it, as it does with what SQL has changed.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain
from pathlib import Path

from django.conf import settings

from controlplane.backup.manifest import Manifest, read_manifest
from controlplane.backup.restored_rows import settle_lost_host, settle_rows_from_store
from controlplane.backup.restoring import (
    RestoreRefused,
    check_database,
    check_fits,
    check_lost_host,
    check_place,
    loaded_rows,
    new_state_directory,
    restore_secrets,
)
from controlplane.backup.taking import ready_branches
from controlplane.compute.compute import OtherMajorVersion
from controlplane.compute.host.filesystem import remove_tree
from controlplane.compute.processes.process import StartFailed
from controlplane.history.local.moments import NoSuchMoment
from controlplane.history.local.recovering import NotRecovered
from controlplane.history.store.fetching import NothingStored, create_branch, fetched_branch
from controlplane.history.store.host_copies import Sign, last_sign
from controlplane.history.store.layout import branch_folder, host_folder
from controlplane.history.store.objects import Store
from controlplane.history.store.packing import Damaged, WrongKey, scratch_directory, write_tree
from controlplane.models import Branch

# In the state directory: what is brought from the store.
SCRATCH = ".from-store"
# Why a branch cannot be restored although the store answers.
BRANCH_ERRORS = (
    *(NothingStored, Damaged, NoSuchMoment, NotRecovered, StartFailed, OtherMajorVersion),
    # Of one branch it says that its objects are not what the host has written: the rows could be
    # read with the key.
    *(WrongKey, ValueError, ArithmeticError),
)


@dataclass(frozen=True)
class Restored:
    """What was restored, and what is missing."""

    # The moment of the rows, and the last sign of the lost host; None if none can be read.
    rows_at: datetime
    sign: Sign | None
    # Of each branch, until when its commits were restored.
    branches: dict[str, datetime] = field(default_factory=dict)
    # Branches with less than all, those of them that end before log that is missing, and branches
    # without data, each with the reason.
    shortfalls: dict[str, str] = field(default_factory=dict)
    gaps: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)


def restore_from_store(
    store: Store,
    say: Callable[[str], object],
    *,
    mark: str,
    host: str | None = None,
    with_rows: bool = True,
) -> Restored:
    """Create the state directory of the settings from the store; `up` can then run it. `host` is
    the id of the lost state directory; by default, of those of this host's name, that whose rows
    were copied last. Without the rows, the branches are restored for a database that has gone on
    without that host.

    If this is interrupted, it leaves a directory that only another restore accepts. Raises
    RestoreRefused, StoreFails, Damaged, WrongKey, DumpFailed, StateDirectoryUnusable,
    AccountUnusable, NotEnoughSpace, OtherVersion, BackupRefused, OSError.
    """
    # A wrong key is found here, before anything is made.
    copies = newest_rows(store, host, say)
    first = next(copies)
    if with_rows:
        check_database()
    else:
        check_lost_host(say)
    check_place()
    with new_state_directory(), scratch_directory(SCRATCH) as scratch:
        named = host is not None
        folder, manifest = read_rows(store, chain([first], copies), scratch / "rows", say, named)
        check_fits(manifest, has_data=True)
        restored = Restored(manifest.rows_at, last_sign(store, folder))
        if with_rows:
            with loaded_rows(scratch / "rows", mark=mark):
                _restore_branches(store, folder, restored, scratch, say)
                settle_rows_from_store(manifest.rows_at, set(restored.branches))
        else:
            _restore_branches(store, folder, restored, scratch, say)
            settle_lost_host(restored.branches, {})
        restore_secrets(scratch / "rows")
    return restored


def read_rows(
    store: Store,
    copies: Iterable[tuple[str, str]],
    place: Path,
    say: Callable[[str], object],
    named: bool,
) -> tuple[str, Manifest]:
    """Write the first of the copies of rows that is of this host, or the first at all if the host
    was `named`, to `place`. Returns the folder of its host and its manifest. Raises
    RestoreRefused, StoreFails, Damaged, NoBackup."""
    others = set()
    for folder, rows in copies:
        say(f"Reading {rows} …")
        remove_tree(place)
        write_tree(store.get(rows), place)
        manifest = read_manifest(place)
        if named or manifest.host_name == settings.HOST_NAME:
            return folder, manifest
        others.add(f'"{manifest.host_name}"')
    raise RestoreRefused(
        f"the store has rows of the host {' and '.join(sorted(others))}, and none of the host "
        f'"{settings.HOST_NAME}": set PERCH_HOST_NAME to the lost one, for this command and '
        "for `up`"
    )


def newest_rows(
    store: Store, host: str | None, say: Callable[[str], object]
) -> Iterator[tuple[str, str]]:
    """For each host of the region, or for this one: its folder, and the name of the newest copy of
    its rows that can be read. The host whose rows were copied last comes first. Raises
    RestoreRefused, StoreFails; if no host has any, Damaged, or WrongKey if nothing can be read."""
    region = f"regions/{settings.REGION}"
    folders = [host_folder(settings.REGION, one) for one in [host] if one]
    folders = folders or [host_folder(settings.REGION, one) for one in store.folders(region)]
    found = {folder: sorted(store.names(f"{folder}/metadata"), reverse=True) for folder in folders}
    found = {folder: copies for folder, copies in found.items() if copies}
    if not found:
        others = ", ".join(store.folders("regions"))
        raise RestoreRefused(
            f'the store has no copy of the region "{settings.REGION}"'
            + (f" by the host {host}" if host else "")
            + (f"; it has the regions {others}: set PERCH_REGION" if others else "")
        )

    def copied_at(folder: str) -> str:
        return found[folder][0].rpartition("/")[2]

    errors: list[Damaged | WrongKey] = []
    for folder in sorted(found, key=copied_at, reverse=True):
        try:
            newest = _newest_readable(store, folder, found[folder], say)
        except (Damaged, WrongKey) as error:
            errors.append(error)
            continue
        yield folder, newest
    if len(errors) == len(found):
        raise errors[0]


def _newest_readable(
    store: Store, folder: str, copies: Sequence[str], say: Callable[[str], object]
) -> str:
    for copy in copies:
        if store.is_whole(copy):
            return copy
        say(f"{copy} cannot be read")
    branches = store.folders(f"{folder}/branches")
    lists = [f"{branch_folder(folder, branch_id)}/lists" for branch_id in branches]
    if any(_is_readable(store.newest, place) for place in (f"{folder}/signs", *lists)):
        raise Damaged(f"none of the {len(copies)} copies of the rows can be read")
    deque(store.get(copies[0]), maxlen=0)  # raises why
    return copies[0]


def _is_readable(read: Callable[[str], object], name: str) -> bool:
    try:
        return read(name) is not None
    except (Damaged, WrongKey):
        return False


def _restore_branches(
    store: Store, folder: str, restored: Restored, scratch: Path, say: Callable[[str], object]
) -> None:
    """Restore the branches that the rows call ready, and note in `restored` what is missing."""
    stored = set(store.folders(f"{folder}/branches"))
    for number, branch_id in enumerate(ready_branches(), start=1):
        try:
            place = scratch / "branch"
            listed = restored.sign.lists.get(branch_id, 0) if restored.sign else 0
            source = branch_folder(folder, branch_id)
            with fetched_branch(store, source, place, listed, to_gap=True) as fetched:
                create_branch(branch_id, fetched)
        except BRANCH_ERRORS as error:
            why = "its copy is damaged" if isinstance(error, WrongKey) else str(error)
            restored.missing[branch_id] = why
            say(f"{number:>5}  {branch_id}  not restored: {why}")
            continue
        restored.branches[branch_id] = fetched.at
        if fetched.shortfall:
            restored.shortfalls[branch_id] = fetched.shortfall
        if fetched.gap and fetched.moment:
            why = f"the log from {fetched.moment.stop:X} on is missing in the store"
            restored.shortfalls[branch_id] = restored.gaps[branch_id] = why
        say(f"{number:>5}  {branch_id}  until {fetched.at:%Y-%m-%d %H:%M:%S.%f} UTC")
    known = set(Branch.objects.filter(id__in=stored).values_list("id", flat=True))
    for branch_id in sorted(stored - known):
        restored.missing[branch_id] = "it was created after the rows were copied"

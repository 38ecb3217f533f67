"""Copies what is of the whole host to the store: the service's rows and secrets, so that an empty
host can be restored, and the host's last sign of life.

The sign has its time, and how far the log of each running branch had been copied by then. It shows
what is lost if the host is lost: of a running branch what was committed since, even if it had
written nothing for hours, and of an idle branch nothing, unless the store lacked some of it.

    regions/<region>/<host>/signs/<time>-…      JSON; the newest counts
"""

import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.conf import settings
from django.db import connection
from pydantic import TypeAdapter, ValidationError

from controlplane import clock
from controlplane.backup.manifest import METADATA_DUMP, write_manifest
from controlplane.backup.metadata_copy import dump, snapshot
from controlplane.backup.taking import copy_secrets, manifest_of_now
from controlplane.compute.host.tree import open_directory
from controlplane.history.local.pulling import flushed_logs
from controlplane.history.store.copier import Copier, Copies
from controlplane.history.store.objects import Store, random_name
from controlplane.history.store.packing import Damaged, WrongKey, scratch_directory, tree_stream
from controlplane.history.store_status import state
from controlplane.models import Project

# In the state directory: the rows and secrets that are being copied.
SCRATCH = ".rows"
# Seconds between two copies: at least after a change, and at most. The database may spend one part
# in TIME_FACTOR of its time on them, as the rows of a large service take long.
MIN_INTERVAL, MAX_INTERVAL, TIME_FACTOR = 10.0, 3600.0, 20
# The time between two signs while computes run.
SIGN_INTERVAL = timedelta(seconds=10)
# A branch whose log was looked at within this time counts as running: each is every five seconds.
RUNNING_TIMEOUT = timedelta(seconds=30)


@dataclass
class _Last:
    """The last copy: its name, of when its rows are, when it was made, how long the database took,
    and its newest change."""

    name: str = ""
    rows_at: datetime | None = None
    at: float = float("-inf")
    took: float = 0.0
    change: int = -1


_last = _Last()


def copy_rows_to_store(copier: Copier) -> None:
    """Copy the rows if any have changed, within the bounds above."""
    since, change = time.monotonic() - _last.at, _newest_change()
    if change != _last.change and state.rows_behind is None:
        state.rows_behind = clock.now()
    wait = max(MIN_INTERVAL, TIME_FACTOR * _last.took) if change != _last.change else MAX_INTERVAL
    if since < wait:
        return
    took = copier.attempt("rows", lambda: _copy_rows(copier.copies))
    if took is not None:
        _last.at, _last.took, _last.change = time.monotonic(), took, change
        state.rows_behind = None


def _majors() -> str:
    """The major versions of Postgres that the host's projects have."""
    projects = Project.objects.filter(host=settings.HOST_NAME, deleted_at=None)
    found = projects.order_by("pg_version").values_list("pg_version", flat=True).distinct()
    return ",".join(map(str, found))


def _newest_change() -> int:
    """Grows with every change that callers cause: each has an event."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT coalesce(max(id), 0) FROM controlplane_event")
        return int(cursor.fetchone()[0])


def _copy_rows(copies: Copies) -> float:
    """Copy the rows and secrets as they are now. Returns how many seconds the database took.

    Raises DumpFailed, StoreFails, OSError.
    """
    with scratch_directory(SCRATCH) as place:
        began = time.monotonic()
        with snapshot() as seen:
            manifest = manifest_of_now(_majors())
            dump(place / METADATA_DUMP, snapshot=seen)
        took = time.monotonic() - began
        copy_secrets(place)
        write_manifest(place, manifest)
        at = f"{manifest.rows_at:%Y%m%dT%H%M%S.%fZ}"
        name = f"{copies.host}/metadata/{at}-{random_name()}"
        with open_directory(place) as directory:
            copies.store.put(name, tree_stream(directory))
    _delete_others(copies, name)
    _last.name, _last.rows_at = name, manifest.rows_at
    return took


def _delete_others(copies: Copies, name: str) -> None:
    """Delete all copies but this one and the one before it, which a restore may be reading. Those
    with later names are older too: the clock was ahead, or somebody without the key has added
    them. Raises StoreFails."""
    names = list(copies.store.names(f"{copies.host}/metadata"))
    earlier = (one for one in reversed(names) if one < name)
    before = (one for one in earlier if one == _last.name or copies.store.is_whole(one))
    kept = {name, next(before, "")}
    copies.store.delete([one for one in names if one not in kept])


@dataclass(frozen=True)
class Sign:
    """A host's sign: see the module."""

    at: datetime
    # For each branch that runs, or of which the store lacks something, the time until which all
    # that was committed is in the store; None if that is not known.
    running: Mapping[str, datetime | None] = field(default_factory=dict)
    # The number of each branch's last list. Whoever can write to the store could put an earlier
    # one back.
    lists: Mapping[str, int] = field(default_factory=dict)

    def lost_since(self, branch_id: str, copied_at: datetime) -> datetime:
        """Return the time since which commits of the branch may be lost, if it was copied until
        `copied_at`: the sign's, if it did not run then and the store had all of it."""
        return max(copied_at, self.running.get(branch_id, self.at) or copied_at)


_SIGN = TypeAdapter(Sign)


def store_sign(
    copies: Copies,
    last: Sign | None,
    seen: Mapping[str, int],
    behind: Collection[str] = (),
    working: Collection[str] = (),
) -> Sign | None:
    """Store a sign if one is due, and delete the earlier ones. `seen` has the position until which
    each branch's log is in the store. Of the branches that are `behind`, the store lacks log or
    data; on those that are `working`, computes run. Returns the last sign. Raises StoreFails."""
    now, store = clock.now(), copies.store
    if last and now - last.at < SIGN_INTERVAL:
        return last
    looks = {
        one: flushed for one, flushed in flushed_logs.items() if now - flushed.at < RUNNING_TIMEOUT
    }
    # A restore believes no sign that is older than the rows.
    is_older = last and _last.rows_at and last.at < _last.rows_at
    if not (looks or behind or working or is_older) and last and not last.running:
        return last
    # Of a compute that could not be looked at for long, it is not known what it has committed.
    running: dict[str, datetime | None] = dict.fromkeys(working)
    for branch_id, flushed in looks.items():
        running[branch_id] = flushed.at if seen.get(branch_id) == flushed.lsn else None
    running |= dict.fromkeys(behind)
    folder = f"{copies.host}/signs"
    name = f"{folder}/{now:%Y%m%dT%H%M%S.%fZ}-{random_name()}"
    sign = Sign(now, running, copies.numbers.copy())
    store.put(name, _SIGN.dump_json(sign))
    store.delete(one for one in store.names(folder) if one != name)
    return sign


def last_sign(store: Store, host: str) -> Sign | None:
    """The last sign of the host with this folder; None if there is none that can be read: it only
    says what may be lost. Raises StoreFails."""
    with suppress(Damaged, WrongKey, ValidationError):
        newest = store.newest(f"{host}/signs")
        return _SIGN.validate_json(newest[1]) if newest else None
    return None

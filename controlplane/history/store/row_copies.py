"""Copies the service's rows and secrets to the store, so that an empty host can be restored."""

import time
from dataclasses import dataclass

from django.conf import settings
from django.db import connection

from controlplane import clock
from controlplane.backup.manifest import METADATA_DUMP, write_manifest
from controlplane.backup.metadata_copy import dump, snapshot
from controlplane.backup.taking import copy_secrets, manifest_of_now
from controlplane.compute.host.tree import open_directory
from controlplane.history.store.copier import Copier
from controlplane.history.store.known_lists import Copies
from controlplane.history.store.objects import random_name
from controlplane.history.store.trees import scratch_directory, tree_stream
from controlplane.history.store_status import state
from controlplane.models import Project

# In the state directory: the rows and secrets that are being copied.
SCRATCH = ".rows"
# Seconds between two copies: at least after a change, and at most. The database may spend one part
# in TIME_FACTOR of its time on them, as the rows of a large service take long.
MIN_INTERVAL, MAX_INTERVAL, TIME_FACTOR = 10.0, 3600.0, 20


@dataclass
class _Last:
    """The last copy: its name, when it was made, how long the database took, and its newest
    change."""

    name: str = ""
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
    _last.name = name
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

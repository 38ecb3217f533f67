"""What an operation's `error` says: words for the user of the endpoint, no path of this host."""

import functools
import re
import sys
from pathlib import Path

import psycopg
from django.conf import settings

from controlplane.compute.accounts import AccountUnusable
from controlplane.compute.filesystem import LockTimeout
from controlplane.compute.integrity import DataDamaged
from controlplane.compute.patience import OutOfPatience
from controlplane.compute.process import StartFailed, StopFailed
from controlplane.compute.tree import TreeUntrusted

# Exceptions whose words mean something to the user of the endpoint.
TELLING = (
    *(StartFailed, StopFailed, DataDamaged, LockTimeout, OutOfPatience),
    *(AccountUnusable, TreeUntrusted, psycopg.Error),
)


def words_of(error: Exception) -> str:
    """Why an attempt failed: what Postgres or the host said, not our own slips."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, TELLING) and str(error):
        return str(error)
    return f"internal error ({type(error).__name__}); the worker's log has the details"


def without_paths(text: str) -> str:
    """The text with the last name alone of every path of this host's: where things lie is the
    operator's business."""
    return _host_paths().sub(lambda found: Path(found[0]).name or "a directory", text)


@functools.cache
def _host_paths() -> re.Pattern[str]:
    places = {str(settings.STATE_DIR), str(settings.SOCKET_DIR), sys.prefix}
    if settings.POSTGRES_BIN:
        places.add(str(settings.POSTGRES_BIN))
    either = "|".join(map(re.escape, sorted(places, key=len, reverse=True)))
    return re.compile(rf"(?:{either})(?:/[^\s\"'`,;:()]*)?")

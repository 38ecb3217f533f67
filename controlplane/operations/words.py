"""What an operation's `error` says: what has happened and what to do, in words for the user of the
endpoint; no path of this host."""

import functools
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

import psycopg
from django.conf import settings

from controlplane.compute.accounts import AccountUnusable
from controlplane.compute.branch_data import NoSuchBranchData
from controlplane.compute.compute import ConfigurationRefused, OtherMajorVersion
from controlplane.compute.filesystem import LockTimeout
from controlplane.compute.integrity import DataDamaged
from controlplane.compute.outbound import OutboundNotBlocked
from controlplane.compute.patience import OutOfPatience
from controlplane.compute.process import StartFailed, StopFailed
from controlplane.compute.schema import SchemaUnreadable
from controlplane.compute.schema_only import SchemaNotCopied
from controlplane.compute.space import NotEnoughSpace
from controlplane.compute.tree import TreeUntrusted
from controlplane.operations.catalog import NotApplied

# Where hosts keep what Postgres may speak of, beside the directories that are set.
HOSTS_OWN = ("/dev/shm", "/etc", "/proc", "/usr/lib/postgresql", "/usr/share/postgresql")  # noqa: S108
LONGEST = 4000
UNSHOWABLE = re.compile("[^\t\n\x20-\x7e\xa0-\ud7ff\ue000-\U0010ffff]")
OPERATOR = "if it stays so, tell this host's operator"
# What to do about each exception whose own words mean something to the user of the endpoint; ""
# where those say it already. Of two that fit, the first.
ADVICE: Mapping[type[Exception], str] = {
    StartFailed: f"the next start tries again; {OPERATOR}",
    StopFailed: "tell this host's operator",
    ConfigurationRefused: "change the endpoint's settings",
    OtherMajorVersion: "",
    NoSuchBranchData: "have this host's operator restore it from a backup, or delete the branch",
    SchemaNotCopied: "change what stands in its way in the branch that it is the schema of",
    SchemaUnreadable: "",
    OutboundNotBlocked: "tell this host's operator, or allow the project's computes to connect",
    NotEnoughSpace: "delete branches that are of no use any more, or ask the operator for room",
    DataDamaged: "have this host's operator restore the branch from a backup",
    LockTimeout: "try again once that has ended",
    OutOfPatience: f"try again; {OPERATOR}",
    AccountUnusable: "that is for this host's operator to do",
    TreeUntrusted: "remove from the branch what Postgres itself has not put there",
    NotApplied: "change what stands in its way, in the database itself if need be",
    psycopg.Error: f"try again; {OPERATOR}",
}


def words_of(error: Exception) -> str:
    """Why an attempt failed: what Postgres or the host said, not our own slips; and what to do."""
    for kind, advice in ADVICE.items():
        if isinstance(error, kind) and str(error):
            return "; ".join(filter(None, (str(error), advice)))
    if isinstance(error, OSError) and error.strerror:
        return f"this host says: {error.strerror}; try again; {OPERATOR}"
    return (
        f"internal error ({type(error).__name__}); try again; {OPERATOR}: the worker's log has "
        "the details under the operation's id"
    )


def without_paths(text: str) -> str:
    """The text with the last name alone of every path of this host's: where things lie is the
    operator's business. What a compute's own programs have said may be a stranger's: it is cut to
    LONGEST characters, without those that no row holds and that a terminal would obey."""
    shown = UNSHOWABLE.sub("\ufffd", text[:LONGEST])
    return _host_paths().sub(lambda found: Path(found[0]).name or "a directory", shown)


@functools.cache
def _host_paths() -> re.Pattern[str]:
    places = {str(settings.STATE_DIR), str(settings.SOCKET_DIR), str(settings.PROXY_SOCKET_DIR)}
    places |= {sys.prefix, *HOSTS_OWN}
    if settings.POSTGRES_BIN:
        places.add(str(settings.POSTGRES_BIN))
    # Postgres follows links to its own files, and speaks of where they lead.
    places |= {os.path.realpath(place) for place in places}
    either = "|".join(map(re.escape, sorted(places, key=len, reverse=True)))
    return re.compile(rf"(?:{either})(?:/[^\s\"'`,;:()]*)?")

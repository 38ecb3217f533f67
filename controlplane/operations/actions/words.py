"""The text of an operation's `error`: what happened and what to do, for the user of the endpoint,
without any path of this host."""

import functools
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

import psycopg
from django.conf import settings

from controlplane.compute.compute import ConfigurationRefused, OtherMajorVersion
from controlplane.compute.data.branch_data import NoSuchBranchData
from controlplane.compute.data.integrity import DataDamaged
from controlplane.compute.data.outbound import OutboundNotBlocked
from controlplane.compute.host.accounts import AccountUnusable
from controlplane.compute.host.binaries import PostgresUnusable
from controlplane.compute.host.filesystem import LockTimeout
from controlplane.compute.host.patience import OutOfPatience
from controlplane.compute.host.space import NotEnoughSpace
from controlplane.compute.host.tree import TreeUntrusted
from controlplane.compute.masking.functions import RuleRefused
from controlplane.compute.processes.process import StartFailed, StopFailed
from controlplane.compute.schemas.schema import SchemaUnreadable
from controlplane.compute.schemas.schema_restoring import CopyInterrupted, SchemaNotCopied
from controlplane.compute.upgrade.upgrade_catalogs import UpgradeFailed, UpgradeRefused
from controlplane.features import features
from controlplane.operations.catalog.applying import NotApplied

# Where hosts keep files that Postgres may mention, besides the directories in the settings.
HOST_DIRECTORIES = ("/dev/shm", "/etc", "/proc", "/usr/lib/postgresql", "/usr/share/postgresql")  # noqa: S108
MAX_LENGTH = 4000
UNSHOWABLE = re.compile("[^\t\n\x20-\x7e\xa0-\ud7ff\ue000-\U0010ffff]")
OPERATOR = "if this persists, tell this host's operator"
AGAIN = f"try again; {OPERATOR}"
# What to do about each exception whose own message is meaningful to the user of the endpoint; "" if
# the message says it already. The first class that matches is used. Features add theirs.
ADVICE: Mapping[type[Exception], str] = {
    StartFailed: f"the next start tries again; {OPERATOR}",
    StopFailed: "tell this host's operator",
    ConfigurationRefused: "change the endpoint's settings",
    OtherMajorVersion: "",
    PostgresUnusable: "only this host's operator can do this",
    NoSuchBranchData: "have this host's operator restore it from a backup, or delete the branch",
    SchemaNotCopied: "change what prevents it in the source branch",
    CopyInterrupted: AGAIN,
    SchemaUnreadable: "",
    RuleRefused: "",
    UpgradeRefused: "",
    UpgradeFailed: AGAIN,
    OutboundNotBlocked: "tell this host's operator, or allow the project's computes to connect",
    NotEnoughSpace: (
        "delete branches that are not needed any more, or ask the operator for more space"
    ),
    DataDamaged: "have this host's operator restore the branch from a backup",
    LockTimeout: "try again once that has ended",
    OutOfPatience: AGAIN,
    AccountUnusable: "only this host's operator can do this",
    TreeUntrusted: "remove the files of the branch that Postgres itself did not create",
    NotApplied: "remove what prevents it, in the database itself if necessary",
    psycopg.Error: AGAIN,
}


def failure_message(error: Exception) -> str:
    """Return why an attempt failed, and what to do. Messages of Postgres and of the host are shown;
    Perch's own internal errors are only named."""
    for kind, advice in _advice():
        if isinstance(error, kind) and str(error):
            return "; ".join(filter(None, (str(error), advice)))
    if isinstance(error, OSError) and error.strerror:
        return f"this host says: {error.strerror}; try again; {OPERATOR}"
    return (
        f"internal error ({type(error).__name__}); try again; {OPERATOR}: the worker's log has "
        "the details under the operation's id"
    )


@functools.cache
def _advice() -> list[tuple[type[Exception], str]]:
    return [pair for feature in features() for pair in feature.advice.items()] + [*ADVICE.items()]


def without_paths(text: str) -> str:
    """Return the text with each path of this host shortened to its last name: where files are
    concerns only the operator. The text may come from an untrusted program in a compute, so it is
    cut to MAX_LENGTH characters, and characters that no row can hold or that a terminal would
    interpret are replaced."""
    shown = UNSHOWABLE.sub("\ufffd", text[:MAX_LENGTH])
    return _host_paths().sub(lambda found: Path(found[0]).name or "a directory", shown)


@functools.cache
def _host_paths() -> re.Pattern[str]:
    places = {str(settings.STATE_DIR), str(settings.SOCKET_DIR), str(settings.PROXY_SOCKET_DIR)}
    places |= {sys.prefix, *HOST_DIRECTORIES}
    places |= set(filter(None, (settings.POSTGRES_BIN, *settings.POSTGRES_BINS.values())))
    # Postgres follows symbolic links to its own files, and mentions the resolved paths.
    places |= {os.path.realpath(place) for place in places}
    either = "|".join(map(re.escape, sorted(places, key=len, reverse=True)))
    return re.compile(rf"(?:{either})(?:/[^\s\"'`,;:()]*)?")

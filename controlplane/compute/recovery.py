"""How far a Postgres is that redoes its log after a crash, seen from outside: it answers nobody."""

import os
import re
from contextlib import suppress
from pathlib import Path

from controlplane.compute.foreign_files import read_regular
from controlplane.compute.progress import children_of, title_of
from controlplane.compute.tree import open_directory

TITLE = re.compile(r"postgres: (\S+: )?startup recovering ([0-9A-F]{24})")
SEGMENT = re.compile("[0-9A-F]{24}")
# Of a segment's first page: 4 bytes of magic and flags, 4 of the timeline, 8 of its place.
PLACE = slice(8, 16)
# Of pg_control, whose first fields every version has: 8 bytes of identity, 8 of versions, then
# the state, in which a shutdown in order leaves it.
STATE, SHUT_DOWN = slice(16, 20), (1).to_bytes(4, "little")


def bytes_to_redo(data_dir: Path, postmaster: int) -> int | None:
    """How many bytes of its log the Postgres that starts on `data_dir`, as this process, still has
    to redo; None where it redoes nothing now, or its log is not where Postgres keeps it."""
    for pid in children_of(postmaster):
        if found := TITLE.match(title_of(pid).decode(errors="replace")):
            with (
                suppress(OSError),
                open_directory(data_dir) as data,
                open_directory("pg_wal", within=data) as log,
            ):
                return _bytes_from(log, found[2])
    return None


def is_to_recover(data_dir: Path) -> bool:
    """Whether a Postgres that is started on `data_dir` redoes its log first: it was not shut down,
    or its data is a copy of one that ran."""
    if os.path.lexists(data_dir / "backup_label"):
        return True
    control = b""
    with (
        suppress(OSError),
        open_directory(data_dir) as data,
        open_directory("global", within=data) as directory,
    ):
        control = read_regular("pg_control", STATE.stop, within=directory)
    return control[STATE] != SHUT_DOWN


def _bytes_from(log: int, current: str) -> int:
    """The size of the log, of which this is the directory's descriptor, from the segment
    `current` on."""
    total = 0
    with os.scandir(log) as entries:
        for entry in entries:
            name = entry.name
            if SEGMENT.fullmatch(name) and name[:8] == current[:8] and name >= current:
                with suppress(FileNotFoundError):
                    size = entry.stat(follow_symlinks=False).st_size
                    # A segment that was made ahead still holds what it was before.
                    if size and _place(name, log) == _place_of(name, size):
                        total += size
    return total


def _place(name: str, log: int) -> int:
    return int.from_bytes(read_regular(name, PLACE.stop, within=log)[PLACE], "little")


def _place_of(name: str, size: int) -> int:
    """Where in the log the segment of that name begins."""
    return (int(name[8:16], 16) << 32) + int(name[16:], 16) * size

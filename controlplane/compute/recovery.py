"""How far a Postgres is that redoes its log after a crash, seen from outside: it answers nobody."""

import os
import re
from contextlib import suppress
from pathlib import Path

from controlplane.compute.foreign_files import read_regular
from controlplane.compute.progress import children_of, title_of

TITLE = re.compile(r"postgres: (\S+: )?startup recovering ([0-9A-F]{24})")
SEGMENT = re.compile("[0-9A-F]{24}")
# Of a segment's first page: 4 bytes of magic and flags, 4 of the timeline, 8 of its place.
PLACE = slice(8, 16)
# Of pg_control, whose first fields every version has: 8 bytes of identity, 8 of versions, then
# the state, in which a shutdown in order leaves it.
STATE, SHUT_DOWN = slice(16, 20), (1).to_bytes(4, "little")


def bytes_to_redo(data_dir: Path, postmaster: int) -> int | None:
    """How many bytes of its log the Postgres that starts on `data_dir`, as this process, still has
    to redo; None where it redoes nothing now."""
    for pid in children_of(postmaster):
        if found := TITLE.match(title_of(pid).decode(errors="replace")):
            return _bytes_from(data_dir / "pg_wal", found[2])
    return None


def is_to_recover(data_dir: Path) -> bool:
    """Whether a Postgres that is started on `data_dir` redoes its log first: it was not shut down,
    or its data is a copy of one that ran."""
    if os.path.lexists(data_dir / "backup_label"):
        return True
    return read_regular(data_dir / "global/pg_control", STATE.stop)[STATE] != SHUT_DOWN


def _bytes_from(directory: Path, current: str) -> int:
    """The size of the log from the segment `current` on."""
    total = 0
    for path in directory.glob(f"{current[:8]}*"):
        if SEGMENT.fullmatch(path.name) and path.name >= current:
            with suppress(FileNotFoundError):
                size = path.lstat().st_size
                # A segment that was made ahead still holds what it was before.
                if size and _place(path) == _place_of(path.name, size):
                    total += size
    return total


def _place(path: Path) -> int:
    return int.from_bytes(read_regular(path, PLACE.stop)[PLACE], "little")


def _place_of(name: str, size: int) -> int:
    """Where in the log the segment of that name begins."""
    return (int(name[8:16], 16) << 32) + int(name[16:], 16) * size

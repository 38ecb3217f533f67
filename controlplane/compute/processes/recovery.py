"""Measures from outside how far a Postgres has redone its log, as it accepts no sessions yet."""

import os
import re
import struct
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from controlplane.compute.host.foreign_files import read_regular
from controlplane.compute.host.progress import children_of, cmdline_of
from controlplane.compute.host.tree import SEGMENT, open_inside

# The whole titles: a client's backend has a role and a database of any names there.
TITLE = re.compile(r"postgres: (\S+: )?startup recovering ([0-9A-F]{24})[\0 ]*")
WAITS = re.compile(r"postgres: (\S+: )?startup waiting for [0-9A-F]{24}[\0 ]*")
# The file that makes a Postgres a standby.
STANDBY = "standby.signal"
# In a segment's first page: 4 bytes of magic and flags, 4 of timeline, then 8 of its address.
PLACE = slice(8, 16)
# pg_control's fields that are at the same place in every version, and the state that an orderly
# shutdown leaves.
CONTROL, SHUT_DOWN = struct.Struct("<Q8xI12xQQI"), 1


class Control(NamedTuple):
    """What pg_control tells of a data directory: of the latest checkpoint, where its record and
    where redo begins in the log, and its timeline."""

    system_id: int
    state: int
    checkpoint: int
    redo: int
    timeline: int

    @property
    def is_shut_down(self) -> bool:
        return self.state == SHUT_DOWN


def bytes_to_redo(data_dir: Path, postmaster: int) -> int | None:
    """How many bytes of its log the starting Postgres with this process id still has to redo. None
    if it is not redoing its log now, or if the log is not where Postgres keeps it."""
    for pid in children_of(postmaster):
        if found := TITLE.fullmatch(cmdline_of(pid).decode(errors="replace")):
            with suppress(OSError), open_inside(data_dir, "pg_wal") as log:
                return _bytes_from(log, found[2])
    return None


def waits_for_log(postmaster: int) -> bool:
    """True if the standby with this process id has replayed the log that it has. It may still wait
    for a moment without an overflow of subtransactions before it accepts sessions."""
    return any(
        WAITS.fullmatch(cmdline_of(pid).decode(errors="replace")) for pid in children_of(postmaster)
    )


def is_to_recover(data_dir: Path) -> bool:
    """True if a Postgres started on `data_dir` would first redo its log: it was not shut down in
    order, its data is a copy of a running one's, or it is to recover to a past moment."""
    signals = ("backup_label", "recovery.signal", STANDBY)
    if any(os.path.lexists(data_dir / name) for name in signals):
        return True
    try:
        return not read_control(data_dir).is_shut_down
    except OSError:
        return True


def read_control(data_dir: Path) -> Control:
    """Read pg_control. Raises OSError, also if it is cut short."""
    with open_inside(data_dir, "global") as directory:
        found = read_regular("pg_control", CONTROL.size, dir_fd=directory)
    if len(found) < CONTROL.size:
        raise OSError("pg_control is missing or damaged")
    return Control(*CONTROL.unpack(found))


def _bytes_from(log: int, current: str) -> int:
    """Bytes of log from the segment `current` on. `log` is the descriptor of the log's
    directory."""
    total = 0
    with os.scandir(log) as entries:
        for entry in entries:
            name = entry.name
            if SEGMENT.fullmatch(name) and name[:8] == current[:8] and name >= current:
                with suppress(FileNotFoundError):
                    size = entry.stat(follow_symlinks=False).st_size
                    # A segment that was renamed for later use still holds its old pages.
                    if size and _place(name, log) == _place_of(name, size):
                        total += size
    return total


def _place(name: str, log: int) -> int:
    return int.from_bytes(read_regular(name, PLACE.stop, dir_fd=log)[PLACE], "little")


def _place_of(name: str, size: int) -> int:
    """The address in the log at which the segment with that name begins."""
    return (int(name[8:16], 16) << 32) + int(name[16:], 16) * size

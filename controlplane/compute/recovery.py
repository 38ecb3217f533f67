"""Measures from outside how far a Postgres has redone its log, as it accepts no sessions yet."""

import os
import re
import struct
from contextlib import suppress
from pathlib import Path

from controlplane.compute.foreign_files import read_regular
from controlplane.compute.progress import children_of, title_of
from controlplane.compute.tree import open_directory

# The whole titles: a client's backend has a role and a database of any names there.
TITLE = re.compile(r"postgres: (\S+: )?startup recovering ([0-9A-F]{24})[\0 ]*")
WAITS = re.compile(r"postgres: (\S+: )?startup waiting for [0-9A-F]{24}[\0 ]*")
# The file that makes a Postgres a standby.
STANDBY = "standby.signal"
SEGMENT = re.compile("[0-9A-F]{24}")
# In a segment's first page: 4 bytes of magic and flags, 4 of timeline, then 8 of its address.
PLACE = slice(8, 16)
# In pg_control, at the same place in every version: 8 bytes of identity, 8 of versions, then the
# state, here as an orderly shutdown leaves it; from byte 32 on, where the latest checkpoint lies in
# the log, 8 bytes of its redo position, and its timeline.
STATE, SHUT_DOWN = slice(16, 20), (1).to_bytes(4, "little")
CHECKPOINT = struct.Struct("<32xQ8xI")


def bytes_to_redo(data_dir: Path, postmaster: int) -> int | None:
    """How many bytes of its log the starting Postgres with this process id still has to redo. None
    if it is not redoing its log now, or if the log is not where Postgres keeps it."""
    for pid in children_of(postmaster):
        if found := TITLE.fullmatch(title_of(pid).decode(errors="replace")):
            with (
                suppress(OSError),
                open_directory(data_dir) as data,
                open_directory("pg_wal", within=data) as log,
            ):
                return _bytes_from(log, found[2])
    return None


def waits_for_log(postmaster: int) -> bool:
    """True if the standby with this process id has replayed the log that it has. It may still wait
    for a moment without an overflow of subtransactions before it accepts sessions."""
    return any(
        WAITS.fullmatch(title_of(pid).decode(errors="replace")) for pid in children_of(postmaster)
    )


def is_to_recover(data_dir: Path) -> bool:
    """True if a Postgres started on `data_dir` would first redo its log: it was not shut down in
    order, its data is a copy of a running one's, or it is to recover to a past moment."""
    signals = ("backup_label", "recovery.signal", STANDBY)
    if any(os.path.lexists(data_dir / name) for name in signals):
        return True
    return _control(data_dir)[STATE] != SHUT_DOWN


def last_checkpoint(data_dir: Path) -> tuple[int, int] | None:
    """Where the latest checkpoint of a stopped Postgres begins in its log, and its timeline. None
    if pg_control cannot be read."""
    control = _control(data_dir)
    return CHECKPOINT.unpack(control) if len(control) == CHECKPOINT.size else None


def _control(data_dir: Path) -> bytes:
    """The beginning of pg_control; b"" if there is none."""
    with (
        suppress(OSError),
        open_directory(data_dir) as data,
        open_directory("global", within=data) as directory,
    ):
        return read_regular("pg_control", CHECKPOINT.size, within=directory)
    return b""


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
    return int.from_bytes(read_regular(name, PLACE.stop, within=log)[PLACE], "little")


def _place_of(name: str, size: int) -> int:
    """The address in the log at which the segment with that name begins."""
    return (int(name[8:16], 16) << 32) + int(name[16:], 16) * size

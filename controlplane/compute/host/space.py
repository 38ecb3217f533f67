"""Disk space of this host: what is left, what is reserved, and what to release when it runs out.

Clients' computes fill the same disk that Perch's own database uses. So there is a reserve of bytes
and one of inodes: below it, nothing new is made; below half of it, the compute that has grown
most is stopped (`operations.disk`). A file without content, the ballast, occupies some more space.
When the disk is full, it is removed, so that the metadata can write until there is space again.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings

BALLAST = "ballast"
BALLAST_BYTES = 128 << 20  # bytes
# On a small disk, the ballast takes at most this part of it.
BALLAST_FRACTION = 1 / 50
# Of the inodes, a twentieth is reserved but at least so many, unless that is more than a quarter. A
# process can take 80,000 a second, and a second passes until its compute has ended.
MIN_RESERVED_FILES = 100_000
# Bytes with which the metadata can still write; with less, the ballast is removed.
CRITICAL_BYTES = 16 << 20

DISK_FULL_ERRNOS = {errno.ENOSPC, errno.EDQUOT}


class NotEnoughSpace(Exception):
    """What was to be written does not fit; the message says how much is left and needed."""


@dataclass(frozen=True)
class Space:
    """The space on one filesystem, in bytes, and its inodes."""

    total: int
    # What an ordinary account can still write.
    free: int
    reserve: int
    # Files that an ordinary account can still make. Both are 0 if the filesystem has no fixed
    # number of inodes.
    free_files: int
    reserved_files: int

    @property
    def left(self) -> int:
        """Free bytes beyond the reserve; never negative, and 0 if inodes are short."""
        return 0 if self.lacks_files else max(0, self.free - self.reserve)

    @property
    def lacks_files(self) -> bool:
        return self.free_files < self.reserved_files

    @property
    def is_short(self) -> bool:
        """True if nothing new may be made."""
        return self.free < self.reserve or self.lacks_files

    @property
    def shortage(self) -> str:
        """Why `is_short` is true, in words."""
        if self.lacks_files:
            return f"{self.free_files} inodes free, less than the reserve of {self.reserved_files}"
        return (
            f"{size_text(self.free)} free of {size_text(self.total)}, less than the reserve of "
            f"{size_text(self.reserve)}"
        )


def space_at(place: Path | int) -> Space:
    """The space on the filesystem of the directory or open descriptor. Raises OSError."""
    found = os.statvfs(place)
    total = found.f_blocks * found.f_frsize
    reserved_files = min(max(found.f_files // 20, MIN_RESERVED_FILES), found.f_files // 4)
    free_files = found.f_favail if found.f_files else 0
    free = found.f_bavail * found.f_frsize
    return Space(total, free, _reserve_of(total), free_files, reserved_files)


def host_space() -> Space:
    """The space where it is scarcest: the branches may have a filesystem of their own."""
    state = Path(settings.STATE_DIR)
    branches = state / "branches"
    found = [space_at(place) for place in (state, branches) if place.exists()]
    return min(found, key=lambda space: (not space.lacks_files, space.free - space.reserve))


def disk_problem() -> str | None:
    """What is wrong with this host's disk, for monitoring; None if nothing is."""
    space = host_space()
    if not space.is_short:
        return None
    return f"the disk is nearly full: {space.shortage}"


def require(needed: int, *, at: Path, what: str) -> None:
    """Raise NotEnoughSpace if `needed` bytes do not fit beside the reserve."""
    space = space_at(at)
    if space.lacks_files:
        raise NotEnoughSpace(f"this host's disk is nearly full: {space.shortage}")
    if needed > space.left:
        raise NotEnoughSpace(
            f"this host has {size_text(space.left)} left beyond its reserve, "
            f"and {what} needs {size_text(needed)}"
        )


def require_reserve(at: int) -> None:
    """Raise NotEnoughSpace if writing has used up the space beyond the reserve."""
    if space_at(at).is_short:
        raise NotEnoughSpace("this host's disk has filled up to its reserve meanwhile")


@contextmanager
def translate_disk_full(what: str) -> Iterator[None]:
    """Turn the system's error for a full disk, which names a path, into NotEnoughSpace."""
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_FULL_ERRNOS:
            raise
        raise NotEnoughSpace(f"this host's disk is full: {what} does not fit") from error


def size_text(size: int) -> str:
    """A number of bytes for people, for example "1.5 GB"."""
    for unit, bytes_of in (("GB", 10**9), ("MB", 10**6)):
        if size >= bytes_of:
            digits = ".3g" if size < 100 * bytes_of else ".0f"
            return f"{size / bytes_of:{digits}} {unit}"
    return f"{size / 1000:.0f} kB"


def make_room() -> None:
    """Remove the ballast if the metadata could not write otherwise; make it if there is space for
    it beside the reserve. Raises OSError."""
    ballast = Path(settings.STATE_DIR) / BALLAST
    space = space_at(ballast.parent)
    if space.free < CRITICAL_BYTES:
        ballast.unlink(missing_ok=True)
        return
    size = min(BALLAST_BYTES, round(space.total * BALLAST_FRACTION))
    if space.left >= 2 * size and not _is_reserved(ballast, size):
        _reserve_space(ballast, size)


def _is_reserved(ballast: Path, size: int) -> bool:
    with suppress(FileNotFoundError):
        return ballast.stat().st_blocks * 512 >= size
    return False


def _reserve_space(ballast: Path, size: int) -> None:
    descriptor = os.open(ballast, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, size)
    finally:
        os.close(descriptor)


def _reserve_of(total: int) -> int:
    """PERCH_DISK_RESERVE, or a twentieth of the disk: between 1 and 20 GiB, but never more than a
    quarter of the disk."""
    if settings.DISK_RESERVE is not None:
        return int(settings.DISK_RESERVE)
    return min(max(total // 20, 1 << 30), 20 << 30, total // 4)

"""Lists directories that seldom change and may have tens of thousands of entries, for rounds that
ask for the names again and again."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

# Nanoseconds. The kernel writes a directory's time of change by a clock that advances some hundred
# times a second, so a second change at the same tick would leave the time as it is.
SETTLED_AFTER_NS = 1_000_000_000


class Listing:
    """The names in a directory, which is read again only if it has changed since. Threads may share
    it. A directory that does not exist has no names."""

    def __init__(self, keeps: Callable[[str], bool] = bool) -> None:
        # Whether a name counts.
        self._keeps = keeps
        self._lock = threading.Lock()
        self._read: tuple[Path, int, int] | None = None
        self._names: frozenset[str] = frozenset()

    def names(self, place: Path) -> frozenset[str]:
        """Raises OSError."""
        with self._lock:
            began = time.time_ns()
            try:
                found = os.stat(place)
            except FileNotFoundError:
                return frozenset()
            # The inode too, in case that another directory was put in its place.
            key = (place, found.st_ino, found.st_mtime_ns)
            if key != self._read:
                try:
                    listed = os.listdir(place)
                except FileNotFoundError:
                    return frozenset()
                self._names = frozenset(filter(self._keeps, listed))
                self._read = key if began - found.st_mtime_ns > SETTLED_AFTER_NS else None
            return self._names

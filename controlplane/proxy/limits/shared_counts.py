"""Counts that several proxy processes behind one port share. They are in shared memory: each
process writes its own counts and reads those of all. So a limit holds for all processes together,
and none has to ask another.
"""

import mmap
from collections.abc import Hashable

# Places in each process. Two things with the same place are counted as one by the other processes.
# With so many places that is rare, and a limit then applies too early by the other thing's count.
_PLACES = 1 << 16
_BYTES_EACH = 4


class SharedCounts:
    """Must be made before its processes are forked, and all of them by one parent. They find the
    same places by Python's hashes, which differ between programs but not between forks."""

    def __init__(self, processes: int) -> None:
        self.processes = processes
        size = processes * (1 + _PLACES) * _BYTES_EACH
        self._memory = memoryview(mmap.mmap(-1, size)).cast("i")

    def of(self, number: int) -> "OwnCounts":
        """Returns the counts of the process with this number, set to zero. The counts of a process
        that died stay until its successor calls this."""
        return OwnCounts(self._memory, number, self.processes)


class OwnCounts:
    def __init__(self, memory: memoryview, number: int, processes: int) -> None:
        # For each process: the number of its sessions, then its places.
        parts = [
            memory[part * (1 + _PLACES) : (part + 1) * (1 + _PLACES)] for part in range(processes)
        ]
        self._own = parts.pop(number)
        self._others = parts
        self._own.cast("B")[:] = bytes(self._own.nbytes)

    def add(self, thing: Hashable, change: int) -> None:
        self._own[_place(thing)] += change

    def of_others(self, thing: Hashable) -> int:
        place = _place(thing)
        return sum(part[place] for part in self._others)

    def note_sessions(self, count: int) -> None:
        """Sets the number of clients that this process has, authenticated or not."""
        self._own[0] = count

    def fewest_sessions(self) -> int:
        """Returns the number of sessions of the other process that has the fewest."""
        return min(part[0] for part in self._others)


def _place(thing: Hashable) -> int:
    return 1 + hash(thing) % _PLACES

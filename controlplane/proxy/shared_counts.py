"""What several proxy processes behind one port count together, in memory that they share: each
writes its own counts, and reads those of all. So a limit holds for all of them, and none is asked.
"""

import mmap
from collections.abc import Hashable

# Of each process. Two things that come to lie at one place are one to the others, with the sum of
# both: of so many places that is rare, and then a limit is met early by the smaller count.
_PLACES = 1 << 16
_BYTES_EACH = 4


class SharedCounts:
    """Must be made before its processes are forked, from one that is never replaced: they find the
    same places by Python's hashes, which differ from one program to the next."""

    def __init__(self, processes: int) -> None:
        self.processes = processes
        size = processes * (1 + _PLACES) * _BYTES_EACH
        self._memory = memoryview(mmap.mmap(-1, size)).cast("i")

    def of(self, number: int) -> "OwnCounts":
        """Those of the process with this number, which has counted nothing yet: what one has left
        that died counts until it is replaced."""
        return OwnCounts(self._memory, number, self.processes)


class OwnCounts:
    def __init__(self, memory: memoryview, number: int, processes: int) -> None:
        # Of each process: how many sessions it has, then its places.
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
        """How many clients this process has, whoever they are."""
        self._own[0] = count

    def fewest_sessions(self) -> int:
        """How many the process has that has the fewest of the others."""
        return min(part[0] for part in self._others)


def _place(thing: Hashable) -> int:
    return 1 + hash(thing) % _PLACES

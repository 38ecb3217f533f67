"""Which blocks of files were sent before, so that the other host can share them too: a child shares
blocks with its parent, and a base of the history with its branch.

The blocks are known by their places on this host's disk (FIEMAP). So no file that was sent may be
changed or removed as long as others are being sent: its blocks could be another's then.
"""

import bisect
from collections.abc import Iterator
from dataclasses import dataclass

from controlplane.compute.host.tree import data_of
from controlplane.history.local.bases import FLAG_SYNC, extents_of

# linux/fiemap.h
_UNWRITTEN, _SHARED = 0x800, 0x2000
# Extents whose place on the disk does not tell what is in them.
_UNKNOWN = 0x2 | 0x4 | 0x8 | 0x80 | 0x100 | 0x200 | 0x400
# Shorter pieces are sent: they cost less than the sharing.
_MIN_SHARED_BYTES = 4096


@dataclass(frozen=True)
class Part:
    """A part of a file: bytes from `offset` on. If `like` is set, it is the file that was sent
    before, and `at` the place in it, from which the part has the same blocks."""

    offset: int
    length: int
    like: str = ""
    at: int = 0


class SentBlocks:
    """The blocks of the files that were sent over one connection."""

    def __init__(self) -> None:
        # Sorted, and without overlaps: where on the disk each begins; its end, file and offset.
        self._begins: list[int] = []
        self._rest: list[tuple[int, str, int]] = []

    def parts(self, file: int, size: int, name: str) -> Iterator[Part]:
        """The parts that the first `size` bytes of a file consist of, without its holes; those that
        were not sent before count as sent from now on, as the file `name`."""
        try:
            extents = list(extents_of(file, request=FLAG_SYNC))
        except OSError:
            # The disk does not tell, as most of those that share no blocks.
            parts = data_of(file, size)
            extents = [(begin, 0, end - begin, _UNKNOWN) for begin, end in parts]
        for logical, physical, length, flags in extents:
            length = min(length, size - logical)
            if length <= 0 or flags & _UNWRITTEN:
                continue
            # Only blocks that several files have can be met again.
            if flags & _UNKNOWN or not flags & _SHARED:
                yield Part(logical, length)
                continue
            yield from self._known_and_new(logical, physical, length, name)

    def _known_and_new(self, logical: int, physical: int, length: int, name: str) -> Iterator[Part]:
        at, end, new = physical, physical + length, []
        while at < end:
            place = bisect.bisect_right(self._begins, at) - 1
            if place >= 0 and self._rest[place][0] > at:
                known_end, like, offset = self._rest[place]
                until = min(end, known_end)
                shift = at - self._begins[place]
                if until - at >= _MIN_SHARED_BYTES:
                    yield Part(logical + at - physical, until - at, like, offset + shift)
                else:
                    yield Part(logical + at - physical, until - at)
            else:
                following = place + 1
                until = end
                if following < len(self._begins):
                    until = min(end, self._begins[following])
                yield Part(logical + at - physical, until - at)
                new.append((at, until, logical + at - physical))
            at = until
        for begin, until, offset in new:
            place = bisect.bisect_left(self._begins, begin)
            self._begins.insert(place, begin)
            self._rest.insert(place, (until, name, offset))

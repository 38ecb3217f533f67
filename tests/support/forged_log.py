"""Write-ahead log that no Postgres wrote: any commits that a test needs."""

import struct
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from controlplane.compute.host.tree import SEGMENT_SIZE
from controlplane.compute.host.wal import (
    CONTINUES,
    HAS_LONG_HEADER,
    LONG_HEADER,
    PAGE,
    RECORD_HEADER,
    SHORT_HEADER,
    segment_name,
)
from controlplane.history.local.chain import Chain
from controlplane.history.local.commits import ENTRY, EPOCH, MICROSECOND, SINCE_2000, Commit

BEGIN = SEGMENT_SIZE  # where the log begins
# Flags of a commit that has more than its time.
HAS_SUBTRANSACTIONS_AND_FILES = 0x02 | 0x04


@dataclass
class ForgedLog:
    """The log of timeline 1 from BEGIN on."""

    content: bytearray = field(default_factory=bytearray)
    previous: int = 0

    @property
    def end(self) -> int:
        return BEGIN + len(self.content)

    def commit(self, at: int, *, subtransactions: int = 0, files: int = 0, padding: int = 0) -> int:
        """Add a commit at the time in microseconds since 1970. Returns where it begins."""
        data = struct.pack("<q", at - SINCE_2000)
        if files:
            data += struct.pack("<II", HAS_SUBTRANSACTIONS_AND_FILES, subtransactions)
            data += bytes(4 * subtransactions) + struct.pack("<I", files)
        data += bytes(padding)
        return self.record(b"\xfe" + struct.pack("<I", len(data)) + data, more=bool(files))

    def record(self, data: bytes, *, more: bool = False, length: int = 0) -> int:
        """Add a record of transactions, which may claim another length than it has."""
        length = length or RECORD_HEADER.size + len(data)
        self._begin_page(0)
        begin = self.end
        header = RECORD_HEADER.pack(length, 700, self.previous, 0x80 if more else 0, 1, 0)
        rest = memoryview(header + data)
        while rest:
            self._begin_page(len(rest))
            room = PAGE - len(self.content) % PAGE
            self.content += rest[:room]
            rest = rest[room:]
        self.content += bytes(-len(self.content) % 8)
        self.previous = begin
        return begin

    def _begin_page(self, rest: int) -> None:
        if self.end % PAGE:
            return
        is_first = self.end % SEGMENT_SIZE == 0
        flags = (CONTINUES if rest else 0) | (HAS_LONG_HEADER if is_first else 0)
        header = struct.pack("<HHIQI4xQ", 0xD118, flags, 1, self.end, rest, 7)
        self.content += header.ljust(LONG_HEADER)[: LONG_HEADER if is_first else SHORT_HEADER]

    def chain(self, place: Path) -> Chain:
        """A chain with the whole log, which is not indexed."""
        log = place / "1" / "log"
        log.mkdir(parents=True)
        for start in range(0, len(self.content), SEGMENT_SIZE):
            segment = self.content[start : start + SEGMENT_SIZE]
            (log / segment_name(1, BEGIN + start)).write_bytes(segment)
        return Chain(place / "1", 7, 1, self.end, datetime.now(UTC), _bases=[])


def indexed(chain: Chain, lsn: int = 0) -> list[Commit]:
    """The commits in the chain's index that begin at `lsn` or later, in the order of the log."""
    return [
        Commit(EPOCH + at * MICROSECOND, begin, removed)
        for name in chain.segments()
        for at, begin, removed in ENTRY.iter_unpack((chain.log / f"{name}.commits").read_bytes())
        if begin >= lsn
    ]

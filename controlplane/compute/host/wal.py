"""The write-ahead log as files: positions (LSNs), the names of segments, and what is in them.

The formats are those of PostgreSQL's xlog_internal.h and xlogrecord.h. They are the same in
versions 15 to 18. From 19 on, the second part of a position is written with eight digits.
"""

import os
import re
import struct
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from controlplane import durable
from controlplane.compute.host.foreign_files import read_regular
from controlplane.compute.host.tree import REGULAR, SEGMENT_SIZE, open_file, start_of

# The file with a segment's checksum has the segment's name and this suffix.
SUM = ".sum"
PAGE = 8192  # bytes
READ_SIZE = 1 << 20  # bytes that are read at once; a segment has a multiple
# Bytes of a page's header: a segment's first page has the long one.
SHORT_HEADER, LONG_HEADER = 24, 40
# Flags of a page: it begins with the rest of a record; it has the long header.
CONTINUES, HAS_LONG_HEADER = 0x0001, 0x0002
# magic, flags, timeline, address, padding; then only in the long header: system identifier.
PAGE_HEADER = struct.Struct("<HHIQ8xQ")
# Of a page's header: its flags, and how many bytes the rest of a record has.
CONTINUATION = struct.Struct("<2xH12xI")
# Total length, transaction, previous record's position, flags, resource manager, checksum.
RECORD_HEADER = struct.Struct("<IIQBB2xI")
# Bytes of the length, and where the resource manager is.
LENGTH, MANAGER = 4, 17
MAX_RECORD_BYTES = 1 << 30  # bytes; Postgres writes none of more
BEGINNING = 1 << 20  # bytes of a record
# Records begin at multiples of this many bytes.
ALIGNMENT = 8
SEGMENTS_PER_FILE_ID = (1 << 32) // SEGMENT_SIZE
SEGMENT_NAME = 24  # characters
MAX_TIMELINE_BYTES = 64 << 10  # bytes
# A line of a timeline's file: an earlier timeline, and where it was left.
LEFT = re.compile(rb"^(\d{1,10})\t([0-9A-F]{1,8}/[0-9A-F]{1,8})\t", re.MULTILINE)
LSN = re.compile("([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")


class LogUnreadable(Exception):
    """The log cannot be read; the message says why."""


def parse_lsn(text: str) -> int:
    """The position that Postgres writes as `text`, for example "0/1A2B3C4D". Raises ValueError."""
    found = LSN.fullmatch(text)
    if found is None:
        raise ValueError(f'"{text}" is not a position in the log, such as "0/1A2B3C4D"')
    return (int(found[1], 16) << 32) + int(found[2], 16)


def lsn_text(lsn: int) -> str:
    """The position as Postgres writes it."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def segment_name(timeline: int, lsn: int) -> str:
    """The name of the segment that holds the byte at `lsn`."""
    number = lsn // SEGMENT_SIZE
    file_id, part = divmod(number, SEGMENTS_PER_FILE_ID)
    return f"{timeline:08X}{file_id:08X}{part:08X}"


def segment_start(lsn: int) -> int:
    """Where the segment begins that holds the byte at `lsn`."""
    return lsn - lsn % SEGMENT_SIZE


@dataclass(frozen=True)
class SegmentHeader:
    """The header of a segment's first page."""

    timeline: int
    address: int
    system_id: int


def segment_header(directory: int, name: str) -> SegmentHeader | None:
    """The header of the segment `name` in the open directory; None if it has none, or if there is
    no such file."""
    first = read_regular(name, PAGE_HEADER.size, dir_fd=directory)
    if len(first) < PAGE_HEADER.size:
        return None
    _, flags, timeline, address, system_id = PAGE_HEADER.unpack(first)
    if not flags & HAS_LONG_HEADER:
        return None
    return SegmentHeader(timeline, address, system_id)


def is_segment_of(directory: int, name: str, timeline: int, system_id: int) -> bool:
    """Whether the file `name` in the open directory is a segment of this log, or a partial one of
    `pg_receivewal`."""
    header = segment_header(directory, name)
    if header is None or header.address != start_of(name[:SEGMENT_NAME]):
        return False
    return is_header_of(directory, header, timeline, system_id)


def is_header_of(directory: int, header: SegmentHeader, timeline: int, system_id: int) -> bool:
    """Whether a segment in the open directory that has this header belongs to the log. The segment
    in which a timeline began is a copy of the one before: its header still names that one's
    timeline, as the timeline's file in the directory tells."""
    if header.system_id != system_id:
        return False
    if header.timeline == timeline:
        return True
    content = read_regular(timeline_file(timeline), MAX_TIMELINE_BYTES, dir_fd=directory)
    return any(
        int(left[1]) == header.timeline
        and segment_start(parse_lsn(left[2].decode())) == header.address
        for left in LEFT.finditer(content)
    )


def timeline_file(timeline: int) -> str:
    """The name of the file that tells where the timeline began, which the first has not."""
    return f"{timeline:08X}.history"


@dataclass(frozen=True)
class Record:
    """One record of the log, by which two logs can be told apart: branches that were copied from
    the same data have equal system identifiers, timelines and positions."""

    lsn: int
    previous: int
    checksum: int
    # Where the next record begins, or the header of the page that it begins in.
    end: int


def record_at(directory: int, timeline: int, lsn: int) -> Record | None:
    """The record that begins at `lsn`; None if the segments in the open directory hold none."""
    header = b""
    position = lsn
    while len(header) < RECORD_HEADER.size:
        position = _past_page_header(position)
        part = min(RECORD_HEADER.size - len(header), PAGE - position % PAGE)
        found = bytes_at(directory, timeline, position, part)
        if len(found) < part:
            return None
        header += found
        position += part
    length, _, previous, _, _, checksum = RECORD_HEADER.unpack(header)
    if length < RECORD_HEADER.size:
        return None
    return Record(lsn, previous, checksum, _end_of(lsn, length))


def is_inside_record(directory: int, timeline: int, start: int, end: int) -> bool:
    """Whether a record that began before the page at `start` ends after `end`."""
    header = bytes_at(directory, timeline, start, SHORT_HEADER)
    if len(header) < SHORT_HEADER or end <= start:
        return False
    flags, rest = CONTINUATION.unpack_from(header)
    return bool(flags & CONTINUES) and (rest > end - start or _end_of(start, rest) > end)


def records_of(
    directory: int, timeline: int, manager: int, *, start: int, end: int
) -> Iterator[tuple[int, bytes]]:
    """The position of each record of the resource manager that lies between `start`, where a
    page begins, and `end`; and its bytes, of a longer record at least the first BEGINNING.

    Where a record begins follows from the one before it. So nothing that a client wrote into a
    record is taken for a record. Raises LogUnreadable, OSError.
    """
    # The last complete record, and one of which so many bytes are in the following pages; 0 if
    # there is none.
    previous = begun = missing = 0
    content = bytearray()
    for address, page in _pages(directory, timeline, start, end):
        flags, rest = CONTINUATION.unpack_from(page)
        at = LONG_HEADER if flags & HAS_LONG_HEADER else SHORT_HEADER
        if flags & CONTINUES:
            if begun and rest != missing:
                raise LogUnreadable(f"the record at {lsn_text(begun)} is damaged")
            if begun and len(content) < BEGINNING:
                content += page[at : at + rest]
            missing -= len(page) - at
            at += rest + -rest % ALIGNMENT
            if at > len(page):
                continue
            if begun:
                _check_follows(previous, content)
                previous = begun
                if content[MANAGER] == manager:
                    yield begun, bytes(content)
        # A page that does not continue a record which was begun: a crash has cut the record off.
        begun = 0
        while at + RECORD_HEADER.size <= len(page):
            length, _, back, _, owner, _ = RECORD_HEADER.unpack_from(page, at)
            if at + length > len(page) or length < RECORD_HEADER.size:
                break
            if back != previous:
                _check_follows(previous, page, at)
            previous = address + at
            if owner == manager:
                yield previous, page[at : at + length]
            at = (at + length + ALIGNMENT - 1) & -ALIGNMENT
        # Without a length the segment was left here, for the next one.
        if any(page[at : at + LENGTH]):
            begun, content = address + at, bytearray(page[at:])
            missing = int.from_bytes(content[:LENGTH], "little") - len(content)
            if missing > MAX_RECORD_BYTES:
                raise LogUnreadable(f"the record at {lsn_text(begun)} is damaged")


def _check_follows(previous: int, content: bytes | bytearray, at: int = 0) -> None:
    if previous and RECORD_HEADER.unpack_from(content, at)[2] != previous:
        raise LogUnreadable(f"the record after {lsn_text(previous)} is missing or damaged")


def _pages(directory: int, timeline: int, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """The pages between two positions, each with its position."""
    for chunk in range(start - start % READ_SIZE, end, READ_SIZE):
        begin = max(chunk, start)
        size = min(chunk + READ_SIZE, end) - begin
        pages = bytes_at(directory, timeline, begin, size)
        if len(pages) < size:
            raise LogUnreadable(f"the segment {segment_name(timeline, begin)} is missing")
        for at in range(0, size, PAGE):
            page = pages[at : at + PAGE]
            if any(page[:SHORT_HEADER]) and len(page) > SHORT_HEADER:
                yield begin + at, page


def _end_of(lsn: int, length: int) -> int:
    """Where a record of `length` bytes ends that begins at `lsn`."""
    position = lsn
    while length > 0:
        position = _past_page_header(position)
        part = min(length, PAGE - position % PAGE)
        position += part
        length -= part
    return position + -position % ALIGNMENT


def _past_page_header(position: int) -> int:
    if position % PAGE:
        return position
    return position + (SHORT_HEADER if position % SEGMENT_SIZE else LONG_HEADER)


def bytes_at(directory: int, timeline: int, position: int, count: int) -> bytes:
    """Up to `count` bytes at the position, from the segment in the open directory that holds it."""
    name = segment_name(timeline, position)
    with suppress(FileNotFoundError), open_file(name, REGULAR, dir_fd=directory) as file:
        return os.pread(file, count, position % SEGMENT_SIZE)
    return b""


def write_sum(segment: Path) -> None:
    """Note the checksum of a segment that was copied. The log of another branch that was created
    from the same template has segments of the same names, identifiers and positions."""
    write_sidecar(segment, SUM, _sum_of(segment).encode())


def write_sidecar(segment: Path, suffix: str, content: bytes | bytearray) -> None:
    """Write what is known of the segment to the file with the segment's name and the suffix, which
    is replaced as a whole, also if the power fails."""
    draft = segment.with_name(f"{segment.name}{suffix}.new")
    draft.write_bytes(content)
    durable.sync(draft)
    draft.replace(segment.with_name(segment.name + suffix))


def matches_checksum(segment: Path) -> bool:
    """Whether the segment has its noted checksum."""
    try:
        return segment.with_name(segment.name + SUM).read_text() == _sum_of(segment)
    except FileNotFoundError:
        return False


def _sum_of(segment: Path) -> str:
    with segment.open("rb") as file:
        return f"{zlib.crc32(file.read()):08x}"

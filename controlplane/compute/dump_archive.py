"""Removes the functions' bodies from an archive of pg_dump's custom format that holds no rows.

While Postgres restores objects that depend on immutable functions (generated columns, partition
keys, index expressions), it calls these functions. `without_bodies` gives each function a body that
does nothing. `functions_alone` holds the statements that create the true bodies once everything
else is restored.

The format is that of PostgreSQL's pg_backup_archiver.c and pg_backup_custom.c, versions 1.14
(PostgreSQL 12) to 1.16 (PostgreSQL 18): a header, then a table of contents with an entry for each
object. An integer is a sign byte and then its bytes, lowest first. A string is its length in bytes
(an integer, -1 for no string) and then its bytes.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

VERSIONS = ((1, 14), (1, 15), (1, 16))
CUSTOM_FORMAT = 1
# The number of integers that say when the archive was made: second, minute, hour, day, month, year,
# and whether daylight saving time was in force.
MOMENT = 7
FUNCTIONS = (b"FUNCTION", b"PROCEDURE")
# Settings of the session that restores; every archive needs them.
SETTINGS = (b"ENCODING", b"STDSTRINGS", b"SEARCHPATH")


class ArchiveUnreadable(Exception):
    """The archive has an unknown version or unexpected content, or it is truncated."""


@dataclass(frozen=True)
class Entry:
    """An object in the table of contents: its statement, and the bytes before and after it."""

    oid: int
    kind: bytes
    before: bytes
    definition: bytes
    after: bytes

    @property
    def is_function(self) -> bool:
        return self.kind in FUNCTIONS


class Archive:
    """An archive whose table of contents has been read. Raises ArchiveUnreadable."""

    def __init__(self, content: bytes) -> None:
        self._reader = reader = _Reader(content)
        reader.skip_header()
        self._header = content[: reader.at]
        self._entries = [reader.entry() for _ in range(reader.integer())]
        self._rest = content[reader.at :]

    def without_bodies(self, stand_ins: Mapping[int, bytes]) -> bytes:
        """The archive with each function's definition replaced by the statement that `stand_ins`
        has for its oid. Raises KeyError if `stand_ins` lacks a function."""
        return self._written(
            (entry, stand_ins[entry.oid] if entry.is_function else entry.definition)
            for entry in self._entries
        )

    def functions_alone(self) -> bytes:
        """An archive of the functions alone, each by CREATE OR REPLACE. Raises
        ArchiveUnreadable."""
        return self._written(
            (entry, _replacing(entry.definition) if entry.is_function else entry.definition)
            for entry in self._entries
            if entry.is_function or entry.kind in SETTINGS
        )

    def _written(self, entries: Iterable[tuple[Entry, bytes]]) -> bytes:
        parts = []
        for entry, definition in entries:
            length = self._reader.encoded(len(definition))
            parts.append(entry.before + length + definition + entry.after)
        return b"".join((self._header, self._reader.encoded(len(parts)), *parts, self._rest))


def _replacing(definition: bytes) -> bytes:
    verb, blank, rest = definition.partition(b" ")
    if verb != b"CREATE" or not rest.startswith(FUNCTIONS):
        raise ArchiveUnreadable(f"a function's definition begins with {definition[:20]!r}")
    return b"CREATE OR REPLACE" + blank + rest


class _Reader:
    """Reads the archive's content; `at` is the offset of the next byte."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self.at = 0
        self._version = (0, 0)
        self._integer_size = self._offset_size = 0

    def skip_header(self) -> None:
        """Skip everything before the number of entries."""
        if self._take(5) != b"PGDMP":
            raise ArchiveUnreadable("it is not an archive of pg_dump")
        major, minor, _revision, self._integer_size, self._offset_size, form = self._take(6)
        self._version = (major, minor)
        if self._version not in VERSIONS or form != CUSTOM_FORMAT:
            raise ArchiveUnreadable(f"it is of version {major}.{minor}, format {form}")
        if self._version >= (1, 15):
            self._take(1)  # compression method
        else:
            self.integer()
        for _ in range(MOMENT):
            self.integer()
        for _ in range(3):  # database, server version, pg_dump version
            self._string()

    def entry(self) -> Entry:
        begin = self.at
        self.integer()  # its id in the archive
        if self.integer():
            raise ArchiveUnreadable("it contains rows")
        self._string()  # the oid of the catalog table that has the object
        oid, _tag, kind = (self._string() for _ in range(3))
        self.integer()  # section
        before = self._content[begin : self.at]
        definition = self._string()
        begin = self.at
        for _ in range(5):  # drop and copy statements; schema, tablespace, access method
            self._string()
        if self._version >= (1, 16):
            self.integer()  # the kind of relation
        for _ in range(2):  # owner, whether its rows have oids
            self._string()
        while self._string():  # the ids of the entries that it depends on
            pass
        self._take(1 + self._offset_size)  # the offset of its rows
        return Entry(int(oid), kind, before, definition, self._content[begin : self.at])

    def integer(self) -> int:
        sign = self._take(1)[0]
        value = int.from_bytes(self._take(self._integer_size), "little")
        return -value if sign else value

    def encoded(self, number: int) -> bytes:
        return b"\0" + number.to_bytes(self._integer_size, "little")

    def _string(self) -> bytes:
        """The next string; b"" also for no string."""
        return self._take(max(0, self.integer()))

    def _take(self, count: int) -> bytes:
        taken = self._content[self.at : self.at + count]
        if len(taken) < count:
            raise ArchiveUnreadable("it is truncated")
        self.at += count
        return taken

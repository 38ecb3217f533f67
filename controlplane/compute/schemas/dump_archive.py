"""Reads the table of contents of an archive of pg_dump's custom format that holds no rows.

The format is that of PostgreSQL's pg_backup_archiver.c and pg_backup_custom.c, versions 1.14
(PostgreSQL 12) to 1.16 (PostgreSQL 18): a header, then a table of contents with an entry for each
object. An integer is a sign byte and then its bytes, lowest first. A string is its length in bytes
(an integer, -1 for no string) and then its bytes.
"""

from dataclasses import dataclass

VERSIONS = ((1, 14), (1, 15), (1, 16))
CUSTOM_FORMAT = 1
# The number of integers that say when the archive was made: second, minute, hour, day, month, year,
# and whether daylight saving time was in force.
TIME_FIELDS = 7


class ArchiveUnreadable(Exception):
    """The archive has an unknown version or unexpected content, or it is truncated."""


@dataclass(frozen=True)
class Entry:
    """An object, with the statements that create and drop it, in the database's own encoding. The
    names are not quoted; those that it does not have are empty."""

    kind: bytes
    name: bytes
    schema: bytes
    owner: bytes
    definition: bytes
    drop: bytes


def entries_of(archive: bytes) -> list[Entry]:
    """The objects, in an order in which they can be created. Raises ArchiveUnreadable."""
    reader = _Reader(archive)
    reader.skip_header()
    return [reader.entry() for _ in range(reader.integer())]


class _Reader:
    """Reads the archive's content; `at` is the offset of the next byte."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0
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
        for _ in range(TIME_FIELDS):
            self.integer()
        for _ in range(3):  # database, server version, pg_dump version
            self._string()

    def entry(self) -> Entry:
        self.integer()  # its id in the archive
        if self.integer():
            raise ArchiveUnreadable("it contains rows")
        for _ in range(2):  # the oid of the catalog table that has the object, the object's oid
            self._string()
        name, kind = self._string(), self._string()
        self.integer()  # section
        definition, drop, _copy, schema = (self._string() for _ in range(4))
        for _ in range(2):  # tablespace, access method
            self._string()
        if self._version >= (1, 16):
            self.integer()  # the kind of relation
        owner = self._string()
        self._string()  # whether its rows have oids
        while self._string():  # the ids of the entries that it depends on
            pass
        self._take(1 + self._offset_size)  # the offset of its rows
        return Entry(kind, name, schema, owner, definition, drop)

    def integer(self) -> int:
        sign = self._take(1)[0]
        value = int.from_bytes(self._take(self._integer_size), "little")
        return -value if sign else value

    def _string(self) -> bytes:
        """The next string; b"" also for no string."""
        return self._take(max(0, self.integer()))

    def _take(self, count: int) -> bytes:
        taken = self._content[self._at : self._at + count]
        if len(taken) < count:
            raise ArchiveUnreadable("it is truncated")
        self._at += count
        return taken

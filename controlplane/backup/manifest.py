"""The manifest of a backup, and the checksums that prove it complete.

Perch reads `manifest.json`. Anyone can check `SHA256SUMS` with `sha256sum --check`.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from controlplane.compute.host.tree import open_regular

FORMAT = 1
MANIFEST, SUMS = "manifest.json", "SHA256SUMS"
METADATA_DUMP = "metadata.dump"
MAX_CONCURRENT_HASHES = 2
# A line of the sums: of a file below the directory.
_SUM_LINE = re.compile(r"([0-9a-f]{64})  (?!/)(?!(?:.*/)?[.][.](?:/|$))(.+)")

# The id is used as a directory's name, and the manifest may be untrusted.
BranchId = Annotated[str, Field(pattern=r"^br-[a-z0-9-]+$")]


class NoBackup(Exception):
    """The named directory is not a complete backup; the message says why."""


@dataclass(frozen=True)
class BranchCopy:
    """A branch's data in the backup, and the roles and databases that it holds."""

    taken_at: datetime  # when the copy began: it contains everything committed before
    was_running: bool
    size: int  # bytes
    # The name that each database has in the data, by the id of its row.
    databases: dict[str, str]
    # Roles that may be in the data, including those that are about to be dropped.
    roles: list[str]


@dataclass(frozen=True)
class Manifest:
    perch: str
    postgres: str  # the major versions of the branches' data, as "18" or "15,18"
    region: str
    began_at: datetime
    # The moment of the rows: what the API returned then is what it returns after the restore.
    rows_at: datetime
    # The migrations that the database has applied, as "controlplane.0001_initial".
    migrations: list[str]
    branches: dict[BranchId, BranchCopy]
    # Branches that the rows call ready but that could not be copied, with the reason.
    not_copied: dict[str, str] = field(default_factory=dict)
    # The name of the host; "" in a backup by a release in which a region was one host.
    host: str = ""

    @property
    def majors(self) -> list[int]:
        return [int(major) for major in self.postgres.split(",") if major]

    @property
    def host_name(self) -> str:
        return self.host or self.region

    @property
    def size(self) -> int:
        """The bytes of all branches."""
        return sum(copy.size for copy in self.branches.values())


def branch_copy(backup: Path, branch_id: str) -> Path:
    """Return the directory in which a backup holds the branch's data."""
    return backup / "branches" / branch_id


def write_manifest(backup: Path, manifest: Manifest) -> None:
    text = json.dumps({"format": FORMAT, **asdict(manifest)}, indent=1, default=datetime.isoformat)
    (backup / MANIFEST).write_text(text + "\n")


def read_manifest(backup: Path) -> Manifest:
    """Read the backup's manifest. Raises NoBackup."""
    path = backup / MANIFEST
    try:
        text = read_file(path).decode()
    except FileNotFoundError:
        raise NoBackup(
            f"{backup} is not a backup, or an incomplete one: it has no {MANIFEST}"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise NoBackup(f"{path} cannot be read: {_error_text(error)}") from error
    try:
        stored = _STORED.validate_json(text)
        if stored.format != FORMAT:
            raise NoBackup(f"{backup} was made by another version of Perch, {stored.perch}")
        return _MANIFEST.validate_json(text)
    except ValidationError as error:
        raise NoBackup(
            f"{path} has changed since `backup` wrote it ({_complaint(error)}): take another "
            "copy of the "
            "backup"
        ) from None


def read_file(path: Path) -> bytes:
    """The content of a file of a backup. Raises FileNotFoundError for a link or a pipe in its
    place, OSError."""
    with open_regular(path, dir_fd=None) as (opened, _), open(opened, "rb", closefd=False) as file:
        return file.read()


def write_sums(backup: Path) -> None:
    """Write the SHA-256 of every file, in the format of `sha256sum`. Raises OSError."""
    names = sorted(_files_of(backup))
    sums = _each(lambda name: _digest_of(backup / name), names)
    lines = [f"{digest}  {name}\n" for digest, name in zip(sums, names, strict=True)]
    (backup / SUMS).write_text("".join(lines))


def verify(backup: Path) -> list[str]:
    """Read the whole backup; return a list of what is wrong with it. Raises NoBackup."""
    read_manifest(backup)
    try:
        lines = read_file(backup / SUMS).decode().split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise NoBackup(f"{backup / SUMS} cannot be read: {_error_text(error)}") from error
    listed = {}
    for line in filter(None, lines):
        parts = _SUM_LINE.fullmatch(line)
        if parts is None:
            raise NoBackup(
                f"{backup / SUMS} has a line that `backup` does not write: {line!a:.200}"
            )
        listed[parts[2]] = parts[1]
    found = set(_files_of(backup))
    problems = [f"{name} is missing" for name in sorted(listed.keys() - found)]
    problems += [f"{name} is not part of the backup" for name in sorted(found - listed.keys())]
    both = sorted(listed.keys() & found)
    sums = _each(lambda name: _sum_of(backup / name), both)
    changed = [name for name, digest in zip(both, sums, strict=True) if digest != listed[name]]
    return problems + [f"{name} has changed since it was written" for name in changed]


def _each(read: Callable[[str], str], names: Sequence[str]) -> list[str]:
    """Read the files, several at once. After an error or Ctrl-C no further file is begun."""
    threads = ThreadPoolExecutor(MAX_CONCURRENT_HASHES)
    try:
        return list(threads.map(read, names))
    finally:
        threads.shutdown(cancel_futures=True)


def size_of(directory: Path) -> int:
    """Return the bytes of all files below the directory."""
    return sum((directory / name).lstat().st_size for name in _files_of(directory))


@dataclass(frozen=True)
class _Stored:
    """The fields that the manifest of every version has."""

    format: int
    perch: str


_STORED, _MANIFEST = TypeAdapter(_Stored), TypeAdapter(Manifest)


def _complaint(error: ValidationError) -> str:
    """Return where the first invalid value is, and what is wrong with it."""
    first = error.errors(include_url=False)[0]
    if first["type"] == "json_invalid":
        return "it is not JSON"
    place = ".".join(str(part) for part in first["loc"] if part != "[key]")
    words = "is missing" if first["type"] == "missing" else "has the wrong type"
    return f"{place or 'all of it'} {words}"


def _error_text(error: OSError | UnicodeDecodeError) -> str:
    return "it is not text" if isinstance(error, UnicodeDecodeError) else str(error.strerror)


def _files_of(directory: Path) -> Iterator[str]:
    """All that is no directory: links to directories too, which os.walk does not follow."""
    for place, directories, names in os.walk(directory):
        for name in (*names, *directories):
            path = os.path.join(place, name)
            found = os.path.relpath(path, directory)
            if found != SUMS and (name in names or os.path.islink(path)):
                yield found


def _digest_of(path: Path) -> str:
    with open_regular(path, dir_fd=None) as (opened, _), open(opened, "rb", closefd=False) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sum_of(path: Path) -> str:
    try:
        return _digest_of(path)
    except OSError as error:
        return f"unreadable: {error}"

"""The lines of a branch's logs: its compute's and its pooler's.

A compute's log has what its clients have written: their statements, values of their rows, their own
messages (`RAISE`). That concerns only the endpoint's owner. For everybody else a line is
**redacted**: of its message remains what the server itself says about its operation, and only if
that is known to be so.
"""

import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from controlplane.compute.host.filesystem import branch_dir
from controlplane.compute.host.foreign_files import read_regular

# The names of the logs, which are those of their files too.
SOURCES = ("postgres", "pgbouncer")
# Bytes of each log that are read for its last lines.
MAX_READ_BYTES = 1 << 19
MAX_MESSAGE_LENGTH = 4000

_LINE = re.compile(
    r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}) (?:UTC|GMT) \[(\d+)\] ([A-Z][A-Z0-9]+):?\s+(.*)",
    re.DOTALL,
)
# How messages begin that Postgres and PgBouncer log about their own operation.
_OPERATION = re.compile(
    "|".join(
        (
            "all server processes terminated",
            "archive recovery complete",
            "background w",
            "checkpoint ",
            "consistent recovery state",
            "could not (accept|fork|open|read|receive|send|write|fsync|create|remove|map|resize)",
            "database system",
            "invalid (magic number|record length|resource manager)",
            "kernel ",
            "listening on",
            "logical replication",
            "out of (memory|shared memory|file descriptors)",
            "process up",
            "received (fast|smart|immediate|SIG)",
            "redo ",
            "reloading",
            "remaining connection slots",
            "restartpoint ",
            "server (conn|process|login|closed)",
            "shutting down",
            "sorry, too many clients",
            "starting ",
            "stats:",
            "stale",
            "terminating (any other active|background|connection|walsender)",
            "the database system",
            "unexpected EOF",
            "got SIG",
        )
    )
)
# What a statement that holds a password has in it; and how messages begin that have a statement.
SECRETIVE = (
    r"password|user\W[^;]{0,99}mapping|dblink|connection|crypt\s*\(|://[^\s@/]{0,99}:[^\s@/]{0,99}@"
)
_SECRETIVE = re.compile(SECRETIVE, re.IGNORECASE)
_OF_STATEMENT = re.compile(r"(statement|execute|duration|fastpath|AUDIT)\b")
_QUOTED = re.compile(r"\"[^\"]*\"|'[^']*'")
# Levels of lines that add what a client has written to the line before.
_ADDED = frozenset({"CONTEXT", "DETAIL", "HINT", "QUERY", "STATEMENT"})


@dataclass(frozen=True)
class LogLine:
    """A line with the lines that continue it. `at` is None, and `level` is "", if it does not have
    the form that Perch configures, as when its beginning was lost."""

    source: str
    message: str
    at: datetime | None = None
    level: str = ""
    pid: int | None = None

    def as_json(self) -> dict[str, Any]:
        at = self.at and self.at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return {**asdict(self), "at": at}

    def redacted(self) -> "LogLine":
        """The line for others than the endpoint's owner."""
        first = self.message.partition("\n")[0]
        if not self.level or self.level in _ADDED or not _OPERATION.match(first):
            return replace(self, message="[redacted]")
        return replace(self, message=_QUOTED.sub('"…"', first))


def parse(line: str, source: str) -> LogLine:
    found = _LINE.fullmatch(line.rstrip("\n"))
    if found is not None:
        moment, pid, level, message = found.groups()
        with suppress(ValueError):  # no date: not Postgres has written it
            at = datetime.fromisoformat(moment).replace(tzinfo=UTC)
            return LogLine(source, message[:MAX_MESSAGE_LENGTH], at, level, int(pid))
    return LogLine(source, line.rstrip("\n")[:MAX_MESSAGE_LENGTH])


def parse_lines(text: str, source: str) -> Iterator[LogLine]:
    """The lines of a log. Postgres begins lines that continue another one with a tab."""
    held = ""
    for line in text.split("\n"):
        if line.startswith("\t") and held:
            held += f"\n{line}"
            continue
        if held:
            yield parse(held, source)
        held = line
    if held:
        yield parse(held, source)


def last_lines(branch_id: str, *, sources: Collection[str], most: int) -> list[LogLine]:
    """The last lines of the branch's logs, at most so many, the oldest first."""
    found: list[LogLine] = []
    for source in sources:
        found += parse_lines(_end_of(log_file(branch_id, source)), source)
    return _sorted_by_time(found)[-most:] if most else []


def without_passwords(lines: Iterable[LogLine]) -> list[LogLine]:
    """The lines, the oldest first, without the statements that may hold a password, and without
    what errors quote of these."""
    shown: list[LogLine] = []
    report = 0  # the place of the line that the following ones add to
    for line in lines:
        if line.level not in _ADDED:
            report = len(shown)
        if _may_hold_password(line):
            for place in range(report, len(shown)):
                message = re.sub('".*"', '"…"', shown[place].message, flags=re.DOTALL)
                shown[place] = replace(shown[place], message=message)
            line = replace(line, message="[not shown, as it may hold a password]")
        shown.append(line)
    return shown


def _may_hold_password(line: LogLine) -> bool:
    if line.message.startswith("\t"):  # the rest of a line whose beginning was lost
        return True
    is_added = not line.level or line.level in _ADDED or _OF_STATEMENT.match(line.message)
    return bool(is_added and _SECRETIVE.search(line.message))


def log_file(branch_id: str, source: str) -> Path:
    return branch_dir(branch_id) / f"{source}.log"


class Follower:
    """Reads what is appended to a branch's log from now on, also after it was rotated."""

    def __init__(self, branch_id: str, source: str) -> None:
        self._path = log_file(branch_id, source)
        self._source = source
        self._file, self._rest = self._open(), ""
        if self._file is not None:
            self._file.seek(0, 2)

    def new_lines(self) -> Sequence[LogLine]:
        """The lines that were completed since the last call."""
        text = self._rest + (self._file.read() if self._file is not None else "")
        if self._was_replaced():
            # What was written before the rename has been read.
            self.close()
            self._file = self._open()
            text += self._file.read() if self._file is not None else ""
        whole, newline, self._rest = text.rpartition("\n")
        return list(parse_lines(whole + newline, self._source))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _open(self) -> Any:
        try:
            return self._path.open(errors="replace", newline="\n")
        except FileNotFoundError:
            return None

    def _was_replaced(self) -> bool:
        if self._file is None:
            return True
        try:
            return not os.path.samestat(self._path.stat(), os.fstat(self._file.fileno()))
        except FileNotFoundError:
            return False


def _end_of(path: Path) -> str:
    """The last MAX_READ_BYTES of the log, from the beginning of a line."""
    text = read_regular(path, MAX_READ_BYTES, from_end=True)
    if len(text) < MAX_READ_BYTES:
        before = read_regular(path.with_suffix(".log.1"), MAX_READ_BYTES - len(text), from_end=True)
        text = before + text
    if len(text) == MAX_READ_BYTES:
        text = text.partition(b"\n")[2]
    return text.decode(errors="replace")


def _sorted_by_time(lines: Sequence[LogLine]) -> list[LogLine]:
    """By time; a line without one stays behind the line before it."""
    at, keyed = datetime.min.replace(tzinfo=UTC), []
    for position, line in enumerate(lines):
        at = line.at or at
        keyed.append((at, position, line))
    return [line for _, _, line in sorted(keyed, key=lambda one: one[:2])]

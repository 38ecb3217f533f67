"""The commits in a chain's log: when each was made, and where its record begins.

They are read as segments arrive. Each segment has a file with the commits that begin in it, in the
order of the log. A moment names all commits before the first one that has a later time: Postgres
itself stops there when it recovers to a time.

The records are those of PostgreSQL's xact.h. pg_waldump is of no use for them: it prints the names
that clients gave to prepared transactions as they are, with lines that look like records.
"""

import json
import re
import struct
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from controlplane.compute.accounts import Account, launched_as
from controlplane.compute.binaries import postgres_bin
from controlplane.compute.history.chain import ACTIVITY, COMMITS, Chain
from controlplane.compute.history.log import (
    RECORD_HEADER,
    LogUnreadable,
    lsn_text,
    parse_lsn,
    records_of,
    segment_header,
    segment_name,
    segment_start,
    write_beside,
)
from controlplane.compute.tree import SEGMENT_SIZE, open_directory, start_of

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
# Microseconds since 1970, position, and how many relations' files the commit removes.
ENTRY = struct.Struct("<qQI")
# The resource manager of transactions, the kinds of its records that are commits, and a flag that
# more than the time follows.
TRANSACTIONS, COMMIT, COMMIT_PREPARED, HAS_MORE = 1, 0x00, 0x30, 0x80
KIND_AT, KIND = 16, 0x70
# What may precede the data of a record, by the first byte, and how many bytes that takes.
BEFORE_DATA = {253: 3, 252: 5, 255: 2, 254: 5}
DATA_FOLLOWS = (254, 255)
# What follows the time, by flags, until the number of relations' files: the ids of the database and
# of its tablespace, and the subtransactions.
HAS_DATABASE, HAS_SUBTRANSACTIONS, HAS_FILES = 0x01, 0x02, 0x04
SINCE_2000 = int(datetime(2000, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000
# pg_waldump --stats: from the first record to the end of the last one.
BETWEEN = re.compile(rb"WAL statistics between [0-9A-F/]+ and ([0-9A-F]+/[0-9A-F]+):\n")
AT_THE_END = (b"error in WAL record", b"could not find a valid record")
# Seconds of the spans by which commits are counted: the first that gives few enough spans.
SPANS = (60, 300, 900, 3600, 86400)
MOST_SPANS, MOST_REMOVALS = 300, 20
# Seconds for reading one pull's log: half a gigabyte a second is usual.
WALDUMP_BOUND = 120.0


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit. `lsn` is where its record begins, so recovery that stops there leaves it out."""

    at: datetime
    lsn: int
    # How many relations' files it removed: DROP, TRUNCATE and rewrites of tables do.
    removed: int = 0


def index_commits(chain: Chain, since: int) -> None:
    """Write the commits of the log from the segment that holds `since` up to `chain.copied`.
    Segments that are not complete are indexed as far as they go. Raises LogUnreadable, OSError."""
    first = max(segment_start(since), start_of(chain.segments()[0]))
    by_segment: dict[str, list[Commit]] = {
        segment_name(chain.timeline, start): []
        for start in range(first, max(chain.copied, first + 1), SEGMENT_SIZE)
    }
    for commit in _read(chain, first):
        by_segment.setdefault(segment_name(chain.timeline, commit.lsn), []).append(commit)
    for name, commits in by_segment.items():
        packed = b"".join(
            ENTRY.pack((one.at - EPOCH) // timedelta(microseconds=1), one.lsn, one.removed)
            for one in commits
        )
        write_beside(chain.log / name, COMMITS, packed)
        write_beside(chain.log / name, ACTIVITY, json.dumps(_activity(commits)).encode())


@dataclass(frozen=True)
class Activity:
    """When a chain's commits were made: `[begin, count]` of each span of `seconds` that has any, by
    seconds since 1970; and the last of the commits that removed relations' files."""

    seconds: int
    commits: list[list[int]]
    removals: list[Commit]


def activity(chain: Chain) -> Activity:
    """The activity in the chain's log since its first base: no earlier moment can be recovered, and
    the commits before it may be those of the branch from which the data was copied."""
    bases = chain.bases()
    since = bases[0].at if bases else EPOCH
    minutes: Counter[int] = Counter()
    removals: list[Commit] = []
    for name in chain.segments():
        with suppress(FileNotFoundError):
            found = json.loads((chain.log / f"{name}{ACTIVITY}").read_bytes())
            if any(minute <= (since - EPOCH) // MINUTE for minute, _ in found["minutes"]):
                found = _activity([one for one in _stored(chain, name) if one.at >= since])
            minutes.update(dict(found["minutes"]))
            removals += [
                Commit(datetime.fromisoformat(at), lsn, files)
                for at, lsn, files in found["removals"]
            ]
    fitting = (span for span in SPANS if len({m * 60 // span for m in minutes}) <= MOST_SPANS)
    seconds = next(fitting, SPANS[-1])
    spans: Counter[int] = Counter()
    for minute, count in minutes.items():
        spans[minute * 60 // seconds * seconds] += count
    return Activity(seconds, sorted(map(list, spans.items())), removals[-MOST_REMOVALS:])


def _activity(commits: Sequence[Commit]) -> dict[str, Any]:
    minutes = Counter((one.at - EPOCH) // MINUTE for one in commits)
    removals = [one for one in commits if one.removed][-MOST_REMOVALS:]
    return {
        "minutes": sorted(minutes.items()),
        "removals": [[one.at.isoformat(), one.lsn, one.removed] for one in removals],
    }


def commits_from(chain: Chain, lsn: int) -> Iterator[Commit]:
    """The commits that begin at `lsn` or later, in the order of the log."""
    for name in chain.segments():
        if start_of(name) + SEGMENT_SIZE <= lsn:
            continue
        with suppress(FileNotFoundError):
            yield from (one for one in _stored(chain, name) if one.lsn >= lsn)


def _stored(chain: Chain, segment: str) -> Iterator[Commit]:
    """The commits that begin in the segment. Raises FileNotFoundError."""
    stored = (chain.log / f"{segment}{COMMITS}").read_bytes()
    for microseconds, lsn, removed in ENTRY.iter_unpack(stored):
        yield Commit(EPOCH + timedelta(microseconds=microseconds), lsn, removed)


def end_of_log(log: int, timeline: int, since: int, major: int, account: Account) -> int:
    """Where the log in the open directory ends that goes on from the record at `since`: after its
    last valid record, as for a Postgres that recovers after a crash. `since` if no complete record
    follows. `account` runs the pg_waldump of the major version, because the log is untrusted.
    Raises LogUnreadable, OSError."""
    end = segment_start(since)
    while (header := segment_header(log, segment_name(timeline, end))) and header.address == end:
        end += SEGMENT_SIZE
    if end <= since:
        return since
    command: list[Path | str] = [
        postgres_bin(major) / "pg_waldump",
        # The account cannot enter the directories above.
        *("--path", f"/proc/self/fd/{log}", f"--timeline={timeline}", "--stats"),
        *("--start", lsn_text(since), "--end", lsn_text(end)),
    ]
    # The compute whose log it reads may be busy.
    with launched_as(account, command, gives_way=True) as launched:
        done: subprocess.CompletedProcess[bytes] = subprocess.run(
            stdin=subprocess.DEVNULL,
            capture_output=True,
            pass_fds=[log],
            timeout=WALDUMP_BOUND,
            **launched,
        )
    # It is an error for pg_waldump that the log ends in the middle of a record, or that no record
    # begins in it.
    if done.returncode and not any(words in done.stderr for words in AT_THE_END):
        raise LogUnreadable(done.stderr.decode(errors="replace").strip())
    found = BETWEEN.match(done.stdout)
    return min(max(since, parse_lsn(found[1].decode())), end) if found else since


def _read(chain: Chain, first: int) -> Iterator[Commit]:
    with open_directory(chain.log) as log:
        found = records_of(log, chain.timeline, TRANSACTIONS, start=first, end=chain.copied)
        for lsn, record in found:
            if record[KIND_AT] & KIND in (COMMIT, COMMIT_PREPARED):
                try:
                    yield _commit(lsn, record)
                except (KeyError, struct.error, OverflowError) as error:
                    raise LogUnreadable(f"the commit at {lsn_text(lsn)} is damaged") from error


def _commit(lsn: int, record: bytes) -> Commit:
    at, kind = RECORD_HEADER.size, -1
    while kind not in DATA_FOLLOWS:
        kind = record[at] if at < len(record) else -1
        at += BEFORE_DATA[kind]
    (microseconds,) = struct.unpack_from("<q", record, at)
    removed, flags = 0, 0
    if record[KIND_AT] & HAS_MORE:
        (flags,) = struct.unpack_from("<I", record, at + 8)
    if flags & HAS_FILES:
        at += 12 + (8 if flags & HAS_DATABASE else 0)
        if flags & HAS_SUBTRANSACTIONS:
            at += 4 + 4 * struct.unpack_from("<I", record, at)[0]
        (removed,) = struct.unpack_from("<I", record, at)
    return Commit(EPOCH + timedelta(microseconds=SINCE_2000 + microseconds), lsn, removed)

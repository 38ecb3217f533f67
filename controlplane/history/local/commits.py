"""The commits in a chain's log: when each was made, and where its record begins.

They are read as segments arrive. Each segment has a file with the commits that begin in it, in the
order of the log, and one with a summary, by which a look for a moment skips most segments. A moment
names all commits before the first one that has a later time: Postgres itself stops there when it
recovers to a time.

The records are those of PostgreSQL's xact.h. pg_waldump is of no use for them: it prints the names
that clients gave to prepared transactions as they are, with lines that look like records.
"""

import json
import re
import struct
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from controlplane.compute.host.accounts import Account, run_as
from controlplane.compute.host.binaries import postgres_bin
from controlplane.compute.host.tree import SEGMENT_SIZE, open_directory, start_of
from controlplane.compute.host.wal import (
    PAGE,
    RECORD_HEADER,
    LogUnreadable,
    is_inside_record,
    lsn_text,
    parse_lsn,
    records_of,
    segment_header,
    segment_name,
    segment_start,
    write_sidecar,
)
from controlplane.history.local.chain import ACTIVITY, COMMITS, Chain

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
# In microseconds, as are times of commits since 1970. Even one at the end can be calculated with.
SECOND, MINUTE = 1_000_000, 60_000_000
END_OF_TIME = int(datetime(9000, 1, 1, tzinfo=UTC).timestamp()) * SECOND
END_OF_LOG = (1 << 64) - 1
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
SINCE_2000 = int(datetime(2000, 1, 1, tzinfo=UTC).timestamp()) * SECOND
# pg_waldump --stats: from the first record to the end of the last one.
BETWEEN = re.compile(rb"WAL statistics between [0-9A-F/]+ and ([0-9A-F]+/[0-9A-F]+):\n")
AT_THE_END = (b"error in WAL record", b"could not find a valid record")
# Seconds of the spans by which commits are counted: the first that gives few enough spans. The last
# does for any times.
SPANS = (60, 300, 900, 3600, 86400, 86400 << 14)
MAX_SPANS, MAX_REMOVALS = 300, 20
# Only a forged log has more segments with commits both before and after the first base.
MAX_CUT_SEGMENTS = 8
# Seconds for reading one pull's log: half a gigabyte a second is usual.
WALDUMP_TIMEOUT = 120.0


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit. `lsn` is where its record begins, so recovery that stops there leaves it out."""

    at: datetime
    lsn: int
    # How many relations' files it removed: DROP, TRUNCATE and rewrites of tables do.
    removed: int = 0


def index_commits(chain: Chain, since: int) -> datetime:
    """Add the commits of the log from `since`, up to which it is indexed, to `chain.copied`. No
    more than one segment's are in memory. Returns the latest time of those that begin at `since` or
    later; EPOCH if there are none. Raises LogUnreadable, OSError."""
    # No moment before the first base can be recovered.
    first_bases = [base.redo // PAGE * PAGE for base in chain.bases()[:1]]
    begin, latest = max([start_of(chain.segments()[0]), *first_bases]), 0
    # The page that was read last: a record of it, or one that began before it, may not have ended.
    first = max((since - 1) // PAGE * PAGE, begin)
    with open_directory(chain.log) as log:
        while first > begin and is_inside_record(log, chain.timeline, first, since):
            first = segment_start(first - 1)
        known = memoryview(_packed(chain, segment_name(chain.timeline, first)))
        if not known:  # A restore from the store does not index the log.
            first = max(segment_start(first), begin)
        packed = bytearray(known[: _before(known, first) * ENTRY.size])
        commits = _read(log, chain, first)
        commit = next(commits, None)
        for start in range(segment_start(first), max(chain.copied, first + 1), SEGMENT_SIZE):
            while commit is not None and commit[1] < start + SEGMENT_SIZE:
                packed += ENTRY.pack(*commit)
                if commit[0] > latest and commit[1] >= since:
                    latest = commit[0]
                commit = next(commits, None)
            segment = chain.log / segment_name(chain.timeline, start)
            write_sidecar(segment, COMMITS, packed)
            summary = _summary(ENTRY.iter_unpack(packed))
            write_sidecar(segment, ACTIVITY, json.dumps(summary).encode())
            packed = bytearray()
    return EPOCH + latest * MICROSECOND


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
    since = (bases[0].at - EPOCH) // MICROSECOND if bases else 0
    seconds, spans, cut = SPANS[0], Counter[int](), 0
    removals: list[Commit] = []
    for name in chain.segments():
        found = _stored_summary(chain, name)
        if found["latest"] < since:
            continue
        if found["earliest"] < since and cut < MAX_CUT_SEGMENTS:
            cut += 1
            entries = ENTRY.iter_unpack(_packed(chain, name))
            found = _summary(entry for entry in entries if entry[0] >= since)
        spans.update({minute * 60: count for minute, count in found["minutes"]})
        seconds, spans = _merged(spans, max(seconds, found["seconds"]))
        removals += [
            Commit(datetime.fromisoformat(at), lsn, files) for at, lsn, files in found["removals"]
        ]
    return Activity(seconds, sorted(map(list, spans.items())), removals[-MAX_REMOVALS:])


def _summary(entries: Iterable[tuple[int, ...]]) -> dict[str, Any]:
    """What a segment's second file says of its commits: how many were made in each minute, or, if
    those are more than MAX_SPANS, in the `seconds` that begin with it."""
    seconds, spans, earliest, latest = SPANS[0], Counter[int](), END_OF_TIME, -1
    removals: deque[list[Any]] = deque(maxlen=MAX_REMOVALS)
    for at, lsn, removed in entries:
        spans[at // SECOND // seconds * seconds] += 1
        if len(spans) > MAX_SPANS:
            seconds, spans = _merged(spans, seconds)
        if at < earliest:
            earliest = at
        if at > latest:
            latest = at
        if removed:
            removals.append([(EPOCH + at * MICROSECOND).isoformat(), lsn, removed])
    minutes = sorted((begin // 60, count) for begin, count in spans.items())
    times = {"earliest": earliest, "latest": latest}
    return {"seconds": seconds, "minutes": minutes, **times, "removals": list(removals)}


def _stored_summary(chain: Chain, segment: str) -> dict[str, Any]:
    """The segment's summary. An earlier release wrote no `seconds`, which were always 60, and no
    times: the ends of its minutes stand for them, so that the commits are read if in doubt."""
    stored: dict[str, Any] = {"minutes": [], "removals": [], "latest": END_OF_TIME}
    with suppress(FileNotFoundError):
        stored = json.loads((chain.log / f"{segment}{ACTIVITY}").read_bytes())
    first, last = [stored["minutes"][at][0] for at in (0, -1)] if stored["minutes"] else (0, -1)
    times = {"earliest": first * MINUTE, "latest": (last + 1) * MINUTE}
    return {"seconds": SPANS[0], **times, **stored}


def _merged(spans: Counter[int], seconds: int) -> tuple[int, Counter[int]]:
    """The counts of spans, which are named by their first seconds since 1970, by the first of SPANS
    from `seconds` on that gives at most MAX_SPANS."""
    for length in SPANS[SPANS.index(seconds) :]:
        merged = Counter[int]()
        for begin, count in spans.items():
            merged[begin // length * length] += count
        if len(merged) <= MAX_SPANS:
            break
    return length, merged


def first_later(chain: Chain, since: int, at: datetime) -> int:
    """Where the first of the commits in the log from `since` on begins that is later than `at`;
    END_OF_LOG if there is none. The times may go back in the log, as the clock may."""
    until = (at - EPOCH) // MICROSECOND
    for name in _from(chain, since):
        if _stored_summary(chain, name)["latest"] > until:
            packed = memoryview(_packed(chain, name))
            for time, lsn, _ in ENTRY.iter_unpack(packed[_before(packed, since) * ENTRY.size :]):
                if time > until:
                    return int(lsn)
    return END_OF_LOG


def commits_around(chain: Chain, since: int, lsn: int) -> tuple[Commit | None, Commit | None]:
    """The last commit that begins at `since` or later and before `lsn`, and the first that begins
    at `lsn` or later."""
    before = [name for name in _from(chain, since) if start_of(name) < lsn]
    last = _nearest(chain, reversed(before), lsn, -1)
    following = _nearest(chain, _from(chain, lsn), lsn, 0)
    return last if last and last.lsn >= since else None, following


def _nearest(chain: Chain, segments: Iterable[str], lsn: int, offset: int) -> Commit | None:
    for name in segments:
        packed = memoryview(_packed(chain, name))
        at = (_before(packed, lsn) + offset) * ENTRY.size
        if 0 <= at < len(packed):
            time, begin, removed = ENTRY.unpack_from(packed, at)
            return Commit(EPOCH + time * MICROSECOND, begin, removed)
    return None


def _from(chain: Chain, lsn: int) -> list[str]:
    return [name for name in chain.segments() if start_of(name) + SEGMENT_SIZE > lsn]


def _packed(chain: Chain, segment: str) -> bytes:
    """The commits that begin in the segment, as ENTRY packs them; none if it is not indexed."""
    with suppress(FileNotFoundError):
        return (chain.log / f"{segment}{COMMITS}").read_bytes()
    return b""


def _before(packed: memoryview, lsn: int) -> int:
    """How many of the commits begin before `lsn`."""
    numbers = range(len(packed) // ENTRY.size)
    return bisect_left(numbers, lsn, key=lambda n: ENTRY.unpack_from(packed, n * ENTRY.size)[1])


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
    done = run_as(
        account,
        command,
        gives_way=True,
        capture_output=True,
        pass_fds=[log],
        timeout=WALDUMP_TIMEOUT,
    )
    # It is an error for pg_waldump that the log ends in the middle of a record, or that no record
    # begins in it.
    if done.returncode and not any(words in done.stderr for words in AT_THE_END):
        words = done.stderr.decode(errors="replace").strip()
        raise LogUnreadable(words or f"pg_waldump exited with {done.returncode}")
    found = BETWEEN.match(done.stdout)
    return min(max(since, parse_lsn(found[1].decode())), end) if found else since


def _read(log: int, chain: Chain, first: int) -> Iterator[tuple[int, int, int]]:
    """The commits in the log from the page at `first` on, as ENTRY packs them."""
    found = records_of(log, chain.timeline, TRANSACTIONS, start=first, end=chain.copied)
    for lsn, record in found:
        if record[KIND_AT] & KIND in (COMMIT, COMMIT_PREPARED):
            try:
                yield _commit(lsn, record)
            except (KeyError, struct.error, OverflowError) as error:
                raise LogUnreadable(f"the commit at {lsn_text(lsn)} is damaged") from error


def _commit(lsn: int, record: bytes) -> tuple[int, int, int]:
    at, kind = RECORD_HEADER.size, -1
    while kind not in DATA_FOLLOWS:
        kind = record[at] if at < len(record) else -1
        at += BEFORE_DATA[kind]
    microseconds = SINCE_2000 + struct.unpack_from("<q", record, at)[0]
    if not 0 <= microseconds < END_OF_TIME:
        raise OverflowError
    removed, flags = 0, 0
    if record[KIND_AT] & HAS_MORE:
        (flags,) = struct.unpack_from("<I", record, at + 8)
    if flags & HAS_FILES:
        at += 12 + (8 if flags & HAS_DATABASE else 0)
        if flags & HAS_SUBTRANSACTIONS:
            at += 4 + 4 * struct.unpack_from("<I", record, at)[0]
        # Only the beginning of a long record is known: there are some.
        removed = struct.unpack_from("<I", record, at)[0] if at + 4 <= len(record) else 1
    return microseconds, lsn, removed

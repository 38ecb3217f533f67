"""The commits in a chain's log: when each was made, and where its record begins.

Postgres's own pg_waldump reads them as segments arrive. Each segment has a file with the commits
that begin in it, in the order of the log. A moment names all commits before the first one that has
a later time: Postgres itself stops there when it recovers to a time.
"""

import re
import struct
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from controlplane.compute.accounts import Account, running_as
from controlplane.compute.binaries import postgres_bin
from controlplane.compute.history.chain import COMMITS, Chain, start_of
from controlplane.compute.history.log import (
    lsn_text,
    parse_lsn,
    segment_name,
    segment_start,
)
from controlplane.compute.tree import SEGMENT_SIZE, open_directory

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Microseconds since 1970, position, and how many relations' files the commit removes.
ENTRY = struct.Struct("<qQI")
COMMIT = re.compile(
    rb"lsn: ([0-9A-F]+/[0-9A-F]+),.* desc: COMMIT(?:_PREPARED)? (?:xid \d+: |\d+: )?"
    rb"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?) UTC(.*)"
)
REMOVED = re.compile(rb"; rels:((?: [^;]+)+)")
AT_THE_END = (b"error in WAL record", b"could not find a valid record")
# Seconds for reading one pull's log: half a gigabyte a second is usual.
WALDUMP_BOUND = 120.0


class LogUnreadable(Exception):
    """pg_waldump could not read the log; the message is its own."""


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit. `lsn` is where its record begins, so recovery that stops there leaves it out."""

    at: datetime
    lsn: int
    # How many relations' files it removed: DROP, TRUNCATE and rewrites of tables do.
    removed: int = 0


def index_commits(chain: Chain, since: int, account: Account) -> None:
    """Write the commits of the log from the segment that holds `since` up to `chain.copied`.

    Segments that are not complete are indexed as far as they go. `account` runs pg_waldump: the log
    is untrusted. Raises LogUnreadable, OSError.
    """
    first = max(segment_start(since), start_of(chain.segments()[0]))
    by_segment: dict[str, list[Commit]] = {
        segment_name(chain.timeline, start): []
        for start in range(first, max(chain.copied, first + 1), SEGMENT_SIZE)
    }
    for commit in _read(chain, first, account):
        by_segment.setdefault(segment_name(chain.timeline, commit.lsn), []).append(commit)
    for name, commits in by_segment.items():
        draft = chain.log / f"{name}{COMMITS}.new"
        draft.write_bytes(
            b"".join(
                ENTRY.pack((one.at - EPOCH) // timedelta(microseconds=1), one.lsn, one.removed)
                for one in commits
            )
        )
        draft.replace(chain.log / f"{name}{COMMITS}")


def commits_from(chain: Chain, lsn: int) -> Iterator[Commit]:
    """The commits that begin at `lsn` or later, in the order of the log."""
    for name in chain.segments():
        if start_of(name) + SEGMENT_SIZE <= lsn:
            continue
        with suppress(FileNotFoundError):
            for microseconds, at_lsn, removed in ENTRY.iter_unpack(
                (chain.log / f"{name}{COMMITS}").read_bytes()
            ):
                if at_lsn >= lsn:
                    yield Commit(EPOCH + timedelta(microseconds=microseconds), at_lsn, removed)


def _read(chain: Chain, first: int, account: Account) -> Iterator[Commit]:
    with open_directory(chain.log) as log:
        done = subprocess.run(
            [
                postgres_bin() / "pg_waldump",
                # The account cannot enter the directories above.
                *("--path", f"/proc/self/fd/{log}"),
                *("--rmgr=Transaction", f"--timeline={chain.timeline}"),
                *("--start", lsn_text(first), "--end", lsn_text(chain.copied)),
            ],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            pass_fds=[log],
            timeout=WALDUMP_BOUND,
            **running_as(account),
        )
    # It is an error for pg_waldump that the log ends in the middle of a record, or that no record
    # begins in it. After any other error, commits would be missing, and moments would show too
    # much.
    if done.returncode and not any(words in done.stderr for words in AT_THE_END):
        raise LogUnreadable(done.stderr.decode(errors="replace").strip())
    for line in done.stdout.splitlines():
        if found := COMMIT.search(line):
            at = datetime.fromisoformat(found[2].decode()).replace(tzinfo=UTC)
            removed = REMOVED.search(found[3])
            yield Commit(
                at, parse_lsn(found[1].decode()), len(removed[1].split()) if removed else 0
            )

"""The commits that are read from the log are those that Postgres wrote, whatever clients wrote."""

import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from controlplane.compute.host.tree import SEGMENT, SEGMENT_SIZE, open_directory, start_of
from controlplane.compute.host.wal import LogUnreadable, lsn_text, parse_lsn, record_at
from controlplane.history.local.chain import Chain
from controlplane.history.local.commits import Commit, index_commits
from tests.selection import first_of
from tests.support.bare_postgres import BarePostgres, Programs, bare_postgres, private_directory
from tests.support.forged_log import indexed
from tests.support.majors import debians_postgres

SETTINGS: Any = {"max_prepared_transactions": "20", "wal_level": "logical", "fsync": "off"}
LINE = re.compile(
    r"lsn: ([0-9A-F/]+), .* desc: COMMIT(?:_PREPARED)? (?:xid \d+: |\d+: )?([-0-9 :.]+) UTC(.*)"
)
# A name that looks like a commit of the year 2000 in pg_waldump's text.
FORGED = (
    "a\nrmgr: Transaction len (rec/tot):     34/    34, tx:        735, lsn: {lsn}, "
    "prev 0/01000028, desc: COMMIT 2000-01-01 00:00:00.000000 UTC"
)


@pytest.fixture(params=first_of(["the wheel's", "debian's"]))
def programs(request: pytest.FixtureRequest) -> Iterator[Programs]:
    with private_directory() as scratch:
        yield Programs(scratch, debians_postgres() if request.param == "debian's" else None)


@pytest.fixture
def cluster(programs: Programs) -> Iterator[BarePostgres]:
    with bare_postgres(programs) as made:
        made.start(**SETTINGS)
        yield made


def flushed(cluster: BarePostgres) -> int:
    ((lsn,),) = cluster.execute("SELECT pg_current_wal_flush_lsn()::text")
    return parse_lsn(lsn)


def copied(cluster: BarePostgres, place: Path, until: int) -> Chain:
    """A chain with the cluster's log up to a position."""
    log = place / "1" / "log"
    shutil.rmtree(log, ignore_errors=True)
    log.mkdir(parents=True)
    for segment in (cluster.directory / "data" / "pg_wal").iterdir():
        if SEGMENT.fullmatch(segment.name) and start_of(segment.name) < until:
            content = segment.read_bytes()[: until - start_of(segment.name)]
            (log / segment.name).write_bytes(content)
    at = datetime.now(UTC)
    chain = Chain(place / "1", 1, 1, until, at)
    index_commits(chain, 0)
    return chain


def told_by_waldump(cluster: BarePostgres, programs: Programs, chain: Chain) -> list[Commit]:
    done = subprocess.run(
        [
            *(programs.path("pg_waldump"), "--rmgr=Transaction"),
            *("--path", cluster.directory / "data" / "pg_wal"),
            *("--start", lsn_text(start_of(chain.segments()[0])), "--end", lsn_text(chain.copied)),
        ],
        capture_output=True,
        text=True,
    )
    found = []
    for line in done.stdout.splitlines():
        if match := LINE.search(line):
            files = re.search("; rels:((?: [^;]+)+)", match[3])
            at = datetime.fromisoformat(match[2]).replace(tzinfo=UTC)
            removed = len(files[1].split()) if files else 0
            found.append(Commit(at, parse_lsn(match[1]), removed))
    return found


def write_all_kinds(cluster: BarePostgres) -> None:
    """Commit in every way, with records longer than pages and a log of several segments."""
    with cluster.connect() as connection:
        execute = connection.execute
        execute("CREATE TABLE t (n int, text text)")
        execute("CREATE TABLE dropped (n int PRIMARY KEY); CREATE INDEX ON dropped (n)")
        execute(
            "CREATE PROCEDURE nested(times int) LANGUAGE plpgsql AS $$ BEGIN"
            " FOR i IN 1..times LOOP BEGIN INSERT INTO t VALUES (i);"
            " EXCEPTION WHEN division_by_zero THEN NULL; END; END LOOP; END $$"
        )
        # A commit with so many subtransactions is longer than a page.
        execute("CALL nested(9000)")
        execute("BEGIN; DROP TABLE dropped; CALL nested(3); TRUNCATE t; COMMIT")
        execute("SELECT pg_logical_emit_message(true, 'long', repeat('x', 40000000))")
        execute("SELECT pg_switch_wal()")
        execute("SELECT pg_replication_origin_create('elsewhere')")
        execute("SELECT pg_replication_origin_session_setup('elsewhere')")
        execute(
            "BEGIN; SELECT pg_replication_origin_xact_setup('1/2', now());"
            " INSERT INTO t VALUES (1); COMMIT"
        )
        execute("SELECT pg_replication_origin_session_reset()")
        for number in range(5):
            execute(f"BEGIN; INSERT INTO t VALUES ({number}); PREPARE TRANSACTION 'p{number}'")
            execute(
                f"COMMIT PREPARED 'p{number}'" if number % 2 else f"ROLLBACK PREPARED 'p{number}'"
            )
        execute("BEGIN; INSERT INTO t VALUES (1); ROLLBACK")
        for number in range(3000):
            execute("INSERT INTO t VALUES (%s, %s)", [number, "x" * (number * 7 % 300)])


def test_they_are_those_that_postgres_tells(
    cluster: BarePostgres, programs: Programs, tmp_path: Path
) -> None:
    write_all_kinds(cluster)
    chain = copied(cluster, tmp_path, flushed(cluster))
    commits = indexed(chain)
    assert len(commits) > 3000
    assert max(one.removed for one in commits) >= 3
    assert commits == told_by_waldump(cluster, programs, chain)
    # Each part of the log has the commits whose records end in it.
    with open_directory(chain.log) as log:
        ends = [record.end for one in commits if (record := record_at(log, 1, one.lsn))]
    for until in (*ends[-50:], *(end - 8 for end in ends[:20]), *(end + 8 for end in ends[-20:-1])):
        part = copied(cluster, tmp_path, until)
        assert indexed(part) == [
            one for one, end in zip(commits, ends, strict=True) if end <= until
        ]


def test_a_record_that_a_crash_cut_off_is_none(
    cluster: BarePostgres, programs: Programs, tmp_path: Path
) -> None:
    cluster.execute("CREATE TABLE t (n int)")
    cluster.execute("SELECT pg_logical_emit_message(true, 'long', repeat('x', 3000000))")
    cluster.stop(signal.SIGQUIT)
    # Only the first half of the message reached the disk.
    (segment, *_) = sorted((cluster.directory / "data" / "pg_wal").glob("0*"))
    with segment.open("r+b") as file:
        written = len(file.read().rstrip(b"\0"))
        middle = (written - 1_500_000) // 8192 * 8192
        file.seek(middle)
        file.write(bytes(SEGMENT_SIZE - file.tell()))
    cluster.start(**SETTINGS)
    cluster.execute("INSERT INTO t VALUES (1)")
    chain = copied(cluster, tmp_path, flushed(cluster))
    commits = indexed(chain)
    assert commits == told_by_waldump(cluster, programs, chain)
    assert commits[-1].lsn >= start_of(segment.name) + middle


def test_no_name_that_a_client_chose_is_taken_for_a_commit(
    cluster: BarePostgres, tmp_path: Path
) -> None:
    cluster.execute("CREATE TABLE t (n int)")
    before = flushed(cluster)
    for number, lsn in enumerate(["0/01000028", f"0/{before:08X}", "7/00000028"]):
        name = FORGED.format(lsn=lsn)
        with cluster.connect() as connection:
            connection.execute("BEGIN")
            connection.execute("INSERT INTO t VALUES (1)")
            connection.execute(f"PREPARE TRANSACTION '{number}{name}'".encode())
            connection.execute("SELECT pg_logical_emit_message(false, 'p', %s)", [name])
            connection.execute("SELECT pg_create_restore_point(left(%s, 63))", [name])
            connection.execute(f"COMMIT PREPARED '{number}{name}'".encode())
    chain = copied(cluster, tmp_path, flushed(cluster))
    commits = indexed(chain, before)
    assert len(commits) == 3
    assert [one for one in indexed(chain) if one.at.year == 2000] == []
    assert len(list(chain.log.glob("*.commits"))) == len(chain.segments())


@pytest.mark.parametrize("in_a_record", [False, True])
def test_damaged_log_is_refused(cluster: BarePostgres, tmp_path: Path, in_a_record: bool) -> None:
    cluster.execute("CREATE TABLE t AS SELECT n FROM generate_series(1, 10000) n")
    if in_a_record:
        cluster.execute("SELECT pg_logical_emit_message(true, 'long', repeat('x', 6000000))")
    chain = copied(cluster, tmp_path, flushed(cluster))
    segment = chain.log / chain.segments()[-1]
    content = segment.read_bytes()
    middle = len(content) // 2 // 8192 * 8192
    for damaged in (
        content[:middle] + bytes(8192) + content[middle + 8192 :],
        content[:middle] + content[: 2 * 8192] + content[middle + 2 * 8192 :],
        content[:middle],
    ):
        segment.write_bytes(damaged)
        with pytest.raises(LogUnreadable):
            index_commits(chain, 0)

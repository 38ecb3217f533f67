"""What history takes on a disk that shares blocks: measured in this process, which does what the
worker does, so that nothing else writes to the disk. Django must be set up before the import."""

import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from django.conf import settings

from controlplane.compute import branch_data, compute
from controlplane.compute.configuration import PLATFORM_ROLE, ComputeSpec
from controlplane.compute.history.bases import LOG_PER_BASE, begin_with_template
from controlplane.compute.history.chain import chains_of, open_chain
from controlplane.compute.session import socket_dir
from controlplane.compute.state_directory import prepare_state_directory
from controlplane.operations.history import keep
from tests.support.filesystems import free_bytes, mounted

MIB = 1 << 20
BRANCH, ENDPOINT = "br-benchmark", "ep-benchmark"
DAY = 86_400  # seconds
MINUTES = 1440
# A checkpoint comes every five minutes, and each minute two notes about running transactions.
CHECKPOINT_EVERY, NOTES = 5, 2
Connection = psycopg.Connection[tuple[object, ...]]


def measure_base(megabytes: int, rounds: int) -> None:
    """Print what a base of a branch of so many megabytes takes, relative to the branch."""
    shares, times = [], []
    with branch(size=max(8_000, 8 * megabytes) * MIB) as place:
        with running() as connection:
            keep(BRANCH, DAY)
            connection.execute("CREATE TABLE large (i int, words text)")
            for _ in range(max(1, megabytes // 100)):
                connection.execute(
                    b"INSERT INTO large SELECT i, repeat(md5(i::text), 30)"
                    b" FROM generate_series(1, 100_000) i"
                )
                keep(BRANCH, DAY)
        keep(BRANCH, DAY)
        for _ in range(rounds):
            with running() as connection:
                write_log(connection, LOG_PER_BASE)
            free, bases = synced(place), bases_of_branch()
            began = time.perf_counter()
            keep(BRANCH, DAY)
            times.append((time.perf_counter() - began) * 1000)
            took = free - synced(place)
            assert bases_of_branch() == bases + 1
            chain = open_chain(BRANCH)
            assert chain is not None
            size = chain.bases()[-1].size
            shares.append(took / size * 100)
            print(f"  {took / MIB:.2f} MiB for a branch of {size / MIB:.0f} MiB")
    print(
        f"a base, with its log: {statistics.median(shares):.3f} % of the branch's size (target: at"
        f" most 0.1 %), in {statistics.median(times):.0f} ms"
    )


def measure_day(minutes: int, sleeps: int) -> None:
    """Print the bytes of a day with one commit a minute: of a compute that runs all day, and of one
    that is suspended after each commit. A part of the day is multiplied."""
    for name, count, write in (
        ("running all day", minutes, _run_through),
        ("suspended after each commit", sleeps, _sleep_through),
    ):
        with branch(size=8_000 * MIB) as place:
            with running() as connection:
                keep(BRANCH, DAY)
                connection.execute("CREATE TABLE visit (id bigserial PRIMARY KEY, at timestamptz)")
            keep(BRANCH, DAY)
            before = bytes_of_history()
            write(count)
            kept = (bytes_of_history() - before) * MINUTES / count
            synced(place)
        print(f"a day of one commit a minute, {name}: {kept / MIB:.1f} MiB (target: at most 20)")


def _run_through(minutes: int) -> None:
    with running() as connection:
        for minute in range(minutes):
            _commit(connection)
            for _ in range(NOTES):
                connection.execute("SELECT pg_log_standby_snapshot()")
            if minute % CHECKPOINT_EVERY == 0:
                connection.execute("CHECKPOINT")
            keep(BRANCH, DAY)
    keep(BRANCH, DAY)


def _sleep_through(sleeps: int) -> None:
    for _ in range(sleeps):
        with running() as connection:
            _commit(connection)
        keep(BRANCH, DAY)


def _commit(connection: Connection) -> None:
    connection.execute("INSERT INTO visit (at) VALUES (now())")


@contextmanager
def branch(*, size: int) -> Iterator[Path]:
    """A disk of so many bytes, with a branch that has a history."""
    before = settings.STATE_DIR, settings.SOCKET_DIR
    with mounted("xfs", size=size) as place:
        settings.STATE_DIR, settings.SOCKET_DIR = place, place / "sockets"
        try:
            prepare_state_directory()
            branch_data.create_from_template(BRANCH, begin_history=begin_with_template)
            yield place
        finally:
            compute.stop(BRANCH)
            settings.STATE_DIR, settings.SOCKET_DIR = before


@contextmanager
def running() -> Iterator[Connection]:
    compute.start(ComputeSpec(ENDPOINT, BRANCH, 0.25, 0.25, {}))
    try:
        with psycopg.connect(
            host=str(socket_dir(ENDPOINT)), user=PLATFORM_ROLE, dbname="postgres", autocommit=True
        ) as connection:
            yield connection
    finally:
        compute.stop(BRANCH)


def write_log(connection: Connection, size: int) -> None:
    connection.execute(
        "SELECT pg_logical_emit_message(true, 'benchmark', repeat('x', 1 << 20))"
        f" FROM generate_series(0, {size >> 20})".encode()
    )


def bytes_of_history() -> int:
    """Bytes that the branch's history would take if it shared no blocks, without bases, which take
    almost nothing."""
    return sum(chain.log_size() for chain in chains_of(BRANCH))


def bases_of_branch() -> int:
    return sum(len(chain.bases()) for chain in chains_of(BRANCH))


def synced(place: Path) -> int:
    """The disk's free bytes, once everything is written."""
    subprocess.run(["sync", "--file-system", place], check=True)
    return free_bytes(place)

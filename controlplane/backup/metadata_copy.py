"""Dumps and loads the rows of a backup, in one snapshot, with Postgres's own programs."""

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from django.db import connection, connections, transaction
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from controlplane.compute import metadata
from controlplane.compute.accounts import running_as, service_account
from controlplane.compute.binaries import postgres_bin
from controlplane.compute.process import last_words
from controlplane.compute.progress import Watch, wait_while_it_gets_on
from controlplane.compute.state_directory import hold_state_directory
from controlplane.database.version import conninfo

# Seconds without progress after which a Postgres that starts is given up. It may have a long log to
# replay.
STILL_BOUND = 60.0
WHAT_TO_DO = (
    "set PERCH_POSTGRES_BIN, for this command only, to the programs of a Postgres that is at "
    "least as new as the server of DATABASE_URL"
)


class DumpFailed(Exception):
    """The metadata could not be copied; the message says why and what to do."""


@contextmanager
def metadata_database(*, mark: str) -> Iterator[None]:
    """Make the service's database available: the running service's, or otherwise one that runs only
    inside this context, while `up` is kept from starting. `mark`, as NAME=value, tells `up` which
    process to end if this one was killed. Raises DumpFailed, StateDirectoryUnusable,
    PostgresUnusable."""
    if "DATABASE_URL" in os.environ:
        if complaint := metadata.why_unreachable(os.environ["DATABASE_URL"]):
            raise DumpFailed(f"the database of DATABASE_URL does not answer: {complaint}")
        yield
        return
    if metadata.create_metadata_database():
        yield
        return
    with hold_state_directory(), metadata_cluster(mark=mark):
        yield


@contextmanager
def metadata_cluster(*, mark: str) -> Iterator[None]:
    """Run Perch's own metadata cluster. The caller holds the state directory. Raises DumpFailed."""
    metadata.create_metadata_cluster()
    with tempfile.TemporaryDirectory() as place:
        log_file = Path(place) / "postgres.log"
        with log_file.open("wb") as log:
            process = subprocess.Popen(
                metadata.metadata_command(mark=mark),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **running_as(service_account()),
            )
        try:
            wait_while_it_gets_on(
                lambda: process.poll() is not None or metadata.create_metadata_database(),
                Watch(process.pid).look,
                still=STILL_BOUND,
            )
            if not metadata.create_metadata_database():
                raise DumpFailed(f"Perch's own Postgres does not start: {last_words(log_file)}")
            yield
        finally:
            connections.close_all()
            process.send_signal(signal.SIGINT)
            process.wait()


@contextmanager
def snapshot() -> Iterator[str]:
    """Open a transaction that sees the rows of one moment; give the snapshot's name for pg_dump."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        cursor.execute("SELECT pg_export_snapshot()")
        yield str(cursor.fetchone()[0])


def dump(target: Path, *, snapshot: str) -> None:
    """Dump the rows that the snapshot sees to the file `target`. Raises DumpFailed."""
    _run(
        "pg_dump",
        "--format=custom",
        "--no-owner",
        "--no-privileges",
        f"--snapshot={snapshot}",
        f"--file={target}",
    )


def check_empty() -> None:
    """Raise DumpFailed if the database has tables."""
    with connection.cursor() as cursor:
        if connection.introspection.table_names(cursor):
            raise DumpFailed("the database of DATABASE_URL is not empty: name an empty one")
    connections.close_all()


def load(source: Path) -> None:
    """Load the dump into the empty database. Raises DumpFailed."""
    _run(
        "pg_restore",
        "--no-owner",
        "--no-privileges",
        "--exit-on-error",
        "--single-transaction",
        str(source),
    )


def _run(program: str, *arguments: str) -> None:
    parameters = {name: str(value) for name, value in conninfo_to_dict(conninfo()).items()}
    # Do not pass it on the command line, which other users of the host can read.
    password = parameters.pop("password", None)
    try:
        done = subprocess.run(
            [postgres_bin() / program, f"--dbname={make_conninfo(**parameters)}", *arguments],
            env={**os.environ, **({"PGPASSWORD": password} if password else {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
        )
    except OSError as error:
        raise DumpFailed(f"{program} cannot be run ({error}): {WHAT_TO_DO}") from error
    if done.returncode:
        advice = f": {WHAT_TO_DO}" if "version mismatch" in done.stderr else ""
        raise DumpFailed(f"{done.stderr.strip()}{advice}")

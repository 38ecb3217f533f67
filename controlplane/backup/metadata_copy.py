"""Dumps and loads the rows of a backup, in one snapshot, with Postgres's own programs. The server
may be older than these programs."""

import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from django.conf import settings
from django.db import connection, connections, transaction
from django.db.backends.utils import CursorWrapper
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from controlplane.compute.data.state_directory import hold_state_directory
from controlplane.compute.host.accounts import running_as, service_account
from controlplane.compute.host.binaries import postgres_bin, postgres_version
from controlplane.compute.host.progress import Watch, wait_while_progressing
from controlplane.compute.processes import metadata
from controlplane.compute.processes.process import last_errors
from controlplane.database.version import conninfo

# Seconds without progress after which a Postgres that starts is given up. It may have a long log to
# replay.
STALL_TIMEOUT = 60.0
# Sets a column's version (`compute.upgrade.upgrade_catalogs.FORGET_VERSIONS`).
VERSION = re.compile(rb"ALTER TABLE ONLY \S+ ALTER COLUMN \S+ SET \(pg_attver=")
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
    if not metadata.data_dir().exists():
        raise DumpFailed(
            f"{settings.STATE_DIR} has no database of its own: set DATABASE_URL as the service has "
            "it, or name the state directory by --state-dir"
        )
    if metadata.create_metadata_database():
        yield
        return
    with hold_state_directory(), metadata_cluster(mark=mark):
        yield


def database_answers() -> bool:
    """Whether the service's database, which is not started, can be used now."""
    if "DATABASE_URL" in os.environ:
        return metadata.why_unreachable(os.environ["DATABASE_URL"]) is None
    return metadata.create_metadata_database()


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
            wait_while_progressing(
                lambda: process.poll() is not None or metadata.create_metadata_database(),
                Watch(process.pid).look,
                stall_timeout=STALL_TIMEOUT,
            )
            if not metadata.create_metadata_database():
                raise DumpFailed(f"Perch's own Postgres does not start: {last_errors(log_file)}")
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


def check_can_dump() -> None:
    """Raise DumpFailed if `dump` would refuse the server, which no pg_dump of an older major
    version reads."""
    with connection.cursor() as cursor:
        server = _major_of(cursor)
    ours = int(postgres_version().split(".")[0])
    if ours < server:
        raise DumpFailed(
            f"the server of DATABASE_URL is Postgres {server}, and pg_dump here is of Postgres "
            f"{ours}: {WHAT_TO_DO}"
        )


def dump(target: Path, *, snapshot: str) -> None:
    """Dump the rows that the snapshot sees to the file `target`. Raises DumpFailed, OSError."""
    # pg_dump itself may not create it: it has not the worker's capabilities.
    with target.open("wb") as file:
        _run(
            "pg_dump",
            f"--dbname={_database()}",
            "--format=custom",
            "--no-owner",
            "--no-privileges",
            # They are most of all rows, and no part of a service needs them to run.
            "--exclude-table-data=controlplane_endpointsample",
            "--exclude-table-data=controlplane_lastsample",
            f"--snapshot={snapshot}",
            stdout=file,
        )


def check_empty() -> None:
    """Raise DumpFailed if the database has tables."""
    with connection.cursor() as cursor:
        if connection.introspection.table_names(cursor):
            raise DumpFailed("the database of DATABASE_URL is not empty: name an empty one")
    connections.close_all()


def check_loads(source: Path) -> None:
    """Raise DumpFailed if `load` would fail: the programs here cannot read the dump, or the server
    of DATABASE_URL refuses its tables, as one may that is older than the dump's. Changes
    nothing."""
    if "DATABASE_URL" not in os.environ:
        _run("pg_restore", "--list", str(source))
        return
    _execute(source, "--schema-only", end="ROLLBACK")


def load(source: Path) -> None:
    """Load all of the dump into the empty database, or nothing. Raises DumpFailed."""
    _execute(source, end="COMMIT")


def _execute(source: Path, *options: str, end: str) -> None:
    """Execute the dump as SQL in one transaction, which `end` ends.

    pg_restore itself cannot do this on a server that is older than it is: it begins with settings
    that such a server does not know.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT name FROM pg_settings")
        known = {str(name) for (name,) in cursor.fetchall()}
        server = _major_of(cursor)
    connections.close_all()
    with tempfile.TemporaryFile() as complaints:
        reading = _begin(
            "pg_restore",
            *("--no-owner", "--no-privileges", *options, "--file=-", str(source)),
            stdout=subprocess.PIPE,
            stderr=complaints,
        )
        executing = _begin(
            "psql",
            *("--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", f"--dbname={_database()}"),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=complaints,
        )
        with reading, executing:
            assert reading.stdout is not None
            assert executing.stdin is not None
            try:
                executing.stdin.write(b"BEGIN;\n")
                _copy_script(reading.stdout, executing.stdin, known)
                # The end of the script may be that of a pg_restore that has failed.
                if reading.wait() == 0:
                    executing.stdin.write(f"{end};\n".encode())
                executing.stdin.close()
            except BrokenPipeError:  # psql has ended, and says why
                reading.kill()
                with suppress(BrokenPipeError):
                    executing.stdin.close()
            executing.wait()
        if reading.returncode or executing.returncode:
            complaints.seek(0)
            words = complaints.read().decode(errors="replace").strip()
            raise DumpFailed(f"Postgres {server} does not take the rows: {words}")


def _major_of(cursor: CursorWrapper) -> int:
    """The major version of the server."""
    cursor.execute("SHOW server_version_num")
    return int(cursor.fetchone()[0]) // 10_000


def _copy_script(script: IO[bytes], target: IO[bytes], known: set[str]) -> None:
    """Copy the script, without the settings at its beginning that are not `known`, and without the
    versions of columns that Debian's Postgres 15 keeps, as other servers refuse these."""
    in_settings = True
    for line in script:
        in_settings = in_settings and not line.startswith(b"CREATE ")
        setting = re.match(rb"SET (\w+) = ", line) if in_settings else None
        is_unknown = setting is not None and setting[1].decode() not in known
        if not is_unknown and not VERSION.match(line):
            target.write(line)
        if line.startswith(b"COPY "):
            break
    shutil.copyfileobj(script, target)


def _run(program: str, *arguments: str, stdout: int | IO[bytes] = subprocess.DEVNULL) -> None:
    with _begin(program, *arguments, stdout=stdout, stderr=subprocess.PIPE) as process:
        words = process.communicate()[1].decode(errors="replace").strip()
    if process.returncode:
        raise DumpFailed(f"{words}: {WHAT_TO_DO}" if "version mismatch" in words else words)


def _begin(
    program: str,
    *arguments: str,
    stdin: int = subprocess.DEVNULL,
    stdout: int | IO[bytes],
    stderr: int | IO[bytes],
) -> "subprocess.Popen[bytes]":
    try:
        return subprocess.Popen(
            [postgres_bin() / program, *arguments],
            env={**os.environ, **_password()},
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
        )
    except OSError as error:
        raise DumpFailed(f"{program} cannot be run ({error}): {WHAT_TO_DO}") from error


def _database() -> str:
    """The database, without the password: other users of the host can read command lines."""
    parameters = conninfo_to_dict(conninfo())
    parameters.pop("password", None)
    return make_conninfo(**{name: str(value) for name, value in parameters.items()})


def _password() -> dict[str, str]:
    password = conninfo_to_dict(conninfo()).get("password")
    return {"PGPASSWORD": str(password)} if password else {}

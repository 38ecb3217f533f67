"""Makes a branch with the roles, databases and schemas of another branch, its source, and none of
its rows.

The branch begins as the template, an empty cluster, and gets pg_dump's archive of the source. So
none of its files ever holds a row of the source. `schema_restoring` creates what the archive has.
pg_dump runs under the source's account, so it can reach only its own compute. Its session is pinned
as our own are: a name without a schema is only looked up in pg_catalog.

While the branch is made, its name is that of its staging directory. The lock of that name keeps
away the round that kills processes of no branch. Callers hold the locks of both branches.
"""

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from django.conf import settings

from controlplane.compute import compute
from controlplane.compute.catalog.cluster_roles import make_roles, read_roles
from controlplane.compute.catalog.system_views import RolesForged
from controlplane.compute.data import branch_data
from controlplane.compute.data.branch_data import NoSuchBranchData, branch_dir, data_dir
from controlplane.compute.data.relaying import relay_directory
from controlplane.compute.host.accounts import (
    ENVIRONMENT,
    Account,
    account_of,
    limit_command,
    start_as,
)
from controlplane.compute.host.binaries import major_at, major_of, postgres_bin
from controlplane.compute.host.cloning import clone_tree
from controlplane.compute.host.foreign_files import read_regular
from controlplane.compute.host.progress import Movement, Watch, wait_while_progressing
from controlplane.compute.host.space import require_reserve
from controlplane.compute.host.steps import step
from controlplane.compute.host.tree import open_directory
from controlplane.compute.processes.recovery import is_to_recover
from controlplane.compute.processes.session import (
    NotUtf8,
    pinned_options,
    session,
    socket_dir,
    values_of,
)
from controlplane.compute.schemas.dump_archive import entries_of
from controlplane.compute.schemas.schema import (
    MEMORY,
    SchemaUnreadable,
    is_connection_lost,
    reason_in,
)
from controlplane.compute.schemas.schema_restoring import (
    EXTENSIONS,
    CopyInterrupted,
    SchemaNotCopied,
    create_schema,
    restorer,
)
from controlplane.compute.settings.configuration import PLATFORM_ROLE
from controlplane.compute.workshop import forget_files, making, serving, sockets_of

# Seconds that a program may make no progress: it waits for a catalog query, or for a lock.
STALL_TIMEOUT = 50.0
# Seconds that pg_dump may take in all: its server is untrusted, and can make it work for ever.
MAX_DUMP_TIME = 3600.0
LOCK_TIMEOUT = "30s"  # for one table
MAX_STDERR_BYTES = 4096  # bytes
MAX_ARCHIVE_BYTES = 64 << 20  # bytes; the worker reads it whole
TOO_LONG = f"the schema is longer than {MAX_ARCHIVE_BYTES >> 20} MiB"
# Leaves out Postgres's own databases, and those whose DROP was interrupted.
DATABASES = """
SELECT datname, datallowconn FROM pg_database
WHERE datname NOT IN ('template0', 'template1', 'postgres') AND datconnlimit <> -2 ORDER BY oid
"""
# An object that a client has added to an extension, whose script a superuser has run: what the
# script made belongs to that superuser. Neither pg_dump nor CREATE EXTENSION would create it.
ADDED = b"""
SELECT format('the %s in the database "%s" is a member of the extension "%s"',
    pg_describe_object(d.classid, d.objid, 0), datname, extname)
FROM pg_depend d JOIN pg_shdepend s USING (classid, objid) JOIN pg_database b ON b.oid = dbid
JOIN pg_extension e ON e.oid = d.refobjid AND d.refclassid = 'pg_extension'::regclass
WHERE d.deptype = 'e' AND s.deptype = 'o' AND datname = current_database()
    AND extname IN (SELECT name FROM pg_available_extension_versions WHERE superuser) LIMIT 1
"""
# Nothing of the new branch needs to survive a crash: its staging directory is removed then.
UNSAFE = {"fsync": "off", "full_page_writes": "off", "autovacuum": "off"}


def create_schema_only(branch_id: str, source_id: str, *, locale: str) -> None:
    """Make the branch's directory with the source's schema as it is now; its new databases will
    have the locale. Does nothing if the directory exists already.

    A running source is read as it runs. For an idle one, a Postgres of our own is started and
    stopped again; clients of its endpoint wait meanwhile. Raises NoSuchBranchData,
    OtherMajorVersion, SchemaUnreadable, SchemaNotCopied, CopyInterrupted, NotEnoughSpace,
    StartFailed, AccountUnusable, psycopg.Error, OSError.
    """
    if branch_dir(branch_id).exists():
        return
    source = data_dir(source_id)
    if not source.exists():
        raise NoSuchBranchData(f"the branch {source_id} has no data")
    compute.refuse_other_major(source)
    with (
        making(branch_id),
        branch_data.new_branch(branch_id) as (staging, account),
    ):
        template = branch_data.template(major_of(source), locale)
        to_copy = branch_data.require_space(template, staging)
        with step("copying", **to_copy):
            clone_tree(template, staging / "data", owner=account)
        branch_data.grant_access(staging, account)
        with tempfile.TemporaryDirectory(dir=staging) as dumps:
            _copy_schema(branch_id, source_id, Path(dumps))
        if is_to_recover(staging / "data"):
            raise CopyInterrupted("the new branch's Postgres did not shut down cleanly")


def end_schema_work(branch_id: str, source_id: str | None) -> None:
    """End what a dead worker has left running on a branch that was being made. The caller ends a
    Postgres that was left on the source, as on any branch. Raises StopFailed."""
    with making(branch_id):
        pass
    if source_id:
        forget_files(source_id)


def _copy_schema(branch_id: str, source_id: str, dumps: Path) -> None:
    with _source(branch_id, source_id) as sockets:
        try:
            roles = read_roles(sockets)
            databases = _databases(sockets)
        except RolesForged as error:
            raise SchemaUnreadable(str(error)) from error
        except NotUtf8 as error:
            raise SchemaUnreadable(
                "a role or a database has a name that is not valid UTF-8"
            ) from error
        with step("reading_schema", databases=len(databases)):
            account = account_of(branch_dir(source_id))
            extensions = [
                _dump(sockets, name, dumps / str(place), account=account)
                for place, name in enumerate(databases)
            ]
    workshop = branch_data.staging_id(branch_id)
    with (
        serving(workshop, sockets_of(branch_id), UNSAFE) as sockets,
        step("writing_schema", databases=len(databases)),
    ):
        make_roles(sockets, roles)
        for place, name in enumerate(databases):
            entries = entries_of(read_archive(dumps / str(place)))
            with restorer(sockets) as role:
                create_schema(sockets, name, entries, extensions[place], role)


@contextmanager
def _source(branch_id: str, source_id: str) -> Iterator[Path]:
    """Yields the directory in which the source's Postgres listens, while the source is read."""
    if endpoint_id := compute.running_endpoint(source_id):
        yield socket_dir(endpoint_id)
        return
    sockets = sockets_of(branch_id, source=True)
    with serving(source_id, sockets, {"autovacuum": "off"}):
        yield sockets


def _databases(sockets: Path) -> list[str]:
    """The names of clients' databases. Raises SchemaUnreadable, NotUtf8, psycopg.Error."""
    with session(sockets) as connection:
        rows = connection.execute(DATABASES).fetchall()
    closed = [str(name) for name, lets_in in rows if not lets_in]
    if closed:
        raise SchemaUnreadable(
            f'the database "{closed[0]}" accepts no connections, so its schema cannot be '
            "read: set its ALLOW_CONNECTIONS to true, or drop it"
        )
    return [str(name) for name, _ in rows]


def _dump(sockets: Path, name: str, dump: Path, *, account: Account) -> list[bytes]:
    """Write an archive of the database's schema to `dump`. Returns statements that create its
    extensions. Raises SchemaUnreadable, SchemaNotCopied, CopyInterrupted, psycopg.Error."""
    # No conversion: statements are in the database's own encoding, as the archive is.
    with (
        session(sockets, name, client_encoding="SQL_ASCII") as connection,
        dump.open("xb") as written,
    ):
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        ((snapshot,),) = connection.execute("SELECT pg_export_snapshot()").fetchall()
        assert isinstance(snapshot, bytes)
        for row in connection.execute(ADDED):
            what = values_of(row, bytes)[0].decode(errors="replace")
            raise SchemaUnreadable(
                f"{what}, so it would not be copied: take it out with ALTER EXTENSION … DROP"
            )
        extensions = [values_of(row, bytes)[0] for row in connection.execute(EXTENSIONS)]
        _run_pg_dump(
            f"--snapshot={snapshot.decode()}",
            sockets=sockets,
            database=name,
            account=account,
            stdout=written,
        )
    return extensions


def _run_pg_dump(
    *options: str, sockets: Path, database: str, account: Account, stdout: IO[bytes]
) -> None:
    """Run pg_dump as long as it makes progress. Raises SchemaUnreadable, SchemaNotCopied,
    CopyInterrupted, NotEnoughSpace, patience.Cancelled."""
    major = major_at(sockets)
    environment = {
        **ENVIRONMENT,
        "PGUSER": PLATFORM_ROLE,
        "PGDATABASE": database,
        "PGOPTIONS": pinned_options(STALL_TIMEOUT, major, lock_timeout=LOCK_TIMEOUT),
        "PGAPPNAME": "perch",
    }
    place = Path(stdout.name).parent
    with tempfile.TemporaryFile(dir=place) as errors, relay_directory(sockets, account) as relay:
        process = start_as(
            account,
            [
                *limit_command(memory=MEMORY, file_size=MAX_ARCHIVE_BYTES),
                *(postgres_bin(major) / "pg_dump", "--no-password"),
                *("--schema-only", "--create", "--format=custom"),
                # A copied subscription would take the source's rows out of its replication slot.
                *("--no-subscriptions", f"--lock-wait-timeout={LOCK_TIMEOUT}", *options),
            ],
            stdout=stdout,
            stderr=errors,
            env={**environment, "PGHOST": str(relay)},
        )
        try:
            in_time = _has_ended(process)
        finally:
            process.kill()
            process.wait()
        if not in_time:
            raise SchemaNotCopied("pg_dump made no progress, or took too long")
        if process.returncode == -signal.SIGXFSZ:
            raise SchemaUnreadable(TOO_LONG)
        if process.returncode:
            errors.seek(max(0, os.fstat(errors.fileno()).st_size - MAX_STDERR_BYTES))
            words = errors.read(MAX_STDERR_BYTES).decode(errors="replace").strip()
            if reason := reason_in(words):
                raise SchemaUnreadable(reason)
            if is_connection_lost(words):
                raise CopyInterrupted(words)
            raise SchemaNotCopied(words)


def read_archive(dump: Path) -> bytes:
    """The content of the file that pg_dump has written. The limit of pg_dump's files alone does not
    bound it: another process of the source's account may have taken pg_dump's descriptor and made
    the file longer. Raises SchemaUnreadable."""
    archive = read_regular(dump, MAX_ARCHIVE_BYTES + 1)
    if len(archive) > MAX_ARCHIVE_BYTES:
        raise SchemaUnreadable(TOO_LONG)
    return archive


def _has_ended(process: "subprocess.Popen[bytes]") -> bool:
    """Wait for the program's end; False after STALL_TIMEOUT without progress, or MAX_DUMP_TIME."""
    watch = Watch(process.pid)
    with open_directory(Path(settings.STATE_DIR) / "branches") as branches:

        def look() -> Movement:
            require_reserve(branches)
            return watch.look()

        return wait_while_progressing(
            lambda: process.poll() is not None,
            look,
            stall_timeout=STALL_TIMEOUT,
            until=time.monotonic() + MAX_DUMP_TIME,
        )

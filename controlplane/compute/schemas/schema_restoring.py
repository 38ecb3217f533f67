"""Creates the schema of a database from an archive of pg_dump, with no more rights than a client.

Postgres evaluates parts of what clients wrote when it creates it: literals of domains and of types
that contain them, immutable functions in partition keys, indexes and more. It does so with the
rights of the session's role. So all of it is created by a role that is no superuser, is no member
of another role, and may do nothing outside of the database (`restorer`). It owns what it creates,
so that nothing is refused for a lack of rights, until all is there.

The platform does the rest, by statements that evaluate nothing: the database, its extensions, and
afterwards owners, privileges, comments and settings. Each extension is created by its owner in the
source, so Postgres decides whether that role may. This comes before everything that clients wrote,
so no script of an extension meets an object of theirs.

While the restorer owns everything, evaluated code of one client could change what another one
wrote. Every definition is therefore read with the session's first settings (`define`), and an
event trigger refuses each statement about definitions that code executes (GUARD). Code may still
write into what the restorer owns, so a schema in which it has is refused (UNTOUCHED).
"""

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from django.conf import settings

from controlplane.compute.host.binaries import major_at
from controlplane.compute.host.patience import report_progress
from controlplane.compute.host.space import require_reserve
from controlplane.compute.host.tree import open_directory
from controlplane.compute.processes.session import (
    Session,
    SessionTimedOut,
    pinned_options,
    session,
    values_of,
)
from controlplane.compute.schemas.dump_archive import Entry
from controlplane.compute.schemas.schema import is_connection_lost

# Seconds that a statement may take.
TIMEOUT = 50.0
MAX_PASSES = 20
# What the platform creates itself, or does not need.
NOT_CREATED = {b"DATABASE", b"EXTENSION", b"ENCODING", b"STDSTRINGS", b"SEARCHPATH"}
# How statements in an archive are written, and are read here.
READ_AS = {
    b"ENCODING": b"SET client_encoding = 'SQL_ASCII';\n",
    b"STDSTRINGS": b"SET standard_conforming_strings = 'on';\n",
}
# What the platform executes when everything is there and has its owner.
AFTERWARDS = {b"ACL", b"DEFAULT ACL", b"COMMENT", b"DATABASE PROPERTIES"}
# Kinds that have an owner of their own.
OWNED = {
    *(b"AGGREGATE", b"COLLATION", b"CONVERSION", b"DATABASE", b"DOMAIN", b"FOREIGN TABLE"),
    *(b"FUNCTION", b"MATERIALIZED VIEW", b"OPERATOR", b"OPERATOR CLASS", b"OPERATOR FAMILY"),
    *(b"PROCEDURE", b"PUBLICATION", b"SCHEMA", b"SEQUENCE", b"SERVER", b"STATISTICS", b"TABLE"),
    *(b"TEXT SEARCH CONFIGURATION", b"TEXT SEARCH DICTIONARY", b"TYPE", b"VIEW"),
}
# A table's sequences get its owner with it, and refuse another.
TABLES = (b"ALTER TABLE ", b"ALTER FOREIGN TABLE ")
# Statements that create the extensions, each as its owner if that is a client.
EXTENSIONS = """
SELECT CASE WHEN rolname = current_user THEN create_it ELSE format(
    'GRANT CREATE ON DATABASE %1$I TO %2$I; SET ROLE %2$I; %3$s; RESET ROLE;'
    'REVOKE CREATE ON DATABASE %1$I FROM %2$I', current_database(), rolname, create_it) END
FROM (SELECT e.oid, rolname,
        format('CREATE EXTENSION %I SCHEMA %I', extname, nspname) AS create_it
    FROM pg_extension e JOIN pg_namespace n ON n.oid = extnamespace
    JOIN pg_roles r ON r.oid = extowner WHERE e.oid >= 16384) AS found ORDER BY oid
"""
# In place of {0} comes the restorer's name.
ADMIT = """
DO $do$ DECLARE found text; BEGIN
    FOR found IN SELECT format('CREATE, CONNECT ON DATABASE %I', current_database())
        UNION ALL SELECT format('USAGE, CREATE ON SCHEMA %I', nspname) FROM pg_namespace
            WHERE nspname !~ '^pg_' AND nspname <> 'information_schema'
                AND nspowner <> '{0}'::regrole
        UNION ALL SELECT format('USAGE ON FOREIGN DATA WRAPPER %I', fdwname)
            FROM pg_foreign_data_wrapper
    LOOP EXECUTE format('GRANT %s TO {0}', found); END LOOP;
END $do$;
"""
# In the context of a statement that a function executes, the function has lines of its own.
GUARD = r"""
CREATE SCHEMA {0};
CREATE FUNCTION {0}.refuse() RETURNS event_trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $body$
DECLARE context text; BEGIN
    GET DIAGNOSTICS context = PG_CONTEXT;
    IF strpos(context, E'\n') > 0
        AND EXISTS (SELECT FROM pg_roles WHERE rolname = session_user AND NOT rolsuper) THEN
        RAISE insufficient_privilege USING MESSAGE = 'a definition must not change others';
    END IF;
END $body$;
CREATE EVENT TRIGGER {0} ON ddl_command_start EXECUTE FUNCTION {0}.refuse();
"""
# Only evaluated code can have put rows into a table, or used a sequence. No table is queried, since
# planning a query evaluates expressions of the table's indexes, here as a superuser.
UNTOUCHED = """
DO $do$ DECLARE found record; is_written boolean; BEGIN
    FOR found IN SELECT c.oid::regclass AS name, seqstart FROM pg_class c
        LEFT JOIN pg_sequence ON seqrelid = c.oid
        WHERE relkind IN ('r', 'S') AND relowner = '{0}'::regrole
    LOOP
        IF found.seqstart IS NULL THEN
            is_written := pg_catalog.pg_relation_size(found.name) > 0;
        ELSE
            EXECUTE format(
                'SELECT FROM %s WHERE is_called OR last_value <> %s', found.name, found.seqstart);
            GET DIAGNOSTICS is_written = ROW_COUNT;
        END IF;
        IF is_written THEN
            RAISE 'code of a client writes into % when the schema is created', found.name;
        END IF;
    END LOOP;
END $do$;
"""
UNGUARD = "DROP EVENT TRIGGER {0}; DROP SCHEMA {0} CASCADE; DROP OWNED BY {0}"
# Before Postgres 17, the multirange type of a range type keeps its owner.
MULTIRANGES = b"""
SELECT format('ALTER TYPE %s OWNER TO %s', m.oid::regtype, t.typowner::regrole)
FROM pg_range JOIN pg_type t ON t.oid = rngtypid JOIN pg_type m ON m.oid = rngmultitypid
WHERE m.typowner <> t.typowner
"""
STILL_OWNED = """
SELECT pg_describe_object(classid, objid, objsubid) FROM pg_shdepend
WHERE refclassid = 'pg_authid'::regclass AND refobjid = '{0}'::regrole AND deptype = 'o'
    AND dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


class SchemaNotCopied(Exception):
    """The schema could not be read or written; the message says why, in Postgres's words."""


class CopyInterrupted(Exception):
    """A Postgres that the schema was copied from or to went away meanwhile."""


@contextmanager
def restorer(sockets: Path) -> Iterator[str]:
    """Yields the name of a new role that may log in; it is dropped at the end. Use it for a single
    database, since it may change the settings of its own next session. Raises psycopg.Error."""
    name = f"perch_restorer_{secrets.token_hex(8)}"
    with session(sockets) as platform:
        platform.execute(f"CREATE ROLE {name} LOGIN".encode())
    yield name
    with session(sockets) as platform:
        platform.execute(f"DROP ROLE {name}".encode())


def create_schema(
    sockets: Path, name: str, entries: Sequence[Entry], extensions: Sequence[bytes], role: str
) -> None:
    """Create the database with everything in the archive. `extensions` has the rows of EXTENSIONS,
    `role` is that of `restorer`. Raises SchemaNotCopied, CopyInterrupted, NotEnoughSpace,
    patience.Cancelled."""

    def of(text: str) -> bytes:
        return text.format(role).encode()

    written = [(entry.kind, entry.definition) for entry in entries if entry.kind in READ_AS]
    if sorted(written) != sorted(READ_AS.items()):
        raise SchemaNotCopied("the archive is written in another encoding than it is read in")
    schemas = [entry for entry in entries if entry.kind == b"SCHEMA"]
    others = [
        entry for entry in entries if entry.kind not in NOT_CREATED | AFTERWARDS | {b"SCHEMA"}
    ]
    gifts = [_owner_statement(entry) for entry in entries if entry.owner and entry.kind in OWNED]
    gifts.sort(key=lambda statement: not statement.startswith(TABLES))

    with _running(sockets, "postgres") as platform:
        _create(platform, [entry for entry in entries if entry.kind == b"DATABASE"])
    with _running(sockets, name) as platform:
        platform.execute(of(ADMIT))
    with _running(sockets, name, role) as restoring:
        _create(restoring, schemas)
    with _running(sockets, name) as platform:
        for statement in extensions:
            platform.execute(statement)
        platform.execute(of(ADMIT))
        platform.execute(of(GUARD))
    with _running(sockets, name, role) as restoring:
        _create(restoring, others)
    with _running(sockets, name) as platform:
        platform.execute(of(UNTOUCHED))
        for statement in filter(None, gifts):
            platform.execute(statement)
        for row in platform.execute(MULTIRANGES).fetchall():
            platform.execute(*values_of(row, bytes))
        for row in platform.execute(of(STILL_OWNED)).fetchall():
            (left,) = values_of(row, bytes)
            raise SchemaNotCopied(f"nobody owns the {left.decode(errors='replace')}")
        platform.execute(of(UNGUARD))
        _create(platform, [entry for entry in entries if entry.kind in AFTERWARDS])


def client_options(sockets: Path) -> str:
    """The settings of a session that creates what clients wrote, with no more rights than theirs.
    What a database or role sets does not apply."""
    return pinned_options(
        TIMEOUT,
        major_at(sockets),
        of_superuser=False,
        # pg_catalog comes before the schema of temporary objects.
        search_path="pg_catalog,pg_temp",
        check_function_bodies="off",
        xmloption="content",
        array_nulls="on",
        transform_null_equals="off",
    )


@contextmanager
def _running(sockets: Path, database: str, role: str | None = None) -> Iterator[Session]:
    """A session that converts no text, as statements are in the database's own encoding."""
    others: dict[str, Any] = {"user": role, "options": client_options(sockets)} if role else {}
    try:
        with session(
            sockets, database, bound=TIMEOUT, client_encoding="SQL_ASCII", **others
        ) as connection:
            yield connection
    except psycopg.Error as error:
        raise _creation_error(error) from error


def _create(connection: Session, entries: Sequence[Entry]) -> None:
    """Create the objects. pg_dump does not know what the body of a function needs, so what fails is
    tried again when others are there."""
    with open_directory(Path(settings.STATE_DIR) / "branches") as branches:
        for _ in range(MAX_PASSES):
            put_off, refusals = [], []
            for entry in entries:
                try:
                    define(connection, entry.definition)
                except psycopg.Error as error:
                    put_off.append(entry)
                    refusals.append(_creation_error(error, entry))
                    if isinstance(error, psycopg.OperationalError):
                        raise refusals[-1] from error
                require_reserve(branches)
                report_progress()
            if len(put_off) == len(entries):
                break
            entries = put_off
    if refusals:
        raise refusals[0]


def define(connection: Session, definition: bytes) -> None:
    """Execute the definition with the settings that the session began with, which code that was
    evaluated before may have changed. They are reset by a message of their own, since Postgres
    splits a message into statements and literals before it executes any of it. Raises
    psycopg.Error."""
    connection.execute(b"RESET ALL")
    told = connection.info.parameter_status
    if (told("client_encoding"), told("standard_conforming_strings")) != ("SQL_ASCII", "on"):
        raise psycopg.DataError("RESET ALL left settings that change how statements are read")
    connection.execute(definition)


def _creation_error(error: psycopg.Error, entry: Entry | None = None) -> Exception:
    words = str(error.diag.message_primary or error)
    is_lost = error.sqlstate is None and not isinstance(error, SessionTimedOut)
    if is_lost or is_connection_lost(words):
        return CopyInterrupted(words)
    if entry:
        named = b" ".join((entry.kind, entry.schema, entry.name)).decode(errors="replace")
        words = f"{' '.join(named.split())}: {words}"
    return SchemaNotCopied(words)


def _owner_statement(entry: Entry) -> bytes:
    """The statement that gives the object its owner; b"" if it has that of its table."""
    # The schema "public" is there already: what would drop it is a comment.
    public = b"DROP SCHEMA public;" if (entry.kind, entry.name) == (b"SCHEMA", b"public") else b""
    verb, blank, named = (public or entry.drop).strip().rstrip(b";").partition(b" ")
    if verb != b"DROP":
        return b""
    owner = b'"' + entry.owner.replace(b'"', b'""') + b'"'
    return b"ALTER" + blank + named + b" OWNER TO " + owner

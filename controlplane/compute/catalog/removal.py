"""Removes a role or a database from a compute, whatever its owner has set, holds open or does not
read. `catalog` calls this. Every function may be called again after a crash at any point.
"""

import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import LiteralString

import psycopg
from psycopg import sql

from controlplane.compute.host.patience import report_progress
from controlplane.compute.processes.session import Session, is_utf8, name_of, session

log = logging.getLogger(__name__)

# What Postgres logs every five seconds while it waits until another backend has closed the files of
# a database.
WAITING_FOR = re.compile(r"still waiting for backend with PID (\d+) to accept ProcSignalBarrier")
# What the role wrote must not run with the heir's rights. The transaction's id tells what was given
# away from what the heir had. ALTER would refuse temporary views of other sessions, and ambiguous
# procedures. Rules on views can only be dropped. Whoever has MAINTAIN on a table executes the
# functions of its indexes as its owner. The query of a materialized view is executed as its owner
# by every REFRESH, which nothing can prevent.
GIVE_AWAY = """DO $$ DECLARE id xid := pg_current_xact_id()::xid; statement text; BEGIN
    FOR statement IN SELECT oid::regclass FROM pg_class WHERE relkind = 'm' AND relowner = {role}
    LOOP RAISE 'it owns the materialized view %, whose query REFRESH would execute with the rights '
        'of its new owner: drop the view, or change its owner', statement USING ERRCODE = '0A000';
    END LOOP;
    EXECUTE 'REASSIGN OWNED BY ' || {role}::oid::regrole || ' TO ' || {heir}::oid::regrole;
    UPDATE pg_proc SET prosecdef = false WHERE prosecdef AND xmin = id;
    UPDATE pg_class SET reloptions = '{{security_invoker=true}}' || ARRAY(
        SELECT o FROM unnest(reloptions) o WHERE NOT starts_with(o, 'security_invoker='))
    WHERE relkind = 'v' AND xmin = id;
    FOR statement IN WITH given AS (SELECT * FROM pg_class WHERE xmin = id)
    SELECT format(CASE WHEN relkind = 'v' OR relpersistence = 't' THEN 'DROP RULE %I ON %s'
            ELSE 'ALTER TABLE %2$s DISABLE RULE %1$I' END, rulename, ev_class::regclass)
        FROM given JOIN pg_rewrite r ON ev_class = given.oid WHERE ev_type <> '1'
            AND (ev_qual::text <> '<>' OR pg_get_ruledef(r.oid) NOT LIKE '% DO INSTEAD NOTHING;')
    UNION ALL SELECT format('REVOKE MAINTAIN ON %s FROM %s CASCADE', oid::regclass,
            coalesce(nullif(grantee, 0)::regrole::text, 'PUBLIC'))
        FROM given, aclexplode(relacl) WHERE privilege_type = 'MAINTAIN' AND grantee <> relowner
    LOOP EXECUTE statement; END LOOP;
    EXECUTE 'DROP OWNED BY ' || {role}::oid::regrole;
END $$"""
# Seconds: giving away is a single transaction, however much there is to give away.
GIVE_AWAY_TIMEOUT = 55.0
# Open a database, and note its limit where only a superuser can; and close all that were opened.
OPEN = (
    "ALTER ROLE CURRENT_USER IN DATABASE %1$s SET perch.connection_limit = {};"
    "ALTER DATABASE %1$s ALLOW_CONNECTIONS true CONNECTION LIMIT 0"
)
CLOSE_AGAIN = """DO $$ DECLARE name name; before text; BEGIN
    FOR name, before IN SELECT datname, split_part(setconfig[1], '=', 2) FROM pg_db_role_setting
        JOIN pg_database d ON d.oid = setdatabase
        WHERE setrole = current_user::regrole AND datconnlimit <> -2
    LOOP
        EXECUTE format('ALTER ROLE CURRENT_USER IN DATABASE %1$I RESET ALL;'
            'ALTER DATABASE %1$I ALLOW_CONNECTIONS false CONNECTION LIMIT %2$s', name, before);
    END LOOP;
END $$"""
# The connection limit that marks a database whose DROP was interrupted: it can only be dropped.
DATCONNLIMIT_INVALID = -2
# What `DatabaseRow.of` takes.
COLUMNS = "pg_database.oid::bigint, namesend(datname), datallowconn, datconnlimit"
# The quoted names of those with an oid.
ROLE, DATABASE = "{}::oid::regrole", "(SELECT quote_ident(datname) FROM pg_database WHERE oid = {})"
IS_ROLE = "SELECT FROM pg_roles WHERE oid = %s"


@dataclass(frozen=True)
class DatabaseRow:
    """A database as the compute's catalog has it."""

    oid: int
    name: str
    allows_connections: bool
    connection_limit: int

    @classmethod
    def of(cls, oid: object, name: object, lets_in: object, limit: object) -> "DatabaseRow":
        """Of a row of COLUMNS."""
        return cls(int(str(oid)), name_of(name), bool(lets_in), int(str(limit)))


def drop_database(socket_dir: Path, name: str) -> None:
    """Drop a database if it exists, with its sessions and their prepared transactions.

    Postgres waits until every backend of the compute, in other databases too, has closed the
    database's files. A backend whose client does not read its results cannot; it is terminated.
    Raises psycopg.Error.
    """
    with session(socket_dir) as connection:
        found = connection.execute(
            "SELECT datistemplate FROM pg_database WHERE datname = %s", [name]
        ).fetchone()
        if found is None:
            return
        roll_back_prepared(socket_dir, connection, "datname = %s", name)
        if found[0]:
            run(connection, "ALTER DATABASE {} IS_TEMPLATE false", name)
        connection.execute("SET client_min_messages = log")
        connection.add_notice_handler(lambda notice: _end_blocking_backend(socket_dir, notice))
        run(connection, "DROP DATABASE {} WITH (FORCE)", name)


def drop_role(
    socket_dir: Path, name: str, *, oid: int | None, heirs: Mapping[str, str], otherwise: str
) -> None:
    """Drop the role with this oid, whatever its name is now; without an oid, the role of this name.
    What it owns in a database goes to the role that `heirs` names for that database.

    If `heirs` names none, or none that exists, it goes to `otherwise`, never to the platform. Its
    functions, views and rules no longer run with their owner's rights. The role loses its login
    first, so it cannot connect even if the rest fails. Raises psycopg.Error.
    """
    with session(socket_dir) as connection:
        close_again(connection)
        role = oid or _oid_of(connection, name)
        if role is None or not connection.execute(IS_ROLE, [role]).fetchall():
            return
        run_by_oid(connection, "ALTER ROLE %s NOLOGIN PASSWORD NULL", ROLE, role)
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usesysid = %s", [role]
        )
        roll_back_prepared(socket_dir, connection, "owner = pg_get_userbyid(%s)", role)
        for database in _databases_with_role(connection, role):
            heir = _oid_of(connection, heirs.get(database.name, otherwise))
            # The heir may be a new role with the dropped one's name, which does not exist yet.
            if heir is None or heir == role:
                heir = _oid_of(connection, otherwise)
            _give_away(socket_dir, connection, database, role, heir)
        # What belongs to no database: databases themselves, and rights to them.
        heir = _oid_of(connection, otherwise)
        run_by_oid(connection, "REASSIGN OWNED BY %s TO %s", ROLE, role, heir)
        run_by_oid(connection, "DROP OWNED BY %s", ROLE, role)
        run_by_oid(connection, "DROP ROLE %s", ROLE, role)


def _give_away(
    socket_dir: Path, connection: Session, database: DatabaseRow, role: int, heir: int | None
) -> None:
    """In one database, make `heir` the owner of all that `role` owns, and drop the role's rights.

    Each database stores its own ownership. Roles are named by their oids, because their names are
    stored in UTF-8, and the database's own encoding may be another.
    """
    if database.connection_limit == DATCONNLIMIT_INVALID:
        name = database.name
        if not is_utf8(name):
            name = f"perch_dropped_{database.oid}"
            run_by_oid(connection, f"ALTER DATABASE %s RENAME TO {name}", DATABASE, database.oid)
        run(connection, "DROP DATABASE {}", name)
        return
    with session_in(socket_dir, connection, database) as inside:
        inside.execute(GIVE_AWAY.format(role=role, heir=heir).encode())


@contextmanager
def session_in(socket_dir: Path, connection: Session, database: DatabaseRow) -> Iterator[Session]:
    """A session in a client's database.

    A database that allows no connections has to allow them meanwhile. A connection limit of 0 keeps
    out all roles but the platform's, even if we crash before it is closed again (`close_again`).
    """
    if not database.allows_connections:
        run_by_oid(connection, OPEN.format(database.connection_limit), DATABASE, database.oid)
    try:
        # No conversion: not every encoding has one, and only ASCII is sent there.
        with session(
            socket_dir, database.name, bound=GIVE_AWAY_TIMEOUT, client_encoding="SQL_ASCII"
        ) as inside:
            yield inside
    finally:
        if not database.allows_connections:
            close_again(connection)


def close_again(connection: Session) -> None:
    """Close the databases that `session_in` has opened, also before a crash. The caller works on
    none in one."""
    connection.execute(CLOSE_AGAIN.encode())


def _databases_with_role(connection: Session, role: int) -> list[DatabaseRow]:
    """The databases in which the role owns something or has rights to something."""
    rows = connection.execute(
        f"SELECT DISTINCT {COLUMNS}"  # noqa: S608 # ours
        " FROM pg_shdepend JOIN pg_database ON pg_database.oid = dbid"
        " WHERE refclassid = 'pg_authid'::regclass AND refobjid = %s",
        [role],
    ).fetchall()
    return [DatabaseRow.of(*row) for row in rows]


def roll_back_prepared(
    socket_dir: Path, connection: Session, condition: LiteralString, *values: object
) -> None:
    """Roll back the prepared transactions that match: they would hold their locks for ever. Each
    can be rolled back only in its own database."""
    rows = connection.execute(
        f"SELECT textsend(gid), {COLUMNS}"  # noqa: S608 # ours
        f" FROM pg_prepared_xacts JOIN pg_database ON datname = database WHERE {condition}",
        values,
    ).fetchall()
    for gid, *database in rows:
        assert isinstance(gid, bytes)
        with session_in(socket_dir, connection, DatabaseRow.of(*database)) as inside:
            # As bytes, in whichever encoding that database has.
            inside.execute(b"ROLLBACK PREPARED '" + gid.replace(b"'", b"''") + b"'")
        report_progress()


def _end_blocking_backend(socket_dir: Path, notice: psycopg.errors.Diagnostic) -> None:
    found = WAITING_FOR.search(notice.message_primary or "")
    if found:
        fields = {"endpoint": socket_dir.name, "backend": found[1]}
        log.warning("ended a backend whose client does not read", extra=fields)
        with session(socket_dir) as connection:
            connection.execute("SELECT pg_terminate_backend(%s)", [int(found[1])])


def _oid_of(connection: Session, role: str) -> int | None:
    row = connection.execute("SELECT oid FROM pg_roles WHERE rolname = %s", [role]).fetchone()
    return int(str(row[0])) if row else None


def run(connection: Session, statement: str, *names: str) -> None:
    """Run our own `statement`; only the names in it are untrusted."""
    connection.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))


def run_by_oid(connection: Session, statement: str, name: str, *oids: object) -> None:
    """Run our own `statement` on roles or databases with these oids; in place of each `%s` comes
    what `name`, ROLE or DATABASE, gives. Only the server can write a name that is not UTF-8."""
    names = ", ".join(map(name.format, oids))
    connection.execute(f"DO $$ BEGIN EXECUTE format('{statement}', {names}); END $$".encode())

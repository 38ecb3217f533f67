"""What an upgrade to another major version of Postgres (`major_upgrade`) does in the catalogs of a
branch's copy, before and after pg_upgrade runs.

The catalogs are the owner's, and pg_upgrade restores the schema as a superuser. Postgres evaluates
immutable functions when it restores partition keys, generated columns and more. So every function
that a client could have written loses its body in the copy before pg_upgrade runs, and gets it back
as the last step, when nothing is evaluated any more.
"""

from dataclasses import dataclass
from pathlib import Path

import psycopg

from controlplane.compute.extensions import has_extension
from controlplane.compute.patience import progressed
from controlplane.compute.session import Session, session

MOST_NAMED = 5
# Databases that cannot be entered, which pg_upgrade refuses; Postgres's own template0 is none.
CLOSED = """
SELECT datname, datconnlimit = -2 FROM pg_database
WHERE datname <> 'template0' AND (NOT datallowconn OR datconnlimit = -2) ORDER BY oid
"""
DATABASES = "SELECT datname FROM pg_database WHERE datname <> 'template0' ORDER BY oid"
EXTENSIONS = "SELECT extname FROM pg_extension ORDER BY extname"
PREPARED = "SELECT count(*), min(gid) FROM pg_prepared_xacts"
# Statements that create functions of the same signatures, by the functions' oids. plpgsql is in
# every database and takes all types that a client's function may have. Its validator does not
# compile the body while `check_function_bodies` is off.
STAND_INS = """
SELECT f.oid, format(
    'CREATE %s %I.%I(%s)%s LANGUAGE plpgsql%s AS $body$BEGIN RETURN%s; END$body$;',
    CASE prokind WHEN 'p' THEN 'PROCEDURE' ELSE 'FUNCTION' END, nspname, proname,
    pg_get_function_arguments(f.oid), ' RETURNS ' || pg_get_function_result(f.oid),
    CASE WHEN prokind = 'f' THEN
        CASE provolatile WHEN 'i' THEN ' IMMUTABLE' WHEN 's' THEN ' STABLE' ELSE ' VOLATILE' END
    END,
    CASE WHEN prokind = 'f' AND NOT proretset AND prorettype <> 'void'::regtype
        AND NOT coalesce(proargmodes && '{o,b}'::"char"[], false) THEN ' NULL' END)
FROM pg_proc f JOIN pg_namespace n ON n.oid = pronamespace
WHERE f.oid >= 16384 AND prokind IN ('f', 'p')
"""
# Functions that a client could have written, with a statement that takes their bodies and one that
# gives them back. Those of the platform's role were made by an extension's script. A partition key
# must not become constant, as it would with NULL in place of what such a function returns.
BODIES = f"""
SELECT f.oid::regprocedure::text, 'CREATE OR REPLACE' || substr(
        replace(stand_in, 'BEGIN RETURN NULL; END', format('BEGIN RETURN %s; END', CASE
            WHEN t.oid >= 16384 OR typtype <> 'b' THEN 'NULL' WHEN typcategory = 'N' THEN '0'
            WHEN typcategory = 'S' THEN '''''' WHEN typcategory = 'B' THEN 'false'
            WHEN t.oid IN ('date'::regtype, 'timestamp'::regtype, 'timestamptz'::regtype)
                THEN '''epoch''' ELSE 'NULL' END)), 7),
    pg_get_functiondef(f.oid)
FROM ({STAND_INS}) AS s(oid, stand_in) JOIN pg_proc f ON f.oid = s.oid
JOIN pg_language l ON l.oid = f.prolang JOIN pg_type t ON t.oid = f.prorettype
WHERE f.proowner <> 10 AND l.lanname NOT IN ('c', 'internal') ORDER BY f.oid
"""  # noqa: S608
# CREATE OR REPLACE forgets which extensions a function depends on.
DEPENDENCIES = """
SELECT format('ALTER ROUTINE %s DEPENDS ON EXTENSION %I', objid::regprocedure, extname)
FROM pg_depend JOIN pg_extension e ON e.oid = refobjid
WHERE classid = 'pg_proc'::regclass AND refclassid = 'pg_extension'::regclass AND deptype = 'x'
"""
# What an owner must not gain by the upgrade.
ROLES = """
SELECT rolname, rolsuper, rolcreaterole, rolcreatedb, rolcanlogin, rolreplication, rolbypassrls,
    rolpassword FROM pg_authid WHERE oid >= 16384 OR rolsuper ORDER BY oid
"""


class UpgradeRefused(Exception):
    """The branch's data cannot be of the other major version as it is; the message says why."""


class UpgradeFailed(Exception):
    """pg_upgrade, or what surrounds it, failed; the message has its words."""


@dataclass(frozen=True)
class _Function:
    """A function without its body."""

    name: str
    definition: bytes


@dataclass(frozen=True)
class Disarmed:
    """What the copy of the old data contained before its functions lost their bodies."""

    # By the names of the databases.
    functions: dict[str, list[_Function]]
    dependencies: dict[str, list[bytes]]
    roles: list[tuple[object, ...]]


def refuse_what_cannot_go(sockets: Path, to: int) -> None:
    """Raise UpgradeRefused for what pg_upgrade or the new version cannot take over."""
    with session(sockets) as connection:
        for name, is_half_dropped in connection.execute(CLOSED):
            raise UpgradeRefused(
                f'the database "{name}" '
                + (
                    "was dropped only in part: drop it again"
                    if is_half_dropped
                    else "accepts no connections: set its ALLOW_CONNECTIONS to true, or drop it"
                )
            )
        for count, gid in connection.execute(PREPARED):
            if count:
                raise UpgradeRefused(
                    f'it has prepared transactions, such as "{gid}": commit or roll them back'
                )
        names = [str(name) for (name,) in connection.execute(DATABASES)]
    for name in names:
        with session(sockets, name, client_encoding="SQL_ASCII") as connection:
            found = [_text(extension) for (extension,) in connection.execute(EXTENSIONS)]
        if missing := [extension for extension in found if not has_extension(extension, to)]:
            raise UpgradeRefused(
                f'the database "{name}" has the extension {named(missing)}, which Postgres {to} '
                "does not have on this host: drop it, or have the operator install it"
            )


def disarm(sockets: Path) -> Disarmed:
    """Take the bodies of all functions that clients could have written."""
    functions, dependencies = {}, {}
    with session(sockets) as connection:
        names = [str(name) for (name,) in connection.execute(DATABASES)]
        roles = connection.execute(ROLES).fetchall()
    for name in names:
        # No conversion: statements are in the database's own encoding.
        with session(sockets, name, client_encoding="SQL_ASCII") as connection:
            connection.execute("SET check_function_bodies = off")
            rows = connection.execute(BODIES.encode()).fetchall()
            dependencies[name] = [_bytes(row[0]) for row in connection.execute(DEPENDENCIES)]
            functions[name] = [_Function(_text(row[0]), _bytes(row[2])) for row in rows]
            for _, stand_in, _ in rows:
                connection.execute(_bytes(stand_in))
                progressed()
    return Disarmed(functions, dependencies, roles)


def rearm(sockets: Path, found: Disarmed) -> None:
    """Give the functions their bodies back. Postgres evaluates none of them meanwhile."""
    for name, functions in found.functions.items():
        with session(sockets, name, client_encoding="SQL_ASCII") as connection:
            connection.execute("SET check_function_bodies = off")
            for function in functions:
                _define(connection, name, function)
            for statement in found.dependencies[name]:
                connection.execute(statement)
    with session(sockets) as connection:
        roles = connection.execute(ROLES).fetchall()
    if roles != found.roles:
        raise UpgradeFailed("the roles differ from those before")


def _define(connection: Session, database: str, function: _Function) -> None:
    try:
        connection.execute(function.definition)
    except psycopg.Error as error:
        if isinstance(error, psycopg.OperationalError):
            raise
        raise UpgradeRefused(
            f'the function {function.name} in the database "{database}" is not valid any more: '
            f"{error.diag.message_primary or error}"
        ) from error
    progressed()


def named(names: list[str]) -> str:
    shown = ", ".join(f'"{name}"' for name in names[:MOST_NAMED])
    return shown + (f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else "")


def _bytes(value: object) -> bytes:
    assert isinstance(value, bytes)
    return value


def _text(value: object) -> str:
    return _bytes(value).decode(errors="replace")

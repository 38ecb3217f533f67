"""What an upgrade to another major version of Postgres (`major_upgrade`) does in the catalogs of a
branch's copy, before and after pg_upgrade runs.

The catalogs are the owner's, and pg_upgrade restores the schema as a superuser. Postgres evaluates
immutable functions when it restores partition keys, generated columns and more, and the checks of
domains wherever it reads a literal. So before pg_upgrade runs, every function that a client could
have written loses its body in the copy, and every domain its checks. They get them back as the last
step, from a role with no more rights than their owner's.
"""

import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

from controlplane.compute.catalog.rights import Rights, difference, rights_in
from controlplane.compute.catalog.system_views import RolesForged, refuse_forged
from controlplane.compute.extensions import has_extension
from controlplane.compute.host.patience import report_progress
from controlplane.compute.processes.session import Session, is_utf8, name_of, session
from controlplane.compute.schemas.schema import is_connection_lost
from controlplane.compute.schemas.schema_restoring import (
    GUARD,
    UNGUARD,
    client_options,
    define,
)

MAX_NAMED = 5
# Databases that cannot be entered, which pg_upgrade refuses; Postgres's own template0 is none.
CLOSED = """
SELECT datname, datconnlimit = -2 FROM pg_database
WHERE datname <> 'template0' AND (NOT datallowconn OR datconnlimit = -2) ORDER BY oid
"""
DATABASES = "SELECT datname FROM pg_database WHERE datname <> 'template0' ORDER BY oid"
DATABASES_OWNER = b"""
SELECT rolname FROM pg_database d JOIN pg_roles r ON r.oid = datdba
WHERE datname = current_database() AND NOT rolsuper
"""
EXTENSIONS = "SELECT extname FROM pg_extension ORDER BY extname"
PREPARED = "SELECT textsend(gid) FROM pg_prepared_xacts LIMIT 1"
# pg_upgrade makes databases and roles through a database that is UTF-8.
NAMES = """
SELECT 'database', namesend(datname) FROM pg_database
UNION ALL SELECT 'role', namesend(rolname) FROM pg_roles
"""
# The sessions of a running compute that was copied had them, or a crash has left them. pg_upgrade
# leaves them out. As the end of those sessions does, this drops what depends on them, too.
TEMPORARY = """
DO $$ DECLARE name text; BEGIN
    FOR name IN SELECT nspname FROM pg_namespace WHERE nspname ~ '^pg_(toast_)?temp_[0-9]+$'
        ORDER BY 1
    LOOP EXECUTE format('DROP SCHEMA %I CASCADE', name); END LOOP;
END $$
"""
# What a client could have written that is taken. Each row has its name, its owner, a statement
# that takes it, one by which the owner gives it back, and one that the platform executes then.
#
# The bodies of functions of every kind, as operators call even window functions; aggregates have
# none. Those of the platform's role were made by an extension's script. plpgsql is in every
# database and takes all types that such a function may have. A partition key must not become
# constant, as it would with NULL in place of what a function returns.
BODIES = """
SELECT 'the function ' || f.oid::regprocedure, rolname, format(
    'CREATE OR REPLACE %s %I.%I(%s)%s LANGUAGE plpgsql AS $body$BEGIN RETURN %s; END$body$',
    CASE prokind WHEN 'p' THEN 'PROCEDURE' ELSE 'FUNCTION' END, nspname, proname,
    pg_get_function_arguments(f.oid), ' RETURNS ' || pg_get_function_result(f.oid)
        || CASE provolatile WHEN 'i' THEN ' IMMUTABLE' WHEN 's' THEN ' STABLE' ELSE '' END
        || CASE prokind WHEN 'w' THEN ' WINDOW' ELSE '' END,
    CASE WHEN prokind = 'p' OR proretset OR t.oid = 'void'::regtype
            OR proargmodes && '{o,b}'::"char"[] THEN ''
        WHEN t.oid >= 16384 OR typtype <> 'b' THEN 'NULL' WHEN typcategory = 'N' THEN '0'
        WHEN typcategory = 'S' THEN '''''' WHEN typcategory = 'B' THEN 'false'
        WHEN t.oid IN ('date'::regtype, 'timestamp'::regtype, 'timestamptz'::regtype)
            THEN '''epoch''' ELSE 'NULL' END),
    pg_get_functiondef(f.oid), ''
FROM pg_proc f JOIN pg_namespace n ON n.oid = pronamespace
JOIN pg_language l ON l.oid = f.prolang JOIN pg_type t ON t.oid = f.prorettype
JOIN pg_roles r ON r.oid = f.proowner
WHERE f.oid >= 16384 AND f.proowner <> 10 AND l.lanname NOT IN ('c', 'internal') ORDER BY f.oid
"""
# CREATE OR REPLACE forgets which extensions a function depends on.
DEPENDENCIES = """
SELECT '', '', '', '',
    format('ALTER ROUTINE %s DEPENDS ON EXTENSION %I', objid::regprocedure, extname)
FROM pg_depend JOIN pg_extension e ON e.oid = refobjid
WHERE classid = 'pg_proc'::regclass AND refclassid = 'pg_extension'::regclass AND deptype = 'x'
"""
# For each owner, what gives a role the schemas that his functions and checks name, and lets it make
# functions anew in theirs. He may have lost his own rights there, and never had any to others.
SCHEMAS = """
SELECT rolname, format('GRANT USAGE%s ON SCHEMA %s TO ', more, name) FROM (
    SELECT DISTINCT owner, CASE type WHEN 'schema' THEN identity ELSE schema END,
        CASE type WHEN 'schema' THEN ', CREATE' END
    FROM (SELECT 'pg_proc'::regclass, oid, proowner FROM pg_proc
        UNION ALL SELECT 'pg_constraint'::regclass, c.oid, typowner
        FROM pg_constraint c JOIN pg_type t ON t.oid = contypid) AS given(class, id, owner)
    JOIN pg_depend ON classid = class AND objid = id,
    LATERAL pg_identify_object(refclassid, refobjid, 0) WHERE id >= 16384 AND owner <> 10
) AS named(owner, name, more) JOIN pg_roles r ON r.oid = owner
WHERE name !~ '^pg_' AND name <> 'information_schema'
"""
ADMIT = """
DO $do$ BEGIN EXECUTE format('GRANT CONNECT ON DATABASE %I TO {0}', current_database()); END $do$;
"""
# The checks of domains.
CHECKS = """
SELECT 'a check of the domain ' || contypid::regtype, rolname,
    format('ALTER DOMAIN %s DROP CONSTRAINT %I', contypid::regtype, conname),
    format('ALTER DOMAIN %s ADD CONSTRAINT %I %s NOT VALID', contypid::regtype, conname,
        regexp_replace(pg_get_constraintdef(c.oid), ' NOT VALID$', '')),
    format('UPDATE pg_constraint SET convalidated = %L WHERE contypid = %L::regtype'
        ' AND conname = %L; COMMENT ON CONSTRAINT %I ON DOMAIN %s IS %L', convalidated,
        contypid::regtype, conname, conname, contypid::regtype,
        obj_description(c.oid, 'pg_constraint'))
FROM pg_constraint c JOIN pg_type t ON t.oid = contypid JOIN pg_roles r ON r.oid = typowner
WHERE contype = 'c' AND typowner <> 10 ORDER BY c.oid
"""
# Debian's Postgres 15 keeps a version of each column among its options, and others refuse that
# option. It is needed to read rows as values of a composite type, whose options are not dumped.
FORGET_VERSIONS = """
UPDATE pg_attribute SET attoptions = nullif(ARRAY(
    SELECT o FROM unnest(attoptions) o WHERE NOT starts_with(o, 'pg_attver=')), '{}')
FROM pg_class c WHERE c.oid = attrelid AND c.oid >= 16384 AND relkind IN ('r', 'p', 'm', 'f')
    AND attoptions IS NOT NULL
"""


class UpgradeRefused(Exception):
    """The branch's data cannot be of the other major version as it is; the message says why."""


class UpgradeFailed(Exception):
    """pg_upgrade, or what surrounds it, failed; the message has its words."""


@dataclass(frozen=True)
class StrippedCode:
    """What the copy of the old data contained before."""

    # By the names of the databases: rows as of BODIES.
    taken: dict[str, list[tuple[bytes, ...]]]
    # By the names of the databases: rows as of SCHEMAS.
    schemas: dict[str, list[tuple[bytes, ...]]]
    rights: Rights


def refuse_unsupported(sockets: Path, to: int) -> None:
    """Raise UpgradeRefused for what pg_upgrade or the new version cannot take over."""
    with session(sockets) as connection:
        try:
            refuse_forged(connection)  # pg_upgrade grants by name
        except RolesForged as error:
            raise UpgradeRefused(str(error)) from error
        for kind, name in connection.execute(NAMES):
            if not is_utf8(name_of(name)):
                raise UpgradeRefused(
                    f'the name of the {kind} "{_text(name)}" is not valid UTF-8: rename it, from a '
                    "database of its encoding"
                )
        for name, is_half_dropped in connection.execute(CLOSED):
            raise UpgradeRefused(
                f'the database "{name}" '
                + (
                    "was dropped only in part: drop it again"
                    if is_half_dropped
                    else "accepts no connections: set its ALLOW_CONNECTIONS to true, or drop it"
                )
            )
        for (gid,) in connection.execute(PREPARED):
            raise UpgradeRefused(
                f'it has prepared transactions, such as "{_text(gid)}": commit or roll them back'
            )
        names = [str(name) for (name,) in connection.execute(DATABASES)]
    for name in names:
        with session(sockets, name, client_encoding="SQL_ASCII") as connection:
            found = [_text(extension) for (extension,) in connection.execute(EXTENSIONS)]
        if missing := [extension for extension in found if not has_extension(extension, to)]:
            raise UpgradeRefused(
                f'the database "{name}" has the extension {listed(missing)}, which Postgres {to} '
                "does not have on this host: drop it, or have the operator install it"
            )


def strip_client_code(sockets: Path) -> StrippedCode:
    """Take the bodies of all functions and the checks of all domains that clients could have
    written. Drops temporary objects: the data is a copy, in which no session has any."""
    with session(sockets) as connection:
        names = [str(name) for (name,) in connection.execute(DATABASES)]
    schemas = {}
    for name in names:
        with session(sockets, name, client_encoding="SQL_ASCII") as connection:
            connection.execute(TEMPORARY.encode())
            schemas[name] = _rows(connection, SCHEMAS)
    rights = rights_in(sockets, names)
    taken = {name: _strip_client_code(sockets, name) for name in names}
    return StrippedCode(taken, schemas, rights)


def _strip_client_code(sockets: Path, name: str) -> list[tuple[bytes, ...]]:
    # No conversion: statements are in the database's own encoding.
    with session(sockets, name, client_encoding="SQL_ASCII") as connection:
        connection.execute("SET check_function_bodies = off")
        functions, checks, dependencies = (
            _rows(connection, query) for query in (BODIES, CHECKS, DEPENDENCIES)
        )
        # Checks first, since arguments of functions may have literals of domains as defaults.
        for _, _, take, *_ in checks + functions:
            connection.execute(take)
            report_progress()
        connection.execute(FORGET_VERSIONS)
    return functions + checks + dependencies


def restore_client_code(sockets: Path, found: StrippedCode) -> None:
    """Give back what was taken. Raises UpgradeFailed if the rights are not those of before."""
    for name, rows in found.taken.items():
        with (
            session(sockets, name, client_encoding="SQL_ASCII") as platform,
            ExitStack() as held,
        ):
            acting: dict[bytes, Session] = {}
            for what, owner, _, give, rest in rows:
                try:
                    if owner and owner not in acting:
                        grants = [grant for one, grant in found.schemas[name] if one == owner]
                        acting_for = _acting_for(platform, sockets, name, owner, grants)
                        acting[owner] = held.enter_context(acting_for)
                    if give:
                        define(acting[owner], give)
                    if rest:
                        platform.execute(rest)
                except psycopg.Error as error:
                    words = error.diag.message_primary or str(error)
                    if isinstance(error, psycopg.OperationalError):
                        # Trying again helps, unless the database refuses the session.
                        _, refused, words = words.rpartition("FATAL: ")
                        if not refused or is_connection_lost(words):
                            raise
                    raise UpgradeRefused(
                        f'{_text(what)} in the database "{name}" cannot be restored: '
                        + words.strip()
                    ) from error
                report_progress()
    if changed := difference(found.rights, rights_in(sockets, list(found.taken))):
        raise UpgradeFailed(f"the upgrade would change rights: {changed}")


@contextmanager
def _acting_for(
    platform: Session, sockets: Path, database: str, owner: bytes, grants: list[bytes]
) -> Iterator[Session]:
    """A session with the rights of the role `owner`, of which it is not the session's own role, and
    what `grants` gives it."""
    role = f"perch_upgrade_{secrets.token_hex(8)}"
    if owner == b"pg_database_owner":
        # It can have no other members than the database's owner.
        if not (found := platform.execute(DATABASES_OWNER).fetchone()):
            raise UpgradeRefused(f'the database "{database}" belongs to the platform')
        owner = _bytes(found[0])
    member = b'GRANT "' + owner.replace(b'"', b'""') + b'" TO ' + role.encode()
    platform.execute(f"CREATE ROLE {role} LOGIN".encode())
    platform.execute(member)
    for grant in grants:
        platform.execute(grant + role.encode())
    platform.execute((ADMIT.format(role) + GUARD.format(role)).encode())
    options = client_options(sockets)
    with session(
        sockets, database, client_encoding="SQL_ASCII", user=role, options=options
    ) as acting:
        yield acting
    platform.execute(f"{UNGUARD.format(role)}; DROP ROLE {role}".encode())


def listed(names: list[str]) -> str:
    shown = ", ".join(f'"{name}"' for name in names[:MAX_NAMED])
    return shown + (f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else "")


def _rows(connection: Session, query: str) -> list[tuple[bytes, ...]]:
    return [tuple(map(_bytes, row)) for row in connection.execute(query.encode())]


def _bytes(value: object) -> bytes:
    assert isinstance(value, bytes)
    return value


def _text(value: object) -> str:
    return _bytes(value).decode(errors="replace")

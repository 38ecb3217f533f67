"""Makes a compute's roles and databases be what the metadata says they are.

Every step asks first what is there, so applying twice changes nothing, and a crash
half-way is mended by applying again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import LiteralString

from psycopg import sql

from controlplane.compute.session import Session, session

# Every role made through the API is a member: what they share is granted to it.
GROUP = "perch_superuser"

ROLE: LiteralString = "SELECT 1 FROM pg_roles WHERE rolname = %s"
DATABASE: LiteralString = "SELECT 1 FROM pg_database WHERE datname = %s"


@dataclass(frozen=True)
class RoleSpec:
    name: str
    verifier: str  # SCRAM-SHA-256$…, as Postgres stores it
    login: bool


@dataclass(frozen=True)
class DatabaseSpec:
    name: str
    owner: str
    # The name it had when it was last applied; a rename where it differs.
    applied_name: str | None


@dataclass(frozen=True)
class CatalogSpec:
    roles: Sequence[RoleSpec]
    databases: Sequence[DatabaseSpec]
    dropped_roles: Sequence[str]


def drop_databases(socket_dir: Path, names: Sequence[str]) -> None:
    """Drop those that are there, with their clients. Raises psycopg.Error."""
    with session(socket_dir) as connection:
        for name in names:
            if _exists(connection, DATABASE, name):
                _run(connection, "ALTER DATABASE {} IS_TEMPLATE false", name)
                _run(connection, "DROP DATABASE {} WITH (FORCE)", name)


def apply_catalog(socket_dir: Path, spec: CatalogSpec) -> None:
    """Bring the catalog of the compute in `socket_dir` to `spec`. Raises psycopg.Error."""
    with session(socket_dir) as connection:
        _create_group(connection)
        for role in spec.roles:
            _apply_role(connection, role)
        # Before any is made: a new one may take the name that another gives up.
        _rename_databases(connection, spec.databases)
        for database in spec.databases:
            _apply_database(connection, database)
    living = {role.name for role in spec.roles}
    for name in spec.dropped_roles:
        # One that was made again meanwhile is the new one already.
        if name not in living:
            _drop_role(socket_dir, name, spec)


def database_names(socket_dir: Path) -> set[str]:
    """The databases that are there. Raises psycopg.Error."""
    with session(socket_dir) as connection:
        rows = connection.execute("SELECT datname FROM pg_database").fetchall()
    return {str(name) for (name,) in rows}


def _create_group(connection: Session) -> None:
    if _exists(connection, ROLE, GROUP):
        return
    with connection.transaction():
        _run(connection, "CREATE ROLE {} NOLOGIN CREATEDB CREATEROLE", GROUP)
        for granted in ("pg_monitor", "pg_signal_backend", "pg_read_all_data", "pg_write_all_data"):
            _run(connection, "GRANT {} TO {} WITH ADMIN OPTION", granted, GROUP)


def _apply_role(connection: Session, role: RoleSpec) -> None:
    verb: LiteralString = "ALTER"
    if not _exists(connection, ROLE, role.name):
        verb = "CREATE"
    login: LiteralString = "LOGIN" if role.login else "NOLOGIN"
    statement = sql.SQL("{} ROLE {} {} CREATEDB CREATEROLE BYPASSRLS PASSWORD {}")
    connection.execute(
        statement.format(
            sql.SQL(verb), sql.Identifier(role.name), sql.SQL(login), sql.Literal(role.verifier)
        )
    )
    _run(connection, "GRANT {} TO {}", GROUP, role.name)


def _rename_databases(connection: Session, databases: Sequence[DatabaseSpec]) -> None:
    names = {database.name for database in databases}
    for database in databases:
        before, name = database.applied_name, database.name
        if before in (None, name) or not _exists(connection, DATABASE, str(before)):
            continue
        # Renamed already, before a crash: what has the old name now is another one, made since.
        if before in names and _exists(connection, DATABASE, name):
            continue
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [before]
        )
        _run(connection, "ALTER DATABASE {} RENAME TO {}", str(before), name)


def _apply_database(connection: Session, database: DatabaseSpec) -> None:
    if _exists(connection, DATABASE, database.name):
        _run(connection, "ALTER DATABASE {} OWNER TO {}", database.name, database.owner)
        return
    # Nobody can be connected to template0, and so stand in the way of a copy of it.
    statement: LiteralString = "CREATE DATABASE {} OWNER {} TEMPLATE template0"
    _run(connection, statement, database.name, database.owner)


def _drop_role(socket_dir: Path, name: str, spec: CatalogSpec) -> None:
    """Drop a role; what it owns goes to the owner of the database that holds it.

    In a database that somebody made by SQL it goes to the group. Never to the platform: a
    function that runs with its owner's rights would then have a superuser's.
    """
    owners = {database.name: database.owner for database in spec.databases}
    with session(socket_dir) as connection:
        if not _exists(connection, ROLE, name):
            return
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", [name]
        )
        rows = connection.execute("SELECT datname FROM pg_database WHERE datallowconn").fetchall()
    # Ownership is kept in each database on its own.
    for (database,) in rows:
        heir = owners.get(str(database), GROUP)
        with session(socket_dir, str(database)) as connection:
            _run(connection, "REASSIGN OWNED BY {} TO {}", name, heir)
            _run(connection, "DROP OWNED BY {}", name)
    with session(socket_dir) as connection:
        _run(connection, "DROP ROLE {}", name)


def _exists(connection: Session, query: LiteralString, name: str) -> bool:
    return connection.execute(query, [name]).fetchone() is not None


def _run(connection: Session, statement: LiteralString, *names: str) -> None:
    connection.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))

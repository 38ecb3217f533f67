"""Reads the roles of a cluster, and what Postgres keeps for them outside the databases, from one
compute, and makes them in a fresh one.

Names and values are passed as such, never as a script: a role's name, or a value set for a role, is
untrusted and must not be read as a statement. No role becomes a superuser.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import LiteralString

import psycopg
from psycopg import sql

from controlplane.compute.catalog.system_views import refuse_forged
from controlplane.compute.processes.session import Session, session

# Roles with a lower oid are Postgres's own.
ROLES = """
SELECT rolname, rolinherit, rolcreaterole, rolcreatedb, rolcanlogin, rolreplication, rolbypassrls,
    rolconnlimit, rolvaliduntil::text, rolpassword, shobj_description(oid, 'pg_authid')
FROM pg_authid WHERE oid >= 16384 ORDER BY oid
"""
# The last two columns exist since Postgres 16; they are NULL before.
MEMBERS = """
SELECT role.rolname, member.rolname, grantor.rolname, one.admin_option,
    (to_jsonb(one)->>'inherit_option')::boolean, (to_jsonb(one)->>'set_option')::boolean
FROM pg_auth_members one
JOIN pg_authid role ON role.oid = one.roleid
JOIN pg_authid member ON member.oid = one.member
JOIN pg_authid grantor ON grantor.oid = one.grantor
WHERE one.member >= 16384 ORDER BY one.grantor, one.roleid, one.member
"""
SETTINGS = """
SELECT rolname, unnest(setconfig) FROM pg_db_role_setting
JOIN pg_authid ON pg_authid.oid = setrole
WHERE setdatabase = 0 AND setrole >= 16384
"""
# Settings whose value is a list of names, each quoted if it needs to be.
LISTS = frozenset(
    {"local_preload_libraries", "search_path", "session_preload_libraries", "temp_tablespaces"}
)
FLAGS: Sequence[LiteralString] = (
    *("INHERIT", "CREATEROLE", "CREATEDB", "LOGIN", "REPLICATION", "BYPASSRLS"),
)

Row = tuple[object, ...]


@dataclass(frozen=True)
class ClusterRoles:
    """Rows as the queries above return them."""

    roles: Sequence[Row]
    members: Sequence[Row]
    settings: Sequence[Row]


def read_roles(socket_dir: Path) -> ClusterRoles:
    """Raises RolesForged, NotUtf8, psycopg.Error."""
    with session(socket_dir) as connection, connection.transaction():
        # One snapshot: what was checked is what is read.
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        refuse_forged(connection)
        return ClusterRoles(
            roles=connection.execute(ROLES).fetchall(),
            members=connection.execute(MEMBERS).fetchall(),
            settings=connection.execute(SETTINGS).fetchall(),
        )


def make_roles(socket_dir: Path, found: ClusterRoles) -> None:
    """Make the roles in the fresh cluster. Raises psycopg.Error."""
    with session(socket_dir) as connection:
        for role in found.roles:
            _make_role(connection, role)
        _grant_all(connection, list(found.members))
        for name, setting in found.settings:
            _set(connection, str(name), str(setting))


def _make_role(connection: Session, role: Row) -> None:
    name, *flags, limit, valid_until, password, comment = role
    words = [
        sql.SQL(word) if has_it else sql.SQL("NO") + sql.SQL(word)
        for word, has_it in zip(FLAGS, flags, strict=True)
    ]
    words.append(sql.SQL("CONNECTION LIMIT {}").format(sql.Literal(limit)))
    if valid_until is not None:
        words.append(sql.SQL("VALID UNTIL {}").format(sql.Literal(valid_until)))
    if password is not None:
        words.append(sql.SQL("PASSWORD {}").format(sql.Literal(password)))
    known_as = sql.Identifier(str(name))
    statement = sql.SQL("CREATE ROLE {} NOSUPERUSER {}")
    connection.execute(statement.format(known_as, sql.SQL(" ").join(words)))
    if comment is not None:
        statement = sql.SQL("COMMENT ON ROLE {} IS {}")
        connection.execute(statement.format(known_as, sql.Literal(comment)))


def _grant_all(connection: Session, members: list[Row]) -> None:
    """Grant every membership as its original grantor. A grantor may first need a membership itself,
    so refused grants are retried after others succeeded. Raises psycopg.Error if none of the
    remaining grants is possible."""
    while members:
        put_off, refusal = [], None
        for member in members:
            try:
                connection.execute(_grant(member))
            except psycopg.errors.InsufficientPrivilege as error:
                put_off.append(member)
                refusal = error
        if refusal is not None and len(put_off) == len(members):
            raise refusal
        members = put_off


def _grant(member: Row) -> sql.Composed:
    role, name, grantor, admin, inherit, may_set = member
    options: sql.Composable = sql.SQL("WITH ADMIN OPTION" if admin else "")
    if inherit is not None:
        options = sql.SQL("WITH ADMIN {}, INHERIT {}, SET {}").format(admin, inherit, may_set)
    return sql.SQL("GRANT {} TO {} {} GRANTED BY {}").format(
        sql.Identifier(str(role)),
        sql.Identifier(str(name)),
        options,
        sql.Identifier(str(grantor)),
    )


def _set(connection: Session, role: str, setting: str) -> None:
    name, _, value = setting.partition("=")
    # A name with dots is an extension's setting; each part is an identifier.
    parts = [sql.Identifier(role), sql.Identifier(*name.split("."))]
    if name not in LISTS:
        statement = sql.SQL("ALTER ROLE {} SET {} TO {}")
        connection.execute(statement.format(*parts, sql.Literal(value)))
        return
    # As one literal, the value would be a list of a single name.
    try:
        connection.execute("SELECT pg_catalog.set_config(%s, %s, false)", [name, value])
        connection.execute(sql.SQL("ALTER ROLE {} SET {} FROM CURRENT").format(*parts))
    finally:
        connection.execute(sql.SQL("RESET {}").format(parts[1]))

"""Makes a compute's roles and databases match the metadata.

Every step first looks at what is there. So applying twice changes nothing, and after a crash
halfway, applying again completes the work. Each role and each database is applied on its own: if
something that its owner has set prevents it, that one alone fails (`Failures`).

A role gets a placeholder for its password (`reading`). The proxy has checked the client's
password before anything reaches the compute, so the compute holds neither password nor verifier.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import LiteralString, TypeVar

import psycopg
from psycopg import sql

from controlplane.compute.catalog.reading import end_sessions_begun_before
from controlplane.compute.catalog.removal import drop_database, drop_role, run
from controlplane.compute.catalog.system_views import RolesForged, refuse_forged
from controlplane.compute.host.patience import report_progress
from controlplane.compute.processes.session import Session, session
from controlplane.compute.settings.configuration import CREATEROLE_LIMITED_SINCE

log = logging.getLogger(__name__)

# Every role made through the API is a member of this group, which holds their common privileges.
GROUP = "perch_superuser"

ROLE: LiteralString = "SELECT 1 FROM pg_roles WHERE rolname = %s"
REPLICATES: LiteralString = ROLE + " AND rolreplication"
DATABASE: LiteralString = "SELECT 1 FROM pg_database WHERE datname = %s"
# A role that the API has made. No SQL can make a role a member of GROUP.
MEMBER: LiteralString = """
SELECT 1 FROM pg_auth_members
WHERE roleid = 'perch_superuser'::regrole AND pg_get_userbyid(member) = %s
"""
OWNED_BY: LiteralString = DATABASE + " AND pg_get_userbyid(datdba) = %s"


@dataclass(frozen=True)
class RoleSpec:
    name: str
    login: bool
    # True if it may make replication slots and connect for replication.
    replication: bool = False
    # Its oid, if it was seen in the compute. If it is not there now, SQL has dropped it.
    oid: int | None = None
    # True if SQL made it: it has no more rights than SQL gave it.
    is_plain: bool = False
    # A placeholder; None for no password.
    password: str | None = None
    # True if the API has set a new password: it overrides what SQL has set for the role's login.
    has_new_password: bool = False
    sessions_end_at: datetime | None = None


@dataclass(frozen=True)
class DatabaseSpec:
    name: str
    owner: str
    # Its name when it was last applied; if that differs from `name`, the database is renamed.
    applied_name: str | None


@dataclass(frozen=True)
class DroppedRole:
    name: str
    # None if it was never seen; otherwise it is dropped under whatever name SQL gave it since.
    oid: int | None = None


@dataclass(frozen=True)
class DroppedDatabase:
    # Its name in the compute.
    name: str


Item = RoleSpec | DatabaseSpec | DroppedRole | DroppedDatabase
Some = TypeVar("Some", bound=Item)
# SQLSTATE classes of errors that retrying does not cure: the request itself is not possible as
# things stand. The causes of other errors, such as a lock or a shortage, may pass.
FINAL = ("0A", "0L", "0P", "22", "28", "2F", "42")


@dataclass(frozen=True)
class Failure:
    """Why an item could not be applied, in Postgres's words."""

    words: str
    is_final: bool = False


Failures = dict[Item, Failure]


@dataclass(frozen=True)
class CatalogSpec:
    roles: Sequence[RoleSpec]
    databases: Sequence[DatabaseSpec]
    dropped_roles: Sequence[DroppedRole] = ()
    dropped_databases: Sequence[DroppedDatabase] = ()


def drop_databases(socket_dir: Path, names: Iterable[DroppedDatabase]) -> Failures:
    """Drop the databases that exist, and end the sessions of their clients.

    Raises psycopg.Error if the compute cannot be reached at all."""
    one_by_one = _OneByOne(socket_dir)
    one_by_one.do(names, lambda _, gone: drop_database(socket_dir, gone.name))
    return one_by_one.failures


def apply_catalog(socket_dir: Path, spec: CatalogSpec, items: Collection[Item]) -> Failures:
    """Make those of `items` as `spec` says, except dropped databases, which the caller has dropped
    before (`drop_databases`). If the compute's roles were forged, all of `items` fail.

    Raises psycopg.Error if the compute cannot be reached at all.
    """
    one_by_one = _OneByOne(socket_dir)
    with session(socket_dir) as connection:
        try:
            refuse_forged(connection)
        except RolesForged as error:
            log.error("roles forged", extra={"endpoint": socket_dir.name, "error": str(error)})
            failure = Failure(str(error), is_final=True)
            return {item: failure for item in items if not isinstance(item, DroppedDatabase)}
        _create_group(connection)
    heirs = {database.name: database.owner for database in spec.databases}

    def drop(_: Session, role: DroppedRole) -> None:
        drop_role(socket_dir, role.name, oid=role.oid, heirs=heirs, otherwise=GROUP)

    old, others = _split_dropped(spec)
    one_by_one.do((row for row in old if row in items), drop)
    one_by_one.failures |= _blocked_by_old(spec, items, old, one_by_one.failures)
    first = next((role.name for role in spec.roles if not role.is_plain), "")
    roles = [row for row in spec.roles if row in items]
    one_by_one.do(roles, lambda found, row: _apply_role(found, row, first))
    databases = [row for row in spec.databases if row in items]
    # All renames come before any creation: a new database may take a name that another gives up.
    names = {database.name for database in spec.databases}
    one_by_one.do(databases, lambda found, row: _rename_database(found, row, names))
    one_by_one.do(databases, _apply_database)
    one_by_one.do((row for row in others if row in items), drop)
    return one_by_one.failures


def _split_dropped(spec: CatalogSpec) -> tuple[list[DroppedRole], list[DroppedRole]]:
    """Split the dropped roles into those whose name a new role waits for, and the others. The first
    must be dropped before the new role is made, so that it does not become the old one. A dropped
    role that was never seen is left out if its name is that of a living role in the compute."""
    living = {role.name: role for role in spec.roles}
    old, others = [], []
    for role in spec.dropped_roles:
        new = living.get(role.name)
        if new is not None and new.oid is None:
            old.append(role)
        elif new is None or role.oid is not None:
            others.append(role)
    return old, others


def _blocked_by_old(
    spec: CatalogSpec,
    items: Collection[Item],
    old: Collection[DroppedRole],
    failures: Collection[Item],
) -> Failures:
    """Failures of the new roles whose name an old role still has that could not be dropped."""
    kept = {role.name for role in old if role not in items or role in failures}
    return {
        role: Failure("the deleted role with this name could not be dropped yet")
        for role in spec.roles
        if role in items and role.oid is None and role.name in kept
    }


@dataclass
class _OneByOne:
    """Works on one item after another, and leaves failed items out of later passes."""

    socket_dir: Path
    failures: Failures = field(default_factory=dict)

    def do(self, items: Iterable[Some], work: Callable[[Session, Some], object]) -> None:
        """Call `work` for each item that has not failed yet.

        Raises psycopg.Error if no session can be opened for the next item.
        """
        rest = [item for item in reversed(list(items)) if item not in self.failures]
        while rest:
            with session(self.socket_dir) as connection:
                while rest:
                    item = rest.pop()
                    try:
                        work(connection, item)
                        report_progress()
                    except psycopg.Error as error:
                        self.failures[item] = _failure(error)
                        break  # a session that did not answer in time cannot be used again


def _failure(error: psycopg.Error) -> Failure:
    """Without Postgres's hint, which is meant for someone who can run SQL there."""
    parts = (error.diag.message_primary, error.diag.message_detail)
    words = ": ".join(filter(None, parts)) or str(error)
    return Failure(words, is_final=(error.sqlstate or "").startswith(FINAL))


def _create_group(connection: Session) -> None:
    if _exists(connection, ROLE, GROUP):
        return
    with connection.transaction():
        connection.execute(
            sql.SQL("CREATE ROLE {} NOLOGIN {}").format(
                sql.Identifier(GROUP), _creation_rights(connection)
            )
        )
        for granted in ("pg_monitor", "pg_signal_backend", "pg_read_all_data", "pg_write_all_data"):
            run(connection, "GRANT {} TO {} WITH ADMIN OPTION", granted, GROUP)


def _apply_role(connection: Session, role: RoleSpec, first: str) -> None:
    """`first` is the branch's oldest role that the API made, usually its project's owner. It may
    use the others as if it had made them by SQL; it may not grant them to others. So no role that
    was made later can have it as a member, which would be a circle."""
    is_there = _exists(connection, ROLE, role.name)
    if not is_there and role.oid is not None:
        return  # SQL dropped it: its row is removed when the catalog is next read
    if is_there and role.oid is None and not role.is_plain:
        # Whoever has made it by SQL may act as it, so it must get no rights.
        _require(connection, MEMBER, role.name, of="role")
    with connection.transaction():  # a role of ours is never seen outside of GROUP
        if not is_there or role.has_new_password:
            _write_role(connection, role, is_there=is_there)
        if not role.is_plain:
            run(connection, "GRANT {} TO {}", GROUP, role.name)
    if role.has_new_password and role.sessions_end_at is not None:
        end_sessions_begun_before(connection, role.name, role.sessions_end_at)
    if role.is_plain:
        return
    if role.name != first and _exists(connection, ROLE, first):
        run(connection, "GRANT {} TO {}", role.name, first)
    if role.replication and not _exists(connection, REPLICATES, role.name):
        run(connection, "ALTER ROLE {} REPLICATION", role.name)


def _write_role(connection: Session, role: RoleSpec, *, is_there: bool) -> None:
    verb, words = sql.SQL("ALTER" if is_there else "CREATE"), list[sql.SQL]()
    if not (is_there and role.is_plain):
        words.append(sql.SQL("LOGIN" if role.login else "NOLOGIN"))
    if not role.is_plain:
        words += [_creation_rights(connection), sql.SQL("BYPASSRLS")]
    # A role whose validity has expired cannot log in, whatever its password.
    words.append(sql.SQL("VALID UNTIL 'infinity'"))
    statement = sql.SQL("{} ROLE {} {} PASSWORD {}").format(
        verb,
        sql.Identifier(role.name),
        sql.SQL(" ").join(words),
        sql.Literal(role.password),
    )
    connection.execute(statement)


def _creation_rights(connection: Session) -> sql.SQL:
    """What an owner's role may create by SQL. Before Postgres 16, CREATEROLE would let it make
    itself a member of any role that is no superuser, such as `pg_execute_server_program`."""
    has_bounds = connection.info.server_version >= CREATEROLE_LIMITED_SINCE * 10000
    return sql.SQL("CREATEDB CREATEROLE" if has_bounds else "CREATEDB")


def _rename_database(connection: Session, database: DatabaseSpec, names: Collection[str]) -> None:
    before, name = database.applied_name, database.name
    if before in (None, name) or not _exists(connection, DATABASE, str(before)):
        return
    # If it was renamed before a crash, the database with the old name is another one, made since.
    if before in names and _exists(connection, DATABASE, name):
        return
    connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [before]
    )
    run(connection, "ALTER DATABASE {} RENAME TO {}", str(before), name)


def _apply_database(connection: Session, database: DatabaseSpec) -> None:
    if _exists(connection, DATABASE, database.name):
        if database.applied_name is None:
            _require(connection, OWNED_BY, database.name, database.owner, of="database")
        run(connection, "ALTER DATABASE {} OWNER TO {}", database.name, database.owner)
        return
    # template0 accepts no connections, so no session can prevent copying it.
    statement: LiteralString = "CREATE DATABASE {} OWNER {} TEMPLATE template0"
    run(connection, statement, database.name, database.owner)


def _require(connection: Session, query: LiteralString, *values: str, of: str) -> None:
    """Raise DuplicateObject if SQL has made what the API was asked to make."""
    if not _exists(connection, query, *values):
        raise psycopg.errors.DuplicateObject(
            f"SQL has made a {of} with this name: rename or drop it by SQL"
        )


def _exists(connection: Session, query: LiteralString, *values: str) -> bool:
    return connection.execute(query, values).fetchone() is not None

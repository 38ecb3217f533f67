"""Reads a compute's roles and databases from its Postgres catalog.

`operations.catalog.importing` reads all of them to update the rows with what SQL changed there. The
proxy (`proxy.directory.compute_logins`) reads single roles.

A role's password in Postgres's catalog is one that SQL has set, or a placeholder for the verifier
in the role's row. So what SQL has set differs from what the platform has put there, and a password
that SQL has removed is noticed too.
"""

import base64
import hashlib
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import NoneType
from typing import LiteralString

from controlplane import clock
from controlplane.compute.processes.session import Session, is_utf8, name_of, values_of

# The keys of a verifier in Postgres's own format that no password matches.
_NO_KEYS = f"${'A' * 43}=:{'A' * 43}="
# SQL may set one of any length before Postgres 18, so that only the beginning is read. The salt of
# Postgres's own has 24 characters.
_VERIFIER = re.compile(
    r"SCRAM-SHA-256\$[0-9]{1,9}:[A-Za-z0-9+/]{1,256}={0,2}\$[A-Za-z0-9+/]{43}=:[A-Za-z0-9+/]{43}="
)

# Changes with every change of a role, of a database, or of the settings that either gives to new
# sessions: a digest of which rows there are, and of the transaction that last wrote each.
MARK = """
SELECT md5(concat(
    (SELECT string_agg(concat(oid, ':', xmin), ' ' ORDER BY oid) FROM pg_authid), '/',
    (SELECT string_agg(concat(oid, ':', xmin), ' ' ORDER BY oid) FROM pg_database), '/',
    (SELECT string_agg(concat(setdatabase, ':', setrole, ':', xmin), ' '
        ORDER BY setdatabase, setrole) FROM pg_db_role_setting)))
"""
# What decides whether a role may log in: see `RoleLogin`.
LOGIN = """
SELECT oid::bigint AS oid, rolcanlogin AND NOT rolsuper AS can_login,
    coalesce(rolvaliduntil <= now(), false) AS has_expired, left(rolpassword, 1000) AS password
FROM pg_authid WHERE rolname = %s
"""
# Both begin with what is `Wanted`; the last column is how many there are without the LIMIT.
_ROLES = """
SELECT oid::bigint, namesend(rolname), rolcanlogin, left(rolpassword, 1000),
    extract(epoch FROM rolvaliduntil)::float8,
    EXISTS (SELECT FROM pg_auth_members WHERE member = pg_authid.oid
        AND roleid = to_regrole('perch_superuser')), count(*) OVER ()
FROM pg_authid WHERE NOT rolsuper AND rolname !~ '^(pg|perch)_'
ORDER BY oid::bigint <> ALL (%s::bigint[]) AND rolname <> ALL (%s::text[]), oid LIMIT %s
"""
_DATABASES = """
SELECT d.oid::bigint, namesend(datname), namesend(rolname), count(*) OVER ()
FROM pg_database d JOIN pg_authid owner ON owner.oid = datdba
WHERE datconnlimit <> -2 AND datname NOT IN ('postgres', 'template0', 'template1')
ORDER BY d.oid::bigint <> ALL (%s::bigint[]) AND datname <> ALL (%s::text[]), d.oid LIMIT %s
"""
# Of all roles but the platform's and those with these oids.
_FORGET_PASSWORDS = """
UPDATE pg_authid SET rolpassword = NULL
WHERE NOT rolsuper AND rolpassword IS NOT NULL AND oid::bigint <> ALL (%s::bigint[])
"""
# By oid: a new role with the name of a dropped one does not protect the dropped one's sessions.
_WITHOUT_LOGIN = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE usesysid IS NOT NULL AND NOT EXISTS (
    SELECT FROM pg_authid WHERE oid = usesysid AND rolcanlogin)
"""
_CLIENTS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE backend_type IN ('client backend', 'walsender') AND usename IS DISTINCT FROM current_user
"""
_BEGUN_BEFORE = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s AND backend_start < %s
"""
# Seconds to wait for sessions that were told to end. Later ones are stuck in a system call.
_END_TIMEOUT = 1.0


@dataclass(frozen=True, slots=True)
class FoundRole:
    oid: int
    name: str
    can_login: bool
    # A password that SQL has set, or a placeholder; None for no password.
    password: str | None
    valid_until: datetime | None
    # True if the platform has given it the rights of a role that the API has made.
    in_group: bool = False


@dataclass(frozen=True, slots=True)
class FoundDatabase:
    oid: int
    name: str
    owner: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """The roles, or databases, that a reading must not leave out, and how many others it may
    return: an owner can make any number of them."""

    oids: Sequence[int]
    names: Sequence[str]
    others: int

    def values(self) -> list[object]:
        return [self.oids, self.names, len(self.oids) + len(self.names) + self.others]


@dataclass(frozen=True, slots=True)
class Found:
    """The roles and databases at one moment. Those with names that are not UTF-8 are left out,
    since the API cannot name them."""

    mark: str
    roles: Sequence[FoundRole]
    databases: Sequence[FoundDatabase]
    # How many more there are.
    unread_roles: int = 0
    unread_databases: int = 0


def placeholder_of(verifier: str) -> str | None:
    """The placeholder in the catalog for a role's verifier in its row; None if it has none.

    The placeholder's salt is a digest of the verifier. So by reading both, one can tell whether the
    catalog has the row's current verifier. The verifier includes a secret salt, so the digest
    cannot be used to test guessed passwords."""
    if not verifier:
        return None
    salt = base64.b64encode(hashlib.sha256(verifier.encode()).digest()[:16]).decode()
    return f"SCRAM-SHA-256$4096:{salt}{_NO_KEYS}"


def is_placeholder(password: str | None) -> bool:
    return password is not None and password.endswith(_NO_KEYS)


def is_verifier(password: str) -> bool:
    """True if a client can authenticate by SCRAM with this password of the catalog."""
    return _VERIFIER.fullmatch(password) is not None


def read_mark(connection: Session) -> str:
    """The current value of MARK. Raises psycopg.Error."""
    (mark,) = values_of(connection.execute(MARK).fetchone(), str)
    return str(mark)


def read_catalog(connection: Session, of_roles: Wanted, of_databases: Wanted) -> Found:
    """Raises psycopg.Error."""
    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        mark = read_mark(connection)
        role_rows = connection.execute(_ROLES, of_roles.values()).fetchall()
        database_rows = connection.execute(_DATABASES, of_databases.values()).fetchall()
    roles, databases = map(_role, role_rows), map(_database, database_rows)
    return Found(
        mark,
        [role for role in roles if is_utf8(role.name)],
        [one for one in databases if is_utf8(one.name) and is_utf8(one.owner)],
        _unread(role_rows),
        _unread(database_rows),
    )


def _unread(rows: Sequence[tuple[object, ...]]) -> int:
    return values_of(rows[0][-1:], int)[0] - len(rows) if rows else 0


def forget_passwords(connection: Session, *, but: Sequence[int]) -> None:
    """Remove the passwords of all roles but those with these oids. Raises psycopg.Error."""
    connection.execute(_FORGET_PASSWORDS, [but])


def replace_password(
    connection: Session, oid: int, seen: str | None, replacement: str | None
) -> None:
    """Set the role's password to `replacement`, unless SQL has set another one since `seen` was
    read. Raises psycopg.Error."""
    connection.execute(
        "UPDATE pg_authid SET rolpassword = %s"
        " WHERE oid = %s AND rolpassword IS NOT DISTINCT FROM %s",
        [replacement, oid, seen],
    )


def end_sessions_without_login(connection: Session) -> None:
    """End the sessions of roles that are gone or may no longer log in. A pooler keeps sessions
    open, and would give them to a new role of the same name. Raises psycopg.Error."""
    _end_sessions(connection, _WITHOUT_LOGIN)


def end_sessions_begun_before(connection: Session, role: str, moment: datetime) -> None:
    """Raises psycopg.Error."""
    _end_sessions(connection, _BEGUN_BEFORE, role, clock.to_host(moment))


def end_clients(connection: Session) -> None:
    """End every session but the platform's, so that no client changes anything after this. Raises
    psycopg.Error."""
    _end_sessions(connection, _CLIENTS)


def _end_sessions(connection: Session, statement: LiteralString, *values: object) -> None:
    """Terminate the sessions that `statement` selects, until none is left or time is up."""
    deadline = time.monotonic() + _END_TIMEOUT
    while connection.execute(statement, values).fetchall() and time.monotonic() < deadline:
        time.sleep(0.005)


def _role(row: tuple[object, ...]) -> FoundRole:
    oid, name, can_login, password, valid_until, in_group = values_of(
        row[:-1], int, bytes, bool, (str, NoneType), (float, NoneType), bool
    )
    until = _time_of_epoch(valid_until)
    return FoundRole(oid, name_of(name), can_login, password, until, in_group)


def _database(row: tuple[object, ...]) -> FoundDatabase:
    oid, name, owner = values_of(row[:-1], int, bytes, bytes)
    return FoundDatabase(oid, name_of(name), name_of(owner))


def _time_of_epoch(epoch: object) -> datetime | None:
    """The moment of seconds since the epoch. Postgres's range exceeds Python's: None for infinity
    and for times after Python's last, the epoch for times before it. None if it is no float."""
    if not isinstance(epoch, float) or not epoch < datetime.max.replace(tzinfo=UTC).timestamp() - 1:
        return None
    return datetime.fromtimestamp(max(epoch, 0.0), UTC)

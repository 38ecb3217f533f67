"""What a compute's catalog says of its roles and databases: read by `operations.by_sql`, which
brings the rows to what SQL did there, and asked for single roles by the proxy (`proxy.logins`).

A role's password in the catalog is one that SQL has set, or a placeholder: see the role's row. So
whatever SQL has set there can be told from what the platform has put there, a removed password too.
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
from controlplane.compute.session import Session, is_utf8, name_of, values_of

# The keys of a verifier in Postgres's own form that no password fits.
_NO_KEYS = f"${'A' * 43}=:{'A' * 43}="
_VERIFIER = re.compile(
    r"SCRAM-SHA-256\$[0-9]{1,9}:[A-Za-z0-9+/]+=*\$[A-Za-z0-9+/]{43}=:[A-Za-z0-9+/]{43}="
)

# Another one after every change of a role or a database: the number of the transaction that last
# wrote each, and which there are.
MARK = """
SELECT md5(concat(
    (SELECT string_agg(concat(oid, ':', xmin), ' ' ORDER BY oid) FROM pg_authid), '/',
    (SELECT string_agg(concat(oid, ':', xmin), ' ' ORDER BY oid) FROM pg_database)))
"""
# One role, as its login is judged by: see `RoleLogin`.
LOGIN = """
SELECT oid::bigint AS oid, rolcanlogin AND NOT rolsuper AS can_login,
    coalesce(rolvaliduntil <= now(), false) AS has_expired, rolpassword AS password
FROM pg_authid WHERE rolname = %s
"""
_ROLES = """
SELECT oid::bigint, namesend(rolname), rolcanlogin, rolpassword,
    extract(epoch FROM rolvaliduntil)::float8
FROM pg_authid WHERE NOT rolsuper AND rolname !~ '^pg_' ORDER BY oid
"""
_DATABASES = """
SELECT d.oid::bigint, namesend(datname), namesend(rolname)
FROM pg_database d JOIN pg_authid owner ON owner.oid = datdba
WHERE datconnlimit <> -2 ORDER BY d.oid
"""
# Whatever its number was given to since: a role that is gone has no sessions.
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
# Seconds for those that were told to end: they do so at once, or wait for the kernel.
_END_WITHIN = 1.0


@dataclass(frozen=True, slots=True)
class FoundRole:
    oid: int
    name: str
    can_login: bool
    # As SQL has set it, or a placeholder; None for none.
    password: str | None
    valid_until: datetime | None


@dataclass(frozen=True, slots=True)
class FoundDatabase:
    oid: int
    name: str
    owner: str


@dataclass(frozen=True, slots=True)
class Found:
    """All of one moment. What has a name that is not UTF-8 is left out: nobody could say it."""

    mark: str
    roles: Sequence[FoundRole]
    databases: Sequence[FoundDatabase]


def placeholder_of(verifier: str) -> str | None:
    """What stands in the catalog for a verifier in the row; None for none. It tells by its salt
    which: whoever has just read both knows whether the row is as old as the catalog. The verifier's
    own salt is secret, so that nobody could try passwords on it."""
    if not verifier:
        return None
    salt = base64.b64encode(hashlib.sha256(verifier.encode()).digest()[:16]).decode()
    return f"SCRAM-SHA-256$4096:{salt}{_NO_KEYS}"


def is_placeholder(password: str | None) -> bool:
    return password is not None and password.endswith(_NO_KEYS)


def is_verifier(password: str) -> bool:
    """Whether a password of the catalog is one that a client can be asked for by SCRAM."""
    return _VERIFIER.fullmatch(password) is not None


def read_mark(connection: Session) -> str:
    """See MARK. Raises psycopg.Error."""
    (mark,) = values_of(connection.execute(MARK).fetchone(), str)
    return str(mark)


def read_catalog(connection: Session) -> Found:
    """Raises psycopg.Error."""
    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        mark = read_mark(connection)
        roles = [_role(row) for row in connection.execute(_ROLES).fetchall()]
        databases = [_database(row) for row in connection.execute(_DATABASES).fetchall()]
    return Found(
        mark,
        [role for role in roles if is_utf8(role.name)],
        [one for one in databases if is_utf8(one.name) and is_utf8(one.owner)],
    )


def replace_password(
    connection: Session, oid: int, seen: str | None, replacement: str | None
) -> None:
    """Give the role `replacement` for its password, unless SQL has set another than `seen` since
    that was read. Raises psycopg.Error."""
    connection.execute(
        "UPDATE pg_authid SET rolpassword = %s"
        " WHERE oid = %s AND rolpassword IS NOT DISTINCT FROM %s",
        [replacement, oid, seen],
    )


def end_sessions_without_login(connection: Session) -> None:
    """End the sessions of roles that are gone, or may not log in any more. A pooler keeps some
    open, and would give them to a new role of the same name. Raises psycopg.Error."""
    _end_sessions(connection, _WITHOUT_LOGIN)


def end_sessions_begun_before(connection: Session, role: str, moment: datetime) -> None:
    """Raises psycopg.Error."""
    _end_sessions(connection, _BEGUN_BEFORE, role, clock.to_host(moment))


def end_clients(connection: Session) -> None:
    """End every session but the platform's: nobody changes anything after this. Raises
    psycopg.Error."""
    _end_sessions(connection, _CLIENTS)


def _end_sessions(connection: Session, statement: LiteralString, *values: object) -> None:
    """Tell those that the statement names to end, until there are none, or it takes too long."""
    deadline = time.monotonic() + _END_WITHIN
    while connection.execute(statement, values).fetchall() and time.monotonic() < deadline:
        time.sleep(0.005)


def _role(row: tuple[object, ...]) -> FoundRole:
    oid, name, can_login, password, valid_until = values_of(
        row, int, bytes, bool, (str, NoneType), (float, NoneType)
    )
    return FoundRole(oid, name_of(name), can_login, password, _moment(valid_until))


def _database(row: tuple[object, ...]) -> FoundDatabase:
    oid, name, owner = values_of(row, int, bytes, bytes)
    return FoundDatabase(oid, name_of(name), name_of(owner))


def _moment(epoch: object) -> datetime | None:
    """Postgres's times reach further than ours, and to infinity; one that far is never, or long
    ago. What is no number is never."""
    if not isinstance(epoch, float) or not epoch < datetime.max.replace(tzinfo=UTC).timestamp() - 1:
        return None
    return datetime.fromtimestamp(max(epoch, 0.0), UTC)

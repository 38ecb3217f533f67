"""Roles are removed whatever bytes their names and those of databases have, and databases that had
to be opened for that are closed again, also after a crash."""

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from controlplane.compute.catalog.removal import (
    COLUMNS,
    DatabaseRow,
    close_again,
    drop_role,
    session_in,
)
from controlplane.compute.catalog.system_views import close_views_in
from controlplane.compute.processes.session import session
from controlplane.compute.settings.configuration import PLATFORM_ROLE
from tests.support.bare_postgres import Programs, bare_postgres, private_directory

# The names of two databases: stored in LATIN1, they are not UTF-8.
CLOSED, HALF_DROPPED = "\udcfc", "\udcf6"
MADE = ('CREATE DATABASE "ü"', 'CREATE DATABASE "ö"', 'GRANT ALL ON DATABASE "ü", "ö" TO bob')
STRANGE = """
ALTER ROLE bob RENAME TO "é %I";
ALTER DATABASE "ü" ALLOW_CONNECTIONS false CONNECTION LIMIT 7;
UPDATE pg_database SET datconnlimit = -2 WHERE datname = 'ö'
"""
DATABASES = f"SELECT {COLUMNS} FROM pg_database WHERE oid >= 16384 ORDER BY oid"


@pytest.fixture
def sockets() -> Iterator[Path]:
    with private_directory() as scratch, bare_postgres(Programs(scratch)) as cluster:
        cluster.start(max_prepared_transactions="4")
        cluster.execute(f"CREATE ROLE {PLATFORM_ROLE} SUPERUSER LOGIN")
        cluster.execute("CREATE ROLE heir; CREATE ROLE bob LOGIN")
        cluster.execute("CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'")
        yield cluster.directory


def databases(sockets: Path) -> list[DatabaseRow]:
    with session(sockets) as connection:
        return [DatabaseRow.of(*row) for row in connection.execute(DATABASES)]


def test_names_that_are_not_utf8_keep_no_role_from_being_dropped(sockets: Path) -> None:
    with session(sockets, "latin") as latin:
        (role,) = latin.execute("SELECT oid FROM pg_roles WHERE rolname = 'bob'").fetchone() or ()
        for statement in MADE:
            latin.execute(statement.encode())
        for name in (CLOSED, HALF_DROPPED):
            with session(sockets, name, user="bob", options="") as bob:
                bob.execute("CREATE SCHEMA bobs")
        with session(sockets, CLOSED, user="bob", options="") as bob:
            bob.execute("BEGIN; CREATE TABLE bobs.held (); PREPARE TRANSACTION 'ä''x'")
        latin.execute(STRANGE.encode())
    before = [one for one in databases(sockets) if one.name != HALF_DROPPED]
    drop_role(sockets, "bob", oid=int(str(role)), heirs={}, otherwise="heir")
    assert databases(sockets) == before
    with session(sockets) as connection:
        assert connection.execute("SELECT FROM pg_roles WHERE oid = %s", [role]).fetchall() == []
        assert connection.execute("SELECT FROM pg_prepared_xacts").fetchall() == []
        closed = next(one for one in before if one.name == CLOSED)
        with session_in(sockets, connection, closed) as inside:
            owner = "SELECT nspowner::regrole::text FROM pg_namespace WHERE nspname = 'bobs'"
            assert inside.execute(owner).fetchall() == [(b"heir",)]


@pytest.mark.parametrize("is_dropped", [True, False])
def test_a_database_that_a_crash_left_open_is_closed_again(sockets: Path, is_dropped: bool) -> None:
    with session(sockets) as connection:
        connection.execute('CREATE DATABASE "it\'s closed"')
        connection.execute('ALTER DATABASE "it\'s closed" ALLOW_CONNECTIONS false')
        connection.execute('ALTER DATABASE "it\'s closed" CONNECTION LIMIT 3')
    before = databases(sockets)
    with (
        pytest.raises(psycopg.OperationalError),
        session(sockets) as connection,
        session_in(sockets, connection, before[-1]),
    ):
        connection.close()
    assert [(one.allows_connections, one.connection_limit) for one in databases(sockets)[-1:]] == [
        (True, 0)
    ]
    if is_dropped:
        drop_role(sockets, "bob", oid=None, heirs={}, otherwise="heir")
    else:
        close_views_in(sockets)
    assert databases(sockets) == before


def test_a_database_left_open_whose_drop_was_interrupted_is_left_alone(sockets: Path) -> None:
    """Postgres ends the session that alters it."""
    with session(sockets) as connection:
        connection.execute("CREATE DATABASE half")
        opened = "ALTER ROLE CURRENT_USER IN DATABASE half SET perch.connection_limit = 3"
        connection.execute(opened)
        connection.execute("UPDATE pg_database SET datconnlimit = -2 WHERE datname = 'half'")
        close_again(connection)
        assert connection.execute("SELECT 1").fetchone() == (1,)

"""No owner writes Postgres's own catalogs through its views, in any database, and nothing is
granted by names that such a write has changed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from controlplane.compute import compute
from controlplane.compute.catalog.applying import (
    CatalogSpec,
    DatabaseSpec,
    Failures,
    RoleSpec,
    apply_catalog,
)
from controlplane.compute.catalog.cluster_roles import read_roles
from controlplane.compute.catalog.system_views import (
    MARK,
    OWN_ROLES,
    RolesForged,
    close_views,
    close_views_in,
)
from controlplane.compute.host.binaries import MAJOR
from controlplane.compute.host.patience import on_progress
from controlplane.compute.processes.session import name_of, socket_dir
from controlplane.compute.processes.session import session as session_in
from controlplane.compute.settings.configuration import PLATFORM_ROLE
from controlplane.compute.upgrade.upgrade_catalogs import UpgradeRefused, refuse_unsupported
from tests.controlplane.local_compute import BRANCH, ENDPOINT, SPEC, branch, computes
from tests.selection import first_of
from tests.support.bare_postgres import BarePostgres, Programs, bare_postgres, private_directory
from tests.support.majors import programs_of

__all__ = ["branch", "computes"]

OWNER, APP = RoleSpec("owner", login=True), RoleSpec("app", login=True, password="x")
SHOP = DatabaseSpec("shop", "owner", None)
# A statement for each way to write through each of Postgres's own views.
WRITES = """
SELECT format(statement, c.oid::regclass, (SELECT attname FROM pg_attribute
    WHERE attrelid = c.oid AND attnum = 1))
FROM pg_class c, unnest(ARRAY['INSERT INTO %s (%I) VALUES (NULL)', 'UPDATE %s SET %2$I = %2$I',
    'DELETE FROM %s']) AS s(statement)
WHERE relkind = 'v' AND c.oid < 16384 AND c.oid <> 'pg_settings'::regclass
"""
# Views of a superuser, such as an extension's, that can be written.
OTHERS = """
SELECT c.oid::regclass::text FROM pg_class c JOIN pg_roles r ON r.oid = relowner
WHERE relkind = 'v' AND c.oid >= 16384 AND rolsuper AND pg_relation_is_updatable(c.oid, false) <> 0
"""
RENAME = "UPDATE pg_authid SET rolname = '{}' WHERE rolname = '{}'"
# What leads to it, with what takes it back.
FORGED: tuple[tuple[list[tuple[str, str]], str], ...] = (
    ([("hidden", "perch_superuser"), ("perch_superuser", "pg_execute_server_program")], ""),
    ([("hidden", "pg_monitor"), ("pg_monitor", "pg_execute_server_program")], ""),
    ([], "GRANT pg_execute_server_program TO owner"),
)

Session = psycopg.Connection[Any]


@pytest.fixture(scope="module", params=first_of(["15", "18.4", "16", "17"]))
def server(request: pytest.FixtureRequest) -> Iterator[BarePostgres]:
    """A cluster as an earlier release made it, with the databases of an owner."""
    programs = programs_of(request.param)
    with private_directory() as scratch, bare_postgres(Programs(scratch, programs)) as cluster:
        cluster.start()
        (cluster.directory / MAJOR).write_text(request.param[:2])
        cluster.execute(f"CREATE ROLE {PLATFORM_ROLE} SUPERUSER LOGIN")
        assert applied(cluster.directory) == {}
        for words in ("", "IS_TEMPLATE true", "ALLOW_CONNECTIONS false"):
            name = f'"{words} ä"'
            cluster.execute(f"CREATE DATABASE {name} OWNER owner TEMPLATE template0 {words}")
        cluster.execute("CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'")
        with cluster.connect(dbname="latin", client_encoding="UTF8") as latin:
            # Their names are stored in that encoding, which is no UTF-8.
            for words in ("", "ALLOW_CONNECTIONS false CONNECTION LIMIT 7"):
                latin.execute(f"CREATE DATABASE \"ä%25&x='' {words}\" OWNER owner {words}".encode())
        yield cluster


def applied(sockets: Path, *more: RoleSpec) -> Failures:
    roles = [OWNER, *more]
    return apply_catalog(sockets, CatalogSpec(roles, [SHOP]), [*roles, SHOP])


def writable(session: Session) -> list[str]:
    """The statements by which the owner can write through a view."""
    statements = [str(one) for (one,) in session.execute(WRITES)]
    assert len(statements) > 300
    session.execute("SET ROLE owner")
    done = []
    for statement in statements:
        try:
            with session.transaction(force_rollback=True):
                session.execute(statement.encode())
            done.append(statement)
        except psycopg.Error:
            pass
    session.execute("RESET ROLE")
    return done


def databases(server: BarePostgres) -> list[str]:
    server.execute("UPDATE pg_database SET datallowconn = true")
    return [
        name_of(name) for (name,) in server.execute("SELECT namesend(datname) FROM pg_database")
    ]


def test_the_names_of_postgress_own_roles_are_known(server: BarePostgres) -> None:
    found = server.execute("SELECT oid, rolname FROM pg_roles WHERE oid BETWEEN 11 AND 16383")
    assert dict(found).items() <= OWN_ROLES.items()


def test_nothing_is_granted_by_names_that_were_changed(server: BarePostgres) -> None:
    members = "SELECT roleid, member FROM pg_auth_members ORDER BY 1, 2"
    for renamed, granted in FORGED:
        for new, old in renamed:
            server.execute(RENAME.format(new, old))
        server.execute(granted or "SELECT 1")
        before = server.execute(members)
        failures = applied(server.directory, APP)
        assert failures.keys() == {OWNER, APP, SHOP}
        assert all("nothing is granted" in one.words and one.is_final for one in failures.values())
        assert server.execute(members) == before
        with pytest.raises(RolesForged):
            read_roles(server.directory)
        with pytest.raises(UpgradeRefused, match="nothing is granted"):
            refuse_unsupported(server.directory, 18)
        for new, old in reversed(renamed):
            server.execute(RENAME.format(old, new))
        server.execute(granted.replace("GRANT", "REVOKE").replace(" TO ", " FROM ") or "SELECT 1")
    assert applied(server.directory, APP) == {}


def test_the_views_of_an_existing_cluster_are_closed_in_every_database(
    server: BarePostgres,
) -> None:
    with server.connect(dbname="shop") as session:
        assert writable(session)
    limits = "SELECT namesend(datname), datallowconn, datconnlimit FROM pg_database"
    before = server.execute(limits)
    reported = list[None]()
    for _ in range(2):
        with on_progress(lambda: reported.append(None)):
            close_views_in(server.directory)
    assert len(reported) == len(before) - 1
    assert sorted(server.execute(limits)) == sorted(before)
    server.execute('CREATE DATABASE mine OWNER owner TEMPLATE "IS_TEMPLATE true ä"')
    names = databases(server)
    assert {"mine", "template0", "template1", "postgres"} < set(names)
    for name in names:
        with session_in(server.directory, name) as session:
            assert writable(session) == []
            assert session.execute("SELECT count(*) > 5 FROM pg_group").fetchone() == (True,)
            # As triggers of a subscription's tables are executed.
            session.execute("SET session_replication_role = replica")
            session.execute("UPDATE pg_group SET groname = 'x' WHERE groname = 'pg_monitor'")
            assert session.execute("SELECT FROM pg_roles WHERE rolname = 'x'").fetchall() == []


@pytest.mark.usefixtures("branch")
def test_nothing_is_written_through_a_system_view_in_a_new_branch() -> None:
    compute.start(SPEC)
    place = socket_dir(ENDPOINT)
    assert applied(place) == {}
    for database in ("postgres", "shop", "template1"):
        with connected(place, database) as session:
            assert writable(session) == []
    with connected(place, "shop") as session:
        offered = "SELECT name FROM pg_available_extensions"
        for (name,) in session.execute(offered).fetchall():
            session.execute(f'CREATE EXTENSION IF NOT EXISTS "{name}" CASCADE'.encode())
        assert session.execute(OTHERS).fetchall() == []


def test_a_mark_beside_the_data_saves_the_look(branch: Path) -> None:
    assert (branch / MARK).exists()
    (branch / MARK).unlink()
    compute.start(SPEC)
    place = socket_dir(ENDPOINT)
    with connected(place, "postgres") as session:
        session.execute("DROP TRIGGER perch_read_only ON pg_group")
    for is_marked in (False, True):
        close_views(BRANCH, place)
        assert (branch / MARK).exists()
        with connected(place, "postgres") as session:
            query = "SELECT count(*) FROM pg_trigger WHERE tgrelid = 'pg_group'::regclass"
            assert session.execute(query).fetchone() == (int(not is_marked),)
            session.execute("DROP TRIGGER IF EXISTS perch_read_only ON pg_group")


def connected(place: Path, database: str) -> Session:
    return psycopg.connect(host=str(place), user=PLATFORM_ROLE, dbname=database, autocommit=True)

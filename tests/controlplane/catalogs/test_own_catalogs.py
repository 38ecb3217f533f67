"""What a superuser's code could have left in Postgres's own rows is found in every database."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.compute.catalog.rights import changed_rows, own_rows
from controlplane.compute.host.binaries import MAJOR
from controlplane.compute.settings.configuration import PLATFORM_ROLE
from tests.support.bare_postgres import BarePostgres, Programs, bare_postgres, private_directory
from tests.support.majors import debians_postgres

# What clients and the platform do.
ALLOWED = """
ALTER ROLE postgres PASSWORD 'y' CONNECTION LIMIT 7;
GRANT pg_monitor TO someone;
GRANT SET ON PARAMETER work_mem TO someone;
ALTER SCHEMA public OWNER TO someone;
COMMENT ON SCHEMA public IS 'ours';
REVOKE EXECUTE ON FUNCTION pg_catalog.pg_ls_waldir() FROM pg_monitor;
GRANT SELECT ON pg_catalog.pg_class TO someone WITH GRANT OPTION;
REVOKE USAGE ON LANGUAGE plpgsql FROM PUBLIC;
CREATE DOMAIN checked AS int CHECK (VALUE > 0);
CREATE TABLE rows (id int PRIMARY KEY REFERENCES rows, n checked DEFAULT 1);
CREATE VIEW seen AS SELECT * FROM rows;
CREATE FUNCTION one(rows) RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE CAST (rows AS int) WITH FUNCTION one(rows);
CREATE PUBLICATION published FOR ALL TABLES;
CREATE STATISTICS known ON id, n FROM rows;
CREATE EXTENSION hstore;
SELECT lo_create(42);
ANALYZE;
VACUUM FULL pg_catalog.pg_proc
"""
CHANGES = [
    ("pg_language", "UPDATE pg_language SET lanpltrusted = true WHERE lanname = 'c'"),
    ("pg_proc", "UPDATE pg_proc SET prosrc = 'be_lo_export' WHERE proname = 'pg_sleep'"),
    ("pg_cast", "INSERT INTO pg_cast SELECT 9999, 'point'::regtype, 'int'::regtype, 0, 'i', 'b'"),
    (
        "pg_operator",
        "UPDATE pg_operator SET oprcode = 'int4ne' WHERE oid = '&(int,int)'::regoperator",
    ),
    (
        "pg_rewrite",
        "UPDATE pg_rewrite SET is_instead = false WHERE ev_class = 'pg_rules'::regclass",
    ),
    ("pg_class", "ALTER TABLE pg_catalog.pg_proc OWNER TO someone"),
    ("pg_namespace", "ALTER SCHEMA pg_catalog OWNER TO someone"),
    ("pg_init_privs", "DELETE FROM pg_init_privs WHERE classoid = 'pg_proc'::regclass"),
    ("pg_extension", "UPDATE pg_extension SET extowner = 'someone'::regrole"),
    ("pg_ts_template", "UPDATE pg_ts_template SET tmplinit = 0 WHERE tmplname = 'simple'"),
    ("pg_type", "UPDATE pg_type SET typinput = 'point_in' WHERE typname = 'box'"),
    (
        "pg_trigger",
        "CREATE FUNCTION fired() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';"
        "CREATE TRIGGER fired AFTER UPDATE ON pg_constraint EXECUTE FUNCTION fired();"
        "UPDATE pg_class SET relhastriggers = false WHERE relname = 'pg_constraint'",
    ),
]


@pytest.fixture(scope="module", params=[15, 18])
def server(request: pytest.FixtureRequest) -> Iterator[BarePostgres]:
    programs: Path | None = debians_postgres() if request.param == 15 else None
    with private_directory() as scratch, bare_postgres(Programs(scratch, programs)) as cluster:
        cluster.start(allow_system_table_mods="on")
        (cluster.directory / MAJOR).write_text(str(request.param))
        cluster.execute(f"CREATE ROLE {PLATFORM_ROLE} SUPERUSER LOGIN; CREATE ROLE someone")
        yield cluster


def test_what_owners_and_the_platform_do_is_no_change(server: BarePostgres) -> None:
    fresh = own_rows(server.directory)
    server.execute("CREATE DATABASE theirs TEMPLATE template0")
    with server.connect(dbname="theirs") as session:
        for statement in ALLOWED.split(";\n"):
            session.execute(statement.encode())
    assert changed_rows(server.directory, fresh) is None
    server.execute("DROP DATABASE theirs")


def test_a_change_is_found_in_each_database(server: BarePostgres) -> None:
    fresh = own_rows(server.directory)
    for catalog, change in CHANGES:
        server.execute("CREATE DATABASE theirs TEMPLATE template0")
        with server.connect(dbname="theirs") as session:
            session.execute(change.encode())
        found = changed_rows(server.directory, fresh)
        assert found == f'{catalog} in the database "theirs"', change
        server.execute("DROP DATABASE theirs")


def test_a_change_of_the_template_or_of_all_databases_is_found(server: BarePostgres) -> None:
    fresh = own_rows(server.directory)
    server.execute("ALTER DATABASE template0 ALLOW_CONNECTIONS true")
    trust = "UPDATE pg_language SET lanpltrusted = {} WHERE lanname = 'internal'"
    with server.connect(dbname="template0") as session:
        session.execute(trust.format(True).encode())
    assert changed_rows(server.directory, fresh) == 'pg_language in the database "template0"'
    with server.connect(dbname="template0") as session:
        session.execute(trust.format(False).encode())
    assert changed_rows(server.directory, fresh) is None
    server.execute("UPDATE pg_authid SET rolname = 'pg_x' WHERE rolname = 'pg_monitor'")
    assert changed_rows(server.directory, fresh) == 'pg_authid in the database "template1"'
    server.execute("UPDATE pg_authid SET rolname = 'pg_monitor' WHERE rolname = 'pg_x'")

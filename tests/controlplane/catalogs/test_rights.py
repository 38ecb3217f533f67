"""Whatever gives somebody more rights in a cluster is a difference of its rights."""

from collections.abc import Iterator

import psycopg
import pytest

from controlplane.compute.catalog.rights import difference, rights_in
from controlplane.compute.settings.configuration import PLATFORM_ROLE
from tests.support.bare_postgres import BarePostgres

DATABASE = "compared"
OBJECTS = """
SET ROLE low;
CREATE TABLE kept (a int, b int);
CREATE FUNCTION kept() RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE FUNCTION trap(xid) RETURNS text LANGUAGE sql AS $$SELECT ''$$;
CREATE FUNCTION trap(int, text) RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE OPERATOR ### (LEFTARG = int, RIGHTARG = int, FUNCTION = int4pl);
CREATE TYPE kind AS ENUM ('x');
SELECT lo_create(4711);
RESET ROLE;
CREATE EXTENSION postgres_fdw;
CREATE SERVER elsewhere FOREIGN DATA WRAPPER postgres_fdw;
CREATE FUNCTION fires() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN END';
"""
# Each statement, and the words that name what it changed.
TAMPERING = {
    "ALTER ROLE low SUPERUSER": "roles: low",
    "ALTER ROLE low PASSWORD 'known'": "roles: low",
    "CREATE ROLE thief": "roles: thief",
    "GRANT pg_execute_server_program TO low": "memberships: pg_execute_server_program low",
    "GRANT pg_write_server_files TO pg_monitor": "memberships: pg_write_server_files pg_monitor",
    "GRANT high TO low": "memberships: high low",
    "GRANT high TO low WITH ADMIN OPTION": "memberships: high low",
    "ALTER ROLE high SET role TO low": "settings:",
    "ALTER DATABASE compared SET session_preload_libraries TO 'x'": "settings: compared",
    "GRANT ALTER SYSTEM ON PARAMETER log_statement TO low": "parameters: log_statement",
    "ALTER DATABASE compared OWNER TO high": "databases: compared",
    "GRANT CREATE ON DATABASE compared TO PUBLIC": "databases: compared",
    "CREATE VIEW secrets AS SELECT * FROM pg_authid": "pg_class public.secrets",
    "ALTER TABLE kept OWNER TO high": "pg_class public.kept",
    "GRANT SELECT ON kept TO PUBLIC": "pg_class public.kept",
    "GRANT SELECT (b) ON kept TO low": "columns",
    "GRANT SELECT ON pg_authid TO low": "pg_class pg_catalog.pg_authid",
    "GRANT SELECT (rolpassword) ON pg_authid TO low": "columns",
    "GRANT EXECUTE ON FUNCTION pg_read_file(text) TO PUBLIC": "pg_proc pg_catalog.pg_read_file",
    "ALTER FUNCTION kept() SECURITY DEFINER": "functions",
    "ALTER FUNCTION kept() OWNER TO high": "pg_proc public.kept",
    "CREATE FUNCTION runs(text) RETURNS int LANGUAGE internal AS 'byteaout'": "public.runs",
    "UPDATE pg_language SET lanpltrusted = false WHERE lanname = 'plpgsql'": "functions",
    "GRANT CREATE ON SCHEMA pg_catalog TO low": "pg_namespace pg_catalog",
    "GRANT USAGE ON FOREIGN DATA WRAPPER postgres_fdw TO low": "pg_foreign_data_wrapper",
    "CREATE USER MAPPING FOR low SERVER elsewhere OPTIONS (user 'x')": "servers",
    "ALTER USER MAPPING FOR low SERVER elsewhere OPTIONS (SET user 'y')": "servers",
    "ALTER SERVER elsewhere OPTIONS (ADD host 'x')": "servers",
    "CREATE EVENT TRIGGER fires ON ddl_command_end EXECUTE FUNCTION fires()": "pg_event_trigger",
    "ALTER EVENT TRIGGER fires ENABLE ALWAYS": "event triggers",
    "ALTER DEFAULT PRIVILEGES FOR ROLE high GRANT ALL ON TABLES TO low": "default privileges",
    "CREATE CAST (xid AS text) WITH FUNCTION trap(xid)": "pg_cast (pg_catalog.xid AS",
    "UPDATE pg_cast SET castcontext = 'i' WHERE oid >= 16384": "pg_cast (pg_catalog.xid AS",
    "CREATE CONVERSION c FOR 'LATIN1' TO 'UTF8' FROM iso8859_1_to_utf8": "pg_conversion",
    "CREATE OPERATOR CLASS o DEFAULT FOR TYPE xid USING brin AS STORAGE xid": "pg_opclass",
    "ALTER OPERATOR FAMILY integer_ops USING btree ADD FUNCTION 1 (int, text) trap(int, text)": (
        "pg_amproc function 1"
    ),
    "CREATE TRANSFORM FOR int LANGUAGE sql (FROM SQL WITH FUNCTION prsd_lextype(internal))": (
        "pg_transform for integer language sql"
    ),
    "UPDATE pg_operator SET oprcode = 'int4mi' WHERE oprname = '###'": "pg_operator public.###",
    "UPDATE pg_type SET typoutput = 'textout' WHERE typname = 'kind'": "pg_type public.kind",
    "UPDATE pg_proc SET prosrc = 'BEGIN NULL; END' WHERE proname = 'fires'": "functions",
    "ALTER FOREIGN DATA WRAPPER postgres_fdw NO VALIDATOR": "pg_foreign_data_wrapper postgres_fdw",
    "ALTER LARGE OBJECT 4711 OWNER TO high": "large objects",
    "GRANT ALL ON LARGE OBJECT 4711 TO PUBLIC": "large objects",
}
HARMLESS = ("INSERT INTO kept VALUES (1)", "ANALYZE kept", "COMMENT ON TABLE kept IS 'kept'")


@pytest.fixture
def server(bare_cluster: BarePostgres) -> Iterator["psycopg.Connection[object]"]:
    with bare_cluster.connect() as session:
        session.execute(f"DROP ROLE IF EXISTS {PLATFORM_ROLE}")
        session.execute(f"CREATE ROLE {PLATFORM_ROLE} SUPERUSER LOGIN; CREATE ROLE low")
        session.execute("CREATE ROLE high")
        session.execute("CREATE DATABASE compared OWNER low TEMPLATE template0")
        where = f"host={bare_cluster.directory} port={bare_cluster.port} dbname={DATABASE}"
        with psycopg.connect(f"{where} user={PLATFORM_ROLE}", autocommit=True) as inside:
            inside.execute(OBJECTS)
            yield inside
        session.execute("DROP DATABASE compared WITH (FORCE)")
        session.execute("REVOKE pg_write_server_files FROM pg_monitor")
        session.execute("REVOKE ALL ON PARAMETER log_statement FROM low")
        for role in (PLATFORM_ROLE, "low", "high", "thief"):
            session.execute(f"DROP ROLE {role}")


def test_all_that_gives_rights_is_seen(
    server: "psycopg.Connection[object]", bare_cluster: BarePostgres
) -> None:
    seen = {}
    before = rights_in(bare_cluster.directory, [DATABASE])
    for statement in (*HARMLESS, *TAMPERING):
        server.execute(statement.encode())
        after = rights_in(bare_cluster.directory, [DATABASE])
        seen[statement] = difference(before, after)
        before = after
    assert [seen.pop(statement) for statement in HARMLESS] == [None] * len(HARMLESS)
    missed = {
        statement: (words, seen[statement])
        for statement, words in TAMPERING.items()
        if words not in str(seen[statement])
    }
    assert missed == {}

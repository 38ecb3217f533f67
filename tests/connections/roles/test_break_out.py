"""Roles that are created through the API are not superusers, and cannot become superusers."""

from typing import Any

import psycopg
import pytest
from psycopg import errors

from tests.selection import first_of
from tests.support.place import Place
from tests.support.stack import ROOT

FORBIDDEN = {
    "a superuser": "ALTER ROLE CURRENT_USER SUPERUSER",
    "a new superuser": "CREATE ROLE boss SUPERUSER",
    "a new replica": "CREATE ROLE copy REPLICATION LOGIN",
    "the platform's role": "SET ROLE perch_platform",
    "the platform's session": "SET SESSION AUTHORIZATION perch_platform",
    "a membership in the platform": "GRANT perch_platform TO CURRENT_USER",
    "the platform's password": "ALTER ROLE perch_platform PASSWORD 'mine'",
    "the platform's settings": "ALTER ROLE perch_platform SET search_path = public",
    "the platform's objects": "REASSIGN OWNED BY perch_platform TO CURRENT_USER",
    "the group's attributes": "ALTER ROLE perch_superuser SUPERUSER",
    "the group": "DROP ROLE perch_superuser",
    "programs, by COPY": "COPY (SELECT 1) TO PROGRAM 'true'",
    "programs, by COPY FROM": "CREATE TEMP TABLE t (a text); COPY t FROM PROGRAM 'id'",
    "files, by COPY": "COPY (SELECT 1) TO '/tmp/loot'",
    "files, by COPY FROM": "CREATE TEMP TABLE t (a text); COPY t FROM '/etc/passwd'",
    "files, by function": "SELECT pg_read_file('/etc/passwd')",
    "files, as bytes": "SELECT pg_read_binary_file('postgresql.conf')",
    "directories": "SELECT pg_ls_dir('/')",
    "files, as large objects": "SELECT lo_import('/etc/passwd')",
    "files, from large objects": "SELECT lo_export(lo_create(0), '/tmp/loot')",
    "files, as a tablespace": "CREATE TABLESPACE loot LOCATION '/tmp'",
    "libraries": "LOAD '/lib/x86_64-linux-gnu/libc.so.6'",
    "functions in C": "CREATE FUNCTION system(cstring) RETURNS int"
    " AS '/lib/x86_64-linux-gnu/libc.so.6', 'system' LANGUAGE c STRICT",
    "functions of the server's own": "CREATE FUNCTION f(text) RETURNS text"
    " AS 'pg_read_file_all' LANGUAGE internal",
    "libraries for every session": "ALTER ROLE CURRENT_USER SET session_preload_libraries = 'x'",
    "the server's settings": "ALTER SYSTEM SET archive_command = 'true'",
    "a setting of superusers": "SET session_replication_role = replica",
    "event triggers": "CREATE FUNCTION f() RETURNS event_trigger AS 'BEGIN END' LANGUAGE plpgsql;"
    " CREATE EVENT TRIGGER e ON ddl_command_start EXECUTE FUNCTION f()",
    "subscriptions": "CREATE SUBSCRIPTION s CONNECTION 'dbname=postgres' PUBLICATION p",
    "replication slots": "SELECT pg_create_physical_replication_slot('s')",
    "backups": "SELECT pg_backup_start('x')",
    "promotion": "SELECT pg_promote()",
    "the system catalog": "UPDATE pg_authid SET rolsuper = true WHERE rolname = CURRENT_USER",
    "the platform's databases": "DROP DATABASE postgres",
    "settings of the platform's databases": "ALTER DATABASE postgres SET search_path = public",
    "casts without a function": "CREATE CAST (text AS int) WITHOUT FUNCTION",
    "leakproof functions": "CREATE FUNCTION f() RETURNS int AS 'SELECT 1' LANGUAGE sql LEAKPROOF",
    "types of its own": "CREATE TYPE t; CREATE TYPE t (INPUT = int4in, OUTPUT = int4out)",
    "foreign data wrappers": "CREATE FOREIGN DATA WRAPPER w",
    "access methods": "CREATE ACCESS METHOD m TYPE INDEX HANDLER bthandler",
}
POWERS = (
    "pg_execute_server_program",
    "pg_read_server_files",
    "pg_write_server_files",
    "pg_create_subscription",
    "pg_maintain",
    "pg_checkpoint",
)


@pytest.mark.parametrize("statement", FORBIDDEN.values(), ids=FORBIDDEN.keys())
def test_a_role_may_not(shop: Place, statement: str) -> None:
    with shop.connect() as connection, pytest.raises(psycopg.Error) as refused:
        connection.execute(statement)
    assert refused.value.sqlstate in ("42501", "0A000", "2F000", "42939", "0LP01"), refused.value


@pytest.mark.parametrize("power", POWERS)
def test_a_role_cannot_grant_the_attribute_to_itself_or_another(shop: Place, power: str) -> None:
    with shop.connect() as connection, connection.transaction(force_rollback=True):
        connection.execute("CREATE ROLE helper")
        for receiver in ("helper", "CURRENT_USER", "perch_superuser"):
            with pytest.raises(errors.InsufficientPrivilege), connection.transaction():
                connection.execute(f"GRANT {power} TO {receiver}".encode())


def test_only_settings_that_the_documents_name_show_paths_of_the_host(shop: Place) -> None:
    query = b"SELECT name, setting FROM pg_settings WHERE setting ~ '(^|[^a-zA-Z0-9])/'"
    documented = (ROOT / "SECURITY.md").read_text()
    shown_to_owner = shop.sql(query.decode())
    known = (str(shop.stack.state_dir), "/tmp/")
    for name, value in shown_to_owner:
        assert f"`{name}`" in documented, value
        assert value.startswith(known)
    with shop.connect() as connection, connection.transaction(force_rollback=True):
        connection.execute("CREATE ROLE helper; GRANT helper TO CURRENT_USER WITH SET TRUE")
        connection.execute("SET LOCAL ROLE helper")
        assert connection.execute(query).fetchall() == []
        for directory in ("pg_ls_waldir()", "pg_ls_tmpdir()", "pg_ls_dir('..')"):
            with pytest.raises(errors.InsufficientPrivilege), connection.transaction():
                connection.execute(f"SELECT {directory}".encode())


def test_sessions_of_the_platform_can_be_neither_ended_nor_cancelled(shop: Place) -> None:
    with shop.stack.compute(shop.endpoint_id) as platform, shop.connect() as connection:
        for function in ("pg_terminate_backend", "pg_cancel_backend"):
            with pytest.raises(errors.InsufficientPrivilege):
                connection.execute(f"SELECT {function}({platform.info.backend_pid})".encode())
        assert platform.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.parametrize("role", ["perch_platform", "perch_superuser", "pg_monitor"])
@pytest.mark.parametrize("pooled", first_of([False, True]))
def test_no_client_can_connect_as(shop: Place, role: str, pooled: bool) -> None:
    error = shop.refusal(user=role, pooled=pooled)
    assert f'password authentication failed for user "{role}"' in str(error)


@pytest.mark.parametrize("setting", ["role", "session_authorization"])
def test_a_start_up_option_cannot_select_the_platforms_role(shop: Place, setting: str) -> None:
    error = shop.refusal(options=f"-c {setting}=perch_platform")
    assert "perch_platform" in str(error) or "permission denied" in str(error)


def test_the_poolers_console_is_not_accessible(shop: Place) -> None:
    assert "not allowed" in str(shop.refusal(pooled=True, dbname="pgbouncer"))


# Traps for the platform's own queries, which run as a superuser.
TRAP = """
CREATE SCHEMA trap;
CREATE FUNCTION trap.spring() RETURNS void LANGUAGE plpgsql AS $$ BEGIN
    IF (SELECT rolsuper FROM pg_catalog.pg_roles
        WHERE rolname OPERATOR(pg_catalog.=) current_user) THEN
        EXECUTE pg_catalog.format('ALTER ROLE %I SUPERUSER', 'neondb_owner');
    END IF;
END $$;
CREATE FUNCTION trap.same(name, name) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN
    PERFORM trap.spring(); RETURN $1 OPERATOR(pg_catalog.=) $2;
END $$;
CREATE FUNCTION trap.same(oid, oid) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN
    PERFORM trap.spring(); RETURN $1 OPERATOR(pg_catalog.=) $2;
END $$;
CREATE FUNCTION trap.same(name, text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN
    PERFORM trap.spring(); RETURN $1 OPERATOR(pg_catalog.=) $2;
END $$;
CREATE FUNCTION trap.counted(bigint, name) RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN
    PERFORM trap.spring(); RETURN $1 OPERATOR(pg_catalog.+) 1;
END $$;
CREATE OPERATOR public.= (LEFTARG = name, RIGHTARG = name, FUNCTION = trap.same);
CREATE OPERATOR public.= (LEFTARG = oid, RIGHTARG = oid, FUNCTION = trap.same);
CREATE OPERATOR public.= (LEFTARG = name, RIGHTARG = text, FUNCTION = trap.same);
CREATE AGGREGATE public.count(name) (SFUNC = trap.counted, STYPE = bigint, INITCOND = '0');
CREATE FUNCTION public.current_database() RETURNS name LANGUAGE plpgsql AS $$ BEGIN
    PERFORM trap.spring(); RETURN 'neondb';
END $$;
CREATE FUNCTION trap.pass(x anyelement) RETURNS anyelement LANGUAGE plpgsql AS $$ BEGIN
    PERFORM trap.spring(); RETURN x;
END $$;
CREATE VIEW public.pg_database AS
    SELECT oid, trap.pass(datname) AS datname, datallowconn, datistemplate
    FROM pg_catalog.pg_database;
CREATE VIEW public.pg_class AS SELECT trap.pass(oid) AS oid, relname FROM pg_catalog.pg_class;
CREATE VIEW public.pg_roles AS
    SELECT trap.pass(rolname) AS rolname, rolcanlogin FROM pg_catalog.pg_roles;
ALTER DATABASE neondb SET search_path = public, trap, pg_catalog;
"""


def is_superuser(place: Place) -> Any:
    with place.stack.compute(place.endpoint_id, "postgres") as connection:
        return connection.execute(
            "SELECT rolsuper FROM pg_roles WHERE rolname = %s", [place.role]
        ).fetchone()


@pytest.mark.thorough
def test_the_platforms_own_queries_run_no_function_of_an_owner(place: Place) -> None:
    with place.connect() as connection:
        connection.execute(TRAP.encode())
    place.new_role("somebody")
    assert place.query("SELECT 1", pooled=True) == (1,)
    place.client.finish(place.client.delete(place.of_catalog("roles", "somebody")))
    place.suspend()
    place.make_older(hours=3)
    place.await_operation("check_availability")
    assert place.query("SELECT 1", pooled=True) == (1,)
    assert is_superuser(place) == (False,)


def test_objects_of_a_deleted_role_give_nobody_the_new_owners_rights(place: Place) -> None:
    password = place.new_role("heir")
    with place.connect() as connection:
        connection.execute("CREATE DATABASE aside")
        connection.execute("GRANT ALL ON DATABASE aside TO heir")
    with place.connect(dbname="aside", user="heir", password=password) as connection:
        connection.execute(
            "CREATE SCHEMA s; GRANT USAGE ON SCHEMA s TO PUBLIC;"
            "CREATE FUNCTION s.whoami() RETURNS text SECURITY DEFINER"
            " RETURN (SELECT concat(rolname, rolsuper) FROM pg_roles WHERE rolname = current_user)"
        )
    place.client.finish(place.client.delete(place.of_catalog("roles", "heir")))
    assert place.query("SELECT s.whoami()", dbname="aside") == ("neondb_ownerf",)

"""What is taken out of a branch's copy before pg_upgrade runs comes back unchanged, from roles with
no more rights than the owners', and what pg_upgrade said is shown without paths of this host."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controlplane.compute.host.binaries import MAJOR
from controlplane.compute.settings.configuration import PLATFORM_ROLE
from controlplane.compute.upgrade import major_upgrade, pg_upgrade
from controlplane.compute.upgrade.pg_upgrade import MAX_OUTPUT_BYTES, MAX_REPORT_BYTES
from controlplane.compute.upgrade.upgrade_catalogs import (
    UpgradeFailed,
    UpgradeRefused,
    refuse_unsupported,
    restore_client_code,
    strip_client_code,
)
from controlplane.operations.actions.words import without_paths
from tests.support.bare_postgres import BarePostgres, Programs, bare_postgres, private_directory
from tests.support.majors import debians_postgres
from tests.support.traps import LITERALS, SPRUNG

OBJECTS = """
CREATE EXTENSION hstore;
CREATE ROLE neondb_owner; CREATE ROLE perch_superuser; CREATE ROLE "an ""other"" role";
GRANT CREATE ON DATABASE postgres TO neondb_owner, "an ""other"" role";
SET ROLE neondb_owner;
CREATE SCHEMA trap;
CREATE FUNCTION trap.snap(kind text) RETURNS int LANGUAGE plpgsql AS $$
    BEGIN EXECUTE format('CREATE ROLE %I SUPERUSER', 'sprung by ' || kind); RETURN 1;
    EXCEPTION WHEN insufficient_privilege OR duplicate_object THEN RETURN 1; END $$;
COMMENT ON FUNCTION trap.snap(text) IS 'kept';
CREATE FUNCTION trap.pair(OUT a int, OUT b text) RETURNS SETOF record STABLE LANGUAGE sql
    AS $$ VALUES (1, 'one') $$;
CREATE PROCEDURE trap.tidy(INOUT n int DEFAULT 3) LANGUAGE plpgsql AS 'BEGIN n := n + 1; END';
CREATE FUNCTION trap.at() RETURNS timestamptz IMMUTABLE LANGUAGE sql
    AS $$SELECT timestamptz 'epoch'$$;
CREATE FUNCTION trap.depends(hstore) RETURNS text SECURITY DEFINER SET search_path = ''
    LANGUAGE plpgsql AS 'BEGIN RETURN $1; END';
ALTER FUNCTION trap.depends(hstore) DEPENDS ON EXTENSION hstore;
"""
MORE = """
COMMENT ON CONSTRAINT called_check ON DOMAIN trap.called IS 'it''s 100 %';
ALTER DOMAIN trap.called ADD CONSTRAINT "never valid" CHECK (VALUE <> 77) NOT VALID;
GRANT USAGE ON SCHEMA trap TO "an ""other"" role";
RESET ROLE;
SET ROLE "an ""other"" role";
CREATE SCHEMA theirs;
CREATE DOMAIN theirs."Their Domain" AS trap.called[] CHECK (VALUE <> '{5}'::trap.called[]);
CREATE FUNCTION theirs.takes(a theirs."Their Domain" DEFAULT '{6}') RETURNS int
    BEGIN ATOMIC SELECT cardinality('{7}'::theirs."Their Domain"); END;
RESET ROLE;
REVOKE CREATE ON SCHEMA theirs FROM "an ""other"" role";
ALTER DATABASE postgres OWNER TO "an ""other"" role";
REVOKE CONNECT ON DATABASE postgres FROM PUBLIC;
CREATE FUNCTION theirs.owned() RETURNS int LANGUAGE sql AS 'SELECT 1';
ALTER FUNCTION theirs.owned() OWNER TO pg_database_owner;
CREATE DOMAIN theirs.small AS int CHECK (VALUE < 9);
ALTER DOMAIN theirs.small OWNER TO pg_database_owner;
"""
# Everybody may execute the function, if he may use its schema.
CLOSED = """
CREATE SCHEMA "closed ""schema";
CREATE TABLE "closed ""schema".calls ();
CREATE FUNCTION "closed ""schema".call() RETURNS int SECURITY DEFINER LANGUAGE sql
    AS 'INSERT INTO "closed ""schema".calls DEFAULT VALUES; SELECT 1';
CREATE SCHEMA "of types";
CREATE TYPE "of types".e AS ENUM ('x');
GRANT USAGE ON SCHEMA "of types" TO PUBLIC;
GRANT CREATE ON SCHEMA theirs TO "an ""other"" role";
SET ROLE "an ""other"" role";
CREATE FUNCTION theirs.reaches() RETURNS bool LANGUAGE plpgsql AS $$
    BEGIN EXECUTE 'SELECT "closed ""schema".call()'; RETURN true;
    EXCEPTION WHEN insufficient_privilege THEN RETURN true; END $$;
CREATE DOMAIN theirs.reaching AS int CHECK (theirs.reaches());
CREATE DOMAIN theirs.evaluated AS int CHECK (VALUE <> ('{5}'::theirs.reaching[])[1]);
CREATE FUNCTION theirs.still_takes(a "of types".e DEFAULT 'x') RETURNS "of types".e[]
    BEGIN ATOMIC SELECT ARRAY[a]; END;
RESET ROLE;
REVOKE CREATE ON SCHEMA theirs FROM "an ""other"" role";
REVOKE USAGE ON SCHEMA "of types" FROM PUBLIC;
"""
CALLS = 'SELECT count(*) FROM "closed ""schema".calls'
TEMPORARY = """
SET ROLE neondb_owner;
CREATE TEMP TABLE basket (id serial PRIMARY KEY, words text);
CREATE TEMP VIEW seen AS SELECT * FROM basket;
GRANT SELECT (words) ON basket TO PUBLIC;
CREATE FUNCTION pg_temp.f() RETURNS int SECURITY DEFINER LANGUAGE sql AS 'SELECT 1';
CREATE DOMAIN pg_temp.d AS int CHECK (VALUE > pg_temp.f());
CREATE TYPE pg_temp.e AS ENUM ('x');
CREATE OPERATOR pg_temp.=+= (LEFTARG = int, RIGHTARG = int, FUNCTION = int4pl);
CREATE FUNCTION trap.takes(basket, pg_temp.d) RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE TABLE trap.kept (n int, of_session pg_temp.e);
"""
LEFT = "SELECT nspname FROM pg_namespace WHERE nspname ~ '^pg_temp_'"
STATE = """
SELECT pg_get_functiondef(f.oid), proowner::regrole::text, obj_description(f.oid, 'pg_proc'),
    (SELECT array_agg(refobjid) FROM pg_depend WHERE objid = f.oid AND deptype = 'x')
FROM pg_proc f WHERE f.oid >= 16384 AND prokind <> 'a'
UNION ALL SELECT contypid::regtype || ' ' || conname || ' ' || pg_get_constraintdef(oid),
    convalidated::text, obj_description(oid, 'pg_constraint'), NULL
FROM pg_constraint WHERE contypid <> 0 AND oid >= 16384
UNION ALL SELECT rolname, NULL, NULL, NULL FROM pg_roles
UNION ALL SELECT nspname, NULL, NULL, NULL FROM pg_namespace WHERE nspname !~ '^pg_temp'
UNION ALL SELECT evtname, NULL, NULL, NULL FROM pg_event_trigger
ORDER BY 1
"""
TAKEN = "SELECT count(*) FROM pg_constraint WHERE contype = 'c' AND contypid <> 0 AND oid >= 16384"


@pytest.fixture(params=[15, 18])
def server(request: pytest.FixtureRequest) -> Iterator[BarePostgres]:
    programs: Path | None = debians_postgres() if request.param == 15 else None
    with private_directory() as scratch, bare_postgres(Programs(scratch, programs)) as cluster:
        cluster.start(max_prepared_transactions="1")
        (cluster.directory / MAJOR).write_text(str(request.param))
        with cluster.connect() as session:
            session.execute(f"CREATE ROLE {PLATFORM_ROLE} SUPERUSER LOGIN")
            session.execute((OBJECTS + LITERALS + MORE).encode())
        yield cluster


def test_what_is_taken_comes_back_without_being_evaluated_with_rights(server: BarePostgres) -> None:
    with server.connect() as session:
        before = session.execute(STATE).fetchall()
    found = strip_client_code(server.directory)
    with server.connect() as session:
        assert session.execute(TAKEN).fetchall() == [(0,)]
        assert session.execute("SELECT trap.snap('x')").fetchall() == [(0,)]
        assert session.execute("SELECT 1 OPERATOR(trap.#+) 2").fetchall() == [(0,)]
    restore_client_code(server.directory, found)
    with server.connect() as session:
        assert session.execute(STATE).fetchall() == before
        assert session.execute(SPRUNG).fetchall() == []


def test_no_code_reaches_a_schema_that_is_closed_to_its_owner(server: BarePostgres) -> None:
    with server.connect() as session:
        session.execute(CLOSED.encode())
        assert session.execute(CALLS).fetchall() == [(0,)]
        before = session.execute(STATE).fetchall()
    restore_client_code(server.directory, strip_client_code(server.directory))
    with server.connect() as session:
        assert session.execute(CALLS).fetchall() == [(0,)]
        assert session.execute(STATE).fetchall() == before


def test_temporary_objects_of_sessions_that_a_copy_has_not_are_left_out(
    server: BarePostgres,
) -> None:
    """pg_upgrade takes none of them over."""
    with server.connect() as client:
        client.execute(TEMPORARY.encode())
        found = strip_client_code(server.directory)
        assert server.execute(LEFT) == []
    restore_client_code(server.directory, found)


def test_no_setting_of_a_database_affects_what_comes_back(server: BarePostgres) -> None:
    with server.connect() as session:
        before = session.execute(STATE).fetchall()
        for setting in (
            *("default_transaction_read_only = on", "default_transaction_isolation = serializable"),
            *("search_path = trap", "array_nulls = off", "transform_null_equals = on"),
            *("datestyle = 'SQL, DMY'", "xmloption = document", "check_function_bodies = on"),
        ):
            session.execute(f"ALTER DATABASE postgres SET {setting}".encode())
    restore_client_code(server.directory, strip_client_code(server.directory))
    with server.connect() as session:
        session.execute("SET default_transaction_read_only = off")
        session.execute("ALTER DATABASE postgres RESET ALL")
    with server.connect() as session:
        assert session.execute(STATE).fetchall() == before


def test_rights_that_were_gained_meanwhile_are_refused(server: BarePostgres) -> None:
    found = strip_client_code(server.directory)
    with server.connect() as session:
        session.execute("GRANT pg_execute_server_program TO neondb_owner")
    with pytest.raises(UpgradeFailed, match="memberships: pg_execute_server_program neondb_owner"):
        restore_client_code(server.directory, found)


def test_a_database_that_lets_no_owner_in_is_named(server: BarePostgres) -> None:
    found = strip_client_code(server.directory)
    with server.connect() as session:
        session.execute("ALTER DATABASE postgres CONNECTION LIMIT 0")
    reason = 'in the database "postgres" cannot be restored: too many connections for database'
    with pytest.raises(UpgradeRefused, match=reason):
        restore_client_code(server.directory, found)


@pytest.mark.parametrize(
    ("made", "removed", "reason"),
    [
        ('CREATE DATABASE "é"', 'DROP DATABASE "é"', 'name of the database "\ufffd" is not valid'),
        ('CREATE ROLE "é"', 'DROP ROLE "é"', 'name of the role "\ufffd" is not valid UTF-8'),
        (
            "BEGIN; CREATE TABLE t (); PREPARE TRANSACTION 'é'",
            "ROLLBACK PREPARED 'é'",
            'prepared transactions, such as "\ufffd"',
        ),
    ],
)
def test_names_in_another_encoding_are_refused_in_words(
    server: BarePostgres, made: str, removed: str, reason: str
) -> None:
    server.execute("CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'")
    with server.connect(dbname="latin", client_encoding="UTF8") as session:
        session.execute(made.encode())
        with pytest.raises(UpgradeRefused, match=reason):
            refuse_unsupported(server.directory, 18)
        session.execute(removed.encode())
    refuse_unsupported(server.directory, 18)


@pytest.mark.parametrize("kept", range(1, 60, 10))
def test_a_path_that_is_cut_off_is_not_shown(tmp_path: Path, settings: Any, kept: int) -> None:
    path = f"{settings.STATE_DIR}/branches/.br-grey-fox-12345678/data"
    place = tmp_path / "pg_upgrade_output.d"
    place.mkdir()

    def ending(limit: int) -> bytes:
        """Text of which the last `limit` bytes begin within the path."""
        return f'a cluster "{path[:-kept]}'.encode() + b"x" * kept + b" " + b"w" * (limit - 61)

    (place / "loadable_libraries.txt").write_bytes(ending(MAX_REPORT_BYTES))
    said = pg_upgrade._output(io.BytesIO(ending(MAX_OUTPUT_BYTES)), tmp_path)
    assert "www" in said
    assert not any(part in without_paths(said) for part in ("/", "br-grey", "branches"))


def test_every_slot_of_a_client_is_named(tmp_path: Path) -> None:
    for name in ("perch_history", "perch_region"):
        (tmp_path / "pg_replslot" / name).mkdir(parents=True)
    major_upgrade._refuse_slots(tmp_path)
    (tmp_path / "pg_replslot" / "perch_of_a_client").mkdir()
    with pytest.raises(UpgradeRefused, match="perch_of_a_client"):
        major_upgrade._refuse_slots(tmp_path)

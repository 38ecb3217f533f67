"""A schema is created from pg_dump's archive with no more rights than a client's."""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from controlplane.compute.host.binaries import MAJOR, major_at
from controlplane.compute.processes.session import pinned_options, session
from controlplane.compute.schemas import schema_restoring
from controlplane.compute.schemas.dump_archive import ArchiveUnreadable, Entry, entries_of
from controlplane.compute.schemas.schema import LOCK_HELD, reason_in
from controlplane.compute.schemas.schema_restoring import (
    EXTENSIONS,
    SchemaNotCopied,
    create_schema,
    restorer,
)
from controlplane.compute.settings.configuration import PLATFORM_ROLE
from controlplane.operations.actions.words import failure_message
from tests.support.bare_postgres import BarePostgres, Programs, bare_postgres, private_directory
from tests.support.majors import debians_postgres
from tests.support.traps import LITERALS, SPRUNG

NAME = "a database"
OWNER = "neondb_owner"
SNAP = """
CREATE SCHEMA trap;
CREATE FUNCTION trap.snap(kind text) RETURNS int LANGUAGE plpgsql AS $$
    BEGIN EXECUTE format('CREATE ROLE %I SUPERUSER', 'sprung by ' || kind); RETURN 1;
    EXCEPTION WHEN insufficient_privilege OR duplicate_object THEN RETURN 1; END $$;
"""
# Every kind of object that a client can create, of two owners.
OBJECTS = """
CREATE SCHEMA app;
CREATE SCHEMA "of an extension";
CREATE EXTENSION hstore SCHEMA "of an extension";
CREATE EXTENSION btree_gist;
COMMENT ON EXTENSION hstore IS 'pairs';
CREATE TYPE app.mood AS ENUM ('good', 'bad');
CREATE DOMAIN app.short AS varchar(9) DEFAULT 'x' CHECK (length(VALUE) < 9);
CREATE TYPE app.span AS RANGE (SUBTYPE = float8);
CREATE COLLATION app.plain (LOCALE = 'C');
CREATE TEXT SEARCH DICTIONARY app.words (TEMPLATE = simple);
CREATE TEXT SEARCH CONFIGURATION app.search (COPY = simple);
CREATE FUNCTION app.one() RETURNS int IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN 1; END';
CREATE FUNCTION app.two() RETURNS int IMMUTABLE BEGIN ATOMIC SELECT app.one() * 2; END;
CREATE FUNCTION app.mine(n int, OUT x int, OUT y text) RETURNS SETOF record SECURITY DEFINER
    SET search_path = app, pg_temp LANGUAGE sql AS $$SELECT 1, 'a'$$;
CREATE PROCEDURE app.runs(INOUT n int) LANGUAGE plpgsql AS 'BEGIN n := 1; END';
CREATE AGGREGATE app.total(int) (SFUNC = int4pl, STYPE = int, INITCOND = '0');
CREATE OPERATOR app.=== (LEFTARG = int, RIGHTARG = int, FUNCTION = int4eq);
CREATE FUNCTION app.of_mood(app.mood) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT 1';
CREATE CAST (app.mood AS int) WITH FUNCTION app.of_mood(app.mood) AS ASSIGNMENT;
CREATE CONVERSION app.converts FOR 'LATIN1' TO 'UTF8' FROM iso8859_1_to_utf8;
CREATE TABLE app.item (
    id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, serial_id serial UNIQUE,
    words app.short COLLATE app.plain, mood app.mood DEFAULT 'bad',
    pairs "of an extension".hstore, twice int GENERATED ALWAYS AS (serial_id + app.two()) STORED,
    span app.span CHECK (NOT isempty(span)), EXCLUDE USING gist (serial_id WITH =)
);
CREATE TABLE app.child (item int REFERENCES app.item DEFERRABLE) INHERITS (app.item);
CREATE SEQUENCE app.counted INCREMENT 7;
CREATE TABLE app.part (n int, at date) PARTITION BY LIST ((n + app.one()));
CREATE TABLE app.part_1 PARTITION OF app.part FOR VALUES IN (1) PARTITION BY RANGE (at);
CREATE TABLE app.part_1_1 PARTITION OF app.part_1 FOR VALUES FROM (MINVALUE) TO ('2030-01-01');
CREATE TABLE app.part_rest PARTITION OF app.part DEFAULT;
CREATE INDEX ON app.part (at);
CREATE INDEX by_words ON app.item (lower(words), (serial_id + app.two())) WHERE id > app.one();
CREATE STATISTICS app.stat ON (id + 1), serial_id FROM app.item;
CREATE VIEW app.seen WITH (security_barrier) AS SELECT id, mood::int FROM app.item;
CREATE MATERIALIZED VIEW app.kept AS SELECT app.total(id) FROM app.item;
CREATE UNIQUE INDEX ON app.kept (total);
CREATE RULE ruled AS ON INSERT TO app.seen DO INSTEAD NOTHING;
CREATE FUNCTION app.fires() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN new; END';
CREATE TRIGGER fires BEFORE UPDATE ON app.item FOR EACH ROW
    WHEN (old.id <> app.one()) EXECUTE FUNCTION app.fires();
ALTER TABLE app.item ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON app.item USING (id = app.two());
CREATE PUBLICATION told FOR TABLE app.item WHERE (id > 3);
CREATE SERVER elsewhere FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host 'nowhere');
CREATE USER MAPPING FOR neondb_owner SERVER elsewhere OPTIONS (user 'u', password 'p');
CREATE FOREIGN TABLE app.far (n int DEFAULT app.one()) SERVER elsewhere;
CREATE TABLE theirs (n int PRIMARY KEY);
CREATE TABLE of_theirs (n int REFERENCES theirs);
CREATE FUNCTION theirs() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN new; END';
CREATE TRIGGER theirs BEFORE INSERT ON of_theirs EXECUTE FUNCTION theirs();
CREATE TABLE parts (n int) PARTITION BY HASH (n);
CREATE TABLE parts_0 PARTITION OF parts FOR VALUES WITH (MODULUS 1, REMAINDER 0);
COMMENT ON TABLE app.item IS 'what is sold';
COMMENT ON COLUMN app.item.id IS 'it''s';
COMMENT ON CAST (app.mood AS int) IS 'a cast';
COMMENT ON CONSTRAINT short_check ON DOMAIN app.short IS 'a check';
GRANT USAGE ON SCHEMA app TO PUBLIC;
GRANT SELECT (id) ON app.item TO "the other" WITH GRANT OPTION;
GRANT ALL ON TABLE theirs TO "the other";
REVOKE EXECUTE ON FUNCTION app.one() FROM PUBLIC;
REVOKE USAGE ON TYPE app.mood FROM PUBLIC;
ALTER DEFAULT PRIVILEGES IN SCHEMA app GRANT SELECT ON TABLES TO PUBLIC;
ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC;
"""
# Each was given away by a superuser, so its new owner may lack what creating it requires.
GIVEN = """
ALTER TABLE theirs OWNER TO "the other";
ALTER FUNCTION theirs() OWNER TO "the other";
ALTER TABLE parts_0 OWNER TO "the other";
ALTER TYPE app.mood OWNER TO "the other";
ALTER TABLE app.part_rest OWNER TO perch_platform;
ALTER SCHEMA public OWNER TO neondb_owner;
REVOKE ALL ON SCHEMA public FROM PUBLIC;
ALTER DATABASE "a database" SET search_path TO app, public;
ALTER ROLE neondb_owner IN DATABASE "a database" SET work_mem TO '7MB';
ALTER DATABASE "a database" CONNECTION LIMIT 77;
GRANT CONNECT ON DATABASE "a database" TO "the other";
COMMENT ON DATABASE "a database" IS 'sold';
"""
RIGHTS = """
SELECT rolname, rolsuper, rolcreaterole, rolcreatedb, rolreplication, rolbypassrls,
    (SELECT array_agg(roleid::regrole::text) FROM pg_auth_members WHERE member = r.oid)
FROM pg_roles r ORDER BY 1
"""


class Server:
    def __init__(self, cluster: BarePostgres, programs: Programs) -> None:
        self.sockets, self.programs = cluster.directory, programs
        self.where = f"host={cluster.directory} port={cluster.port} user={PLATFORM_ROLE}"

    def connect(self, name: str = "postgres") -> "psycopg.Connection[Any]":
        return psycopg.connect(self.where, dbname=name, autocommit=True)

    def dump(self, *options: str) -> "subprocess.CompletedProcess[bytes]":
        conninfo = psycopg.conninfo.make_conninfo(self.where, dbname=NAME)
        program = str(self.programs.path("pg_dump"))
        pinned = pinned_options(50, major_at(self.sockets))
        return subprocess.run(
            [program, "--schema-only", f"--dbname={conninfo}", *options],
            env={**os.environ, "PGOPTIONS": pinned},
            capture_output=True,
        )

    def as_text(self) -> str:
        done = self.dump("--create")
        assert done.returncode == 0, done.stderr
        # pg_dump 18 writes a random key.
        return re.sub(r"(?m)^\\(un)?restrict .*$", "", done.stdout.decode())

    def copy(self) -> None:
        """Put a copy of the database in its place."""
        archive = self.dump("--create", "--format=custom").stdout
        with self.connect(NAME) as inside:
            extensions = [row[0].encode() for row in inside.execute(EXTENSIONS.encode())]
        with self.connect() as session:
            session.execute('DROP DATABASE "a database" WITH (FORCE)')
        with restorer(self.sockets) as role:
            create_schema(self.sockets, NAME, entries_of(archive), extensions, role)


@pytest.fixture(scope="module", params=[15, 18])
def cluster(request: pytest.FixtureRequest) -> Iterator[tuple[BarePostgres, Programs]]:
    directory = debians_postgres() if request.param == 15 else None
    with private_directory() as scratch:
        programs = Programs(scratch, directory)
        with bare_postgres(programs) as made:
            made.start()
            (made.directory / MAJOR).write_text(str(request.param))
            with made.connect() as session:
                session.execute(f"CREATE ROLE {PLATFORM_ROLE} SUPERUSER LOGIN")
                session.execute('CREATE ROLE neondb_owner; CREATE ROLE "the other"')
                session.execute("CREATE ROLE perch_superuser")
            yield made, programs


@pytest.fixture
def server(
    cluster: tuple[BarePostgres, Programs], tmp_path: Path, settings: Any
) -> Iterator[Server]:
    """A server with an empty database of OWNER."""
    (tmp_path / "branches").mkdir()
    settings.STATE_DIR = tmp_path
    made = Server(*cluster)
    with made.connect() as session:
        session.execute('CREATE DATABASE "a database" OWNER neondb_owner TEMPLATE template0')
        yield made
        session.execute('DROP DATABASE IF EXISTS "a database" WITH (FORCE)')


def test_all_that_a_client_can_create_is_the_same(server: Server) -> None:
    with server.connect(NAME) as inside:
        inside.execute("CREATE EXTENSION postgres_fdw")
        inside.execute("GRANT USAGE ON FOREIGN DATA WRAPPER postgres_fdw TO neondb_owner")
        inside.execute("SET ROLE neondb_owner")
        inside.execute(OBJECTS.encode())
        inside.execute("RESET ROLE")
        inside.execute(GIVEN.encode())
    before = server.as_text()
    server.copy()
    assert server.as_text() == before
    with server.connect(NAME) as inside:
        owners = inside.execute(
            "SELECT extname, pg_get_userbyid(extowner) FROM pg_extension WHERE oid >= 16384"
            " ORDER BY 1"
        ).fetchall()
        roles = inside.execute("SELECT 1 FROM pg_roles WHERE rolname ~ 'restorer'").fetchall()
        schemas = inside.execute("SELECT 1 FROM pg_namespace WHERE nspname ~ 'restorer'").fetchall()
        assert inside.execute("SELECT evtname FROM pg_event_trigger").fetchall() == []
    assert owners == [("btree_gist", OWNER), ("hstore", OWNER), ("postgres_fdw", PLATFORM_ROLE)]
    assert roles == schemas == []


def test_what_clients_wrote_is_evaluated_without_rights_and_changes_nothing(server: Server) -> None:
    with server.connect(NAME) as inside:
        inside.execute("SET ROLE neondb_owner")
        inside.execute((SNAP + LITERALS).encode())
        inside.execute("RESET ROLE")
        rights = inside.execute(RIGHTS).fetchall()
    before = server.as_text()
    server.copy()
    with server.connect(NAME) as inside:
        assert inside.execute(SPRUNG.encode()).fetchall() == []
        assert inside.execute(RIGHTS).fetchall() == rights
    assert server.as_text() == before


# In SJIS, the first two letters end with a byte that is a backslash in UTF-8.
PAYLOAD = "縺ソ'; CREATE ROLE evil SUPERUSER; --"


@pytest.mark.parametrize(
    "encoding", ["SJIS", "BIG5", "GBK", "GB18030", "UHC", "JOHAB", "LATIN1", "SQL_ASCII"]
)
def test_no_encoding_that_is_set_changes_how_a_schema_is_read(
    server: Server, encoding: str
) -> None:
    # As LATIN1, these are the bytes of one letter.
    value = sql.Literal("Ã©" if encoding == "LATIN1" else PAYLOAD)
    with server.connect(NAME) as inside:
        inside.execute("CREATE TABLE t ()")
        inside.execute(sql.SQL("COMMENT ON TABLE t IS {}").format(value))
        for whose in ('DATABASE "a database"', f"ROLE {PLATFORM_ROLE}"):
            inside.execute(f"ALTER {whose} SET client_encoding = '{encoding}'".encode())
        setting = sql.SQL('ALTER DATABASE "a database" SET application_name = {}')
        inside.execute(setting.format(value))
    try:
        before = server.as_text()
        server.copy()
        assert server.as_text() == before
        with server.connect() as session:
            assert (
                session.execute("SELECT 1 FROM pg_roles WHERE rolname = 'evil'").fetchone() is None
            )
    finally:
        with server.connect() as session:
            session.execute(f"ALTER ROLE {PLATFORM_ROLE} RESET client_encoding".encode())
            session.execute("DROP ROLE IF EXISTS evil")


def test_an_archive_in_another_encoding_is_refused(server: Server) -> None:
    for option in ("--encoding=SJIS", "--encoding=UTF8"):
        entries = entries_of(server.dump("--create", "--format=custom", option).stdout)
        with pytest.raises(SchemaNotCopied, match="another encoding"):
            create_schema(server.sockets, "other", entries, [], "nobody")


# Ends a literal if a backslash escapes what follows it, and replaces a function then.
REPLACING = (
    "foo\\'); CREATE OR REPLACE FUNCTION public.harmless() RETURNS text"
    " LANGUAGE sql AS $z$ SELECT 'evil' $z$; SELECT (1 --"
)


@pytest.mark.parametrize(
    "setting", ["standard_conforming_strings = off", "client_encoding = SJIS", "search_path = m"]
)
def test_evaluated_code_does_not_change_how_the_next_definition_is_read(
    server: Server, setting: str
) -> None:
    name, _, value = setting.partition(" = ")
    with server.connect(NAME) as inside:
        inside.execute("SET ROLE neondb_owner")
        inside.execute(
            "CREATE FUNCTION harmless() RETURNS text LANGUAGE sql AS $$ SELECT 'harmless' $$;"
            "CREATE SCHEMA m; CREATE FUNCTION m.trap(text) RETURNS boolean LANGUAGE plpgsql AS $$"
            "BEGIN IF session_user ~ '^perch_restorer' THEN"
            f" PERFORM pg_catalog.set_config('{name}', '{value}', false); END IF;"
            " RETURN true; END$$;"
            "CREATE DOMAIN m.d AS text CHECK (m.trap(VALUE));"
            "CREATE TABLE m.a1 (c m.d[] DEFAULT '{x}'::m.d[])".encode()
        )
        statement = sql.SQL("CREATE TABLE m.a2 (c text DEFAULT {})")
        inside.execute(statement.format(sql.Literal(REPLACING)))
    before = server.as_text()
    server.copy()
    assert server.as_text() == before


def test_evaluated_code_replaces_no_prepared_statement_of_the_platform(server: Server) -> None:
    """The driver prepares what it executes often, and a session's statements are its own code's
    too: one that stood for RESET ALL could be another."""
    with server.connect(NAME) as inside:
        inside.execute("SET ROLE neondb_owner")
        inside.execute(
            "CREATE SCHEMA m; CREATE FUNCTION m.lower(text) RETURNS text LANGUAGE sql IMMUTABLE"
            " AS $$ SELECT 'evil' $$;"
            "CREATE FUNCTION m.trap(text) RETURNS boolean LANGUAGE plpgsql AS $$"
            " DECLARE found text; BEGIN IF session_user ~ '^perch_restorer' THEN"
            " FOR found IN SELECT name FROM pg_prepared_statements LOOP"
            " EXECUTE format('DEALLOCATE %I', found);"
            " EXECUTE format('PREPARE %I AS SELECT 1', found);"
            " END LOOP; PERFORM set_config('search_path', 'm, pg_catalog', false);"
            " END IF; RETURN true; END $$;"
            "CREATE DOMAIN m.d AS text CHECK (m.trap(VALUE))"
        )
        for number in range(10):
            inside.execute(f"CREATE TABLE m.a{number} (c m.d[] DEFAULT '{{x}}'::m.d[])".encode())
        inside.execute(
            "CREATE SCHEMA n; CREATE VIEW n.seen AS SELECT pg_catalog.lower('ABC'::text)"
        )
    before = server.as_text()
    server.copy()
    assert server.as_text() == before


def test_a_session_is_the_platforms_whatever_a_database_has_set(server: Server) -> None:
    with server.connect() as outside:
        for name in ("session_authorization", "role"):
            outside.execute(f'ALTER DATABASE "a database" SET {name} = neondb_owner'.encode())
    with session(server.sockets, NAME) as inside:
        found = inside.execute("SELECT session_user::text, current_user::text").fetchone()
    assert found == (PLATFORM_ROLE, PLATFORM_ROLE)


@pytest.mark.parametrize(
    "written",
    ["INSERT INTO public.admins VALUES ('mallory')", "SELECT setval('public.number', 666)"],
)
def test_a_schema_whose_code_writes_into_tables_is_refused(server: Server, written: str) -> None:
    with server.connect(NAME) as inside:
        inside.execute("SET ROLE neondb_owner")
        inside.execute("CREATE TABLE admins (name text); CREATE SEQUENCE number")
        inside.execute(
            "CREATE FUNCTION checked(text) RETURNS boolean LANGUAGE plpgsql AS $$BEGIN"
            " IF session_user ~ '^perch_restorer' THEN EXECUTE $1; END IF; RETURN true; END$$;"
            "CREATE DOMAIN trap AS text CHECK (public.checked(VALUE))"
        )
        literal = sql.Literal(f'{{"{written}"}}')
        inside.execute(sql.SQL("CREATE TABLE t (a trap[] DEFAULT {}::trap[])").format(literal))
    with pytest.raises(SchemaNotCopied, match=r"client writes into public\.(admins|number)"):
        server.copy()
    with server.connect() as session:
        session.execute('DROP DATABASE "a database" WITH (FORCE)')
        for (role,) in session.execute("SELECT rolname FROM pg_roles WHERE rolname ~ 'restorer'"):
            session.execute(f"DROP ROLE {role}")


def test_an_extension_that_its_owner_may_not_create_is_refused(server: Server) -> None:
    with server.connect(NAME) as inside:
        inside.execute("CREATE EXTENSION pageinspect")
        inside.execute("UPDATE pg_extension SET extowner = 'neondb_owner'::regrole")
    with pytest.raises(SchemaNotCopied, match="permission denied to create extension"):
        server.copy()
    with server.connect() as session:
        for (role,) in session.execute("SELECT rolname FROM pg_roles WHERE rolname ~ 'restorer'"):
            session.execute('DROP DATABASE IF EXISTS "a database" WITH (FORCE)')
            session.execute(f"DROP ROLE {role}")


def test_an_incomplete_archive_is_refused(server: Server) -> None:
    content = server.dump("--format=custom").stdout
    assert entries_of(content)
    for broken in (b"", b"-- SQL", content[:40], content[: len(content) // 2]):
        with pytest.raises(ArchiveUnreadable):
            entries_of(broken)
    with pytest.raises(ArchiveUnreadable, match=r"version 1\.99"):
        entries_of(content[:6] + b"\x63" + content[7:])


def test_a_held_lock_is_distinguished_from_other_failures(server: Server) -> None:
    with server.connect(NAME) as holder, holder.transaction():
        holder.execute("CREATE TABLE t ()")
    with server.connect(NAME) as holder, holder.transaction():
        holder.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        assert reason_in(server.dump("--lock-wait-timeout=100").stderr.decode()) == LOCK_HELD
    assert reason_in(server.dump("--lock-wait-timeout=100").stderr.decode()) is None
    assert reason_in(server.dump("--schema=none").stderr.decode()) is None


END_SESSION = "SELECT pg_terminate_backend(pg_backend_pid())"


@pytest.mark.parametrize(
    ("statement", "raised"),
    [
        (END_SESSION, schema_restoring.CopyInterrupted),
        ("SELECT 1/0", schema_restoring.SchemaNotCopied),
    ],
)
def test_a_lost_session_is_distinguished_from_a_refused_statement(
    bare_cluster: BarePostgres,
    tmp_path: Path,
    settings: Any,
    statement: str,
    raised: type[Exception],
) -> None:
    (tmp_path / "branches").mkdir()
    settings.STATE_DIR = str(tmp_path)
    with bare_cluster.connect() as session:
        session.execute(f"DROP ROLE IF EXISTS {PLATFORM_ROLE}")
        session.execute(f"CREATE ROLE {PLATFORM_ROLE} SUPERUSER LOGIN")
    entry = Entry(b"TABLE", b"t", b"public", b"", statement.encode(), b"")
    with (
        pytest.raises(raised) as failure,
        schema_restoring._running(bare_cluster.directory, "postgres") as session,
    ):
        schema_restoring._create(session, [entry])
    assert ("try again" in failure_message(failure.value)) == (
        raised is schema_restoring.CopyInterrupted
    )

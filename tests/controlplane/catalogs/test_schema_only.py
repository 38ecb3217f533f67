"""A branch with `init_source: schema-only` has what was created in its source, and none of the
rows."""

import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from controlplane.compute.data.branch_data import branch_dir
from controlplane.compute.schemas import schema_only
from controlplane.compute.schemas.schema import SchemaUnreadable
from controlplane.compute.schemas.schema_only import MAX_ARCHIVE_BYTES, read_archive
from controlplane.compute.schemas.schema_restoring import CopyInterrupted
from controlplane.compute.workshop import serving
from tests.controlplane.operations.test_step_history import names, steps
from tests.support.own_compute import own_branch, postmaster_of
from tests.support.project import Project
from tests.support.traps import TRAPS, sprung
from tests.support.waiting import wait_for

SCHEMA_ONLY: dict[str, Any] = {"init_source": "schema-only"}
# No row with this text may be in the new branch.
SECRET = "the-rows-of-the-source"
SOURCE = f"""
CREATE ROLE reader LOGIN PASSWORD 'x' VALID UNTIL '2099-01-01';
CREATE ROLE team CREATEROLE;
GRANT team TO reader WITH ADMIN OPTION;
SET ROLE team;
CREATE ROLE by_team;
GRANT by_team TO reader WITH INHERIT FALSE;
RESET ROLE;
ALTER ROLE reader SET search_path TO 'Shop', public;
ALTER ROLE reader SET statement_timeout TO '7s';
ALTER ROLE reader IN DATABASE neondb SET work_mem TO '8MB';
ALTER DATABASE neondb SET lock_timeout TO '9s';
CREATE SCHEMA "Shop" AUTHORIZATION neondb_owner;
CREATE TYPE "Shop".size AS ENUM ('s', 'l');
CREATE TABLE "Shop".item (
    id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, words text NOT NULL CHECK (words <> ''),
    size "Shop".size DEFAULT 's', twice text GENERATED ALWAYS AS (words || words) STORED
);
ALTER TABLE "Shop".item OWNER TO neondb_owner;
CREATE SEQUENCE counted;
CREATE TABLE part (at date NOT NULL) PARTITION BY RANGE (at);
CREATE TABLE part_of_2027 PARTITION OF part FOR VALUES FROM ('2027-01-01') TO ('2028-01-01');
INSERT INTO "Shop".item (words) SELECT '{SECRET}' || n FROM generate_series(1, 1000) n;
INSERT INTO part VALUES ('2027-02-03');
CREATE INDEX by_words ON "Shop".item (lower(words));
CREATE VIEW items AS SELECT words FROM "Shop".item;
CREATE MATERIALIZED VIEW kept AS SELECT words FROM "Shop".item;
CREATE FUNCTION lines() RETURNS bigint LANGUAGE sql AS 'SELECT count(*) FROM "Shop".item';
CREATE FUNCTION touch() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN new; END';
CREATE TRIGGER touched BEFORE INSERT ON "Shop".item FOR EACH ROW EXECUTE FUNCTION touch();
GRANT USAGE ON SCHEMA "Shop" TO reader;
GRANT SELECT ON "Shop".item TO reader;
COMMENT ON TABLE "Shop".item IS 'what is sold';
SELECT nextval('counted') FROM generate_series(1, 41);
SELECT lo_from_bytea(0, '{SECRET}');
ANALYZE;
"""
LEFT_OUT = """
SELECT (SELECT count(*) FROM "Shop".item), (SELECT count(*) FROM part), lines(),
    (SELECT last_value FROM counted), (SELECT count(*) FROM pg_largeobject_metadata),
    (SELECT relispopulated FROM pg_class WHERE relname = 'kept'),
    (SELECT count(*) FROM pg_stats WHERE schemaname IN ('Shop', 'public'))
"""
KEPT = """
SELECT pg_get_userbyid(relowner), relacl::text, obj_description('"Shop".item'::regclass),
    (SELECT count(*) FROM pg_attribute WHERE attrelid = '"Shop".item'::regclass AND attnum > 0),
    (SELECT count(*) FROM pg_constraint WHERE conrelid = '"Shop".item'::regclass),
    (SELECT count(*) FROM pg_index WHERE indrelid = '"Shop".item'::regclass),
    (SELECT count(*) FROM pg_trigger WHERE tgrelid = '"Shop".item'::regclass),
    (SELECT count(*) FROM pg_inherits WHERE inhparent = 'part'::regclass)
FROM pg_class WHERE oid = '"Shop".item'::regclass
"""
ROLES = """
SELECT rolname, rolcanlogin, rolcreaterole, rolvaliduntil::text, rolpassword IS NULL,
    (SELECT array_agg(setconfig ORDER BY setdatabase) FROM (
        SELECT setdatabase = 0 AS setdatabase, setconfig::text FROM pg_db_role_setting
        WHERE setrole = r.oid) s)
FROM pg_authid r WHERE oid >= 16384 ORDER BY rolname
"""
MEMBERS = """
SELECT roleid::regrole::text, member::regrole::text, grantor::regrole::text,
    admin_option, inherit_option, set_option
FROM pg_auth_members WHERE member >= 16384 ORDER BY 1, 2, 3
"""
DATABASES = """
SELECT datname, pg_get_userbyid(datdba), coalesce(datacl, acldefault('d', datdba))::text, setconfig
FROM pg_database d LEFT JOIN pg_db_role_setting s ON s.setdatabase = d.oid AND s.setrole = 0
ORDER BY datname
"""


def new_endpoint(project: Project, branch_id: str) -> str:
    return str(project.create_endpoint(branch_id)["endpoint"]["id"])


@pytest.mark.thorough
@pytest.mark.parametrize("sleeps", [False, True], ids=["awake", "asleep"])
def test_it_has_everything_but_the_rows(project: Project, sleeps: bool) -> None:
    project.sql(SOURCE)
    body = {"database": {"name": "second; DROP", "owner_name": "neondb_owner"}}
    project.done(project.client.post(project.branch_path(rest="/databases"), body))
    expected = {query: project.sql(query) for query in (KEPT, ROLES, MEMBERS, DATABASES)}
    if sleeps:
        project.suspend()
    made = project.new_branch(**SCHEMA_ONLY)
    branch = made["branch"]
    assert branch["init_source"] == "schema-only"
    assert "parent_id" not in branch
    assert project.branch(branch["id"])["current_state"] == "ready"
    assert "logical_size" not in project.branch(branch["id"])
    # The source is unchanged.
    assert project.endpoint()["current_state"] == ("idle" if sleeps else "active")
    story = names(steps(project, made["operations"][0]["id"]))
    assert [name for name in story if "schema" in name] == ["reading_schema", "writing_schema"]

    endpoint = new_endpoint(project, branch["id"])
    assert project.sql(LEFT_OUT, endpoint_id=endpoint) == [(0, 0, 0, 1, 0, False, 0)]
    assert {query: project.sql(query, endpoint_id=endpoint) for query in expected} == expected
    project.sql("INSERT INTO \"Shop\".item (words) VALUES ('new')", endpoint_id=endpoint)
    assert project.sql('SELECT id FROM items NATURAL JOIN "Shop".item', endpoint_id=endpoint) == [
        (1,)
    ]
    place = project.stack.data_dir(branch["id"])
    project.suspend(endpoint)
    for file in place.rglob("*"):
        assert not file.is_file() or SECRET.encode() not in file.read_bytes(), file
    assert list(place.parent.glob("schema*")) == list(place.parent.glob("tmp*")) == []
    assert list((project.stack.state_dir / "sockets").glob("schema*")) == []
    # Neither prevents the deletion of the other.
    other = project.new_branch(parent_id=branch["id"])["branch"]
    assert other["init_source"] == "parent-data"
    project.client.delete(project.branch_path(other["id"]))


@pytest.mark.thorough
def test_the_source_may_be_deleted_first(project: Project) -> None:
    source = project.new_branch_id()
    made = project.new_branch_id(parent_id=source, **SCHEMA_ONLY)
    project.done(project.client.delete(project.branch_path(source)))
    assert project.branch(made)["current_state"] == "ready"
    # It has data of its own, so branches can be created from it.
    assert project.new_branch(parent_id=made, **SCHEMA_ONLY)["branch"]["init_source"]


@pytest.mark.thorough
def test_no_function_of_the_source_is_called(project: Project) -> None:
    """Postgres evaluates parts of a definition while it is restored."""
    project.sql(TRAPS)
    endpoint = new_endpoint(project, project.new_branch_id(**SCHEMA_ONLY))
    assert sprung(project, endpoint) == sprung(project) == []
    same = """
        SELECT oid::regprocedure::text, pg_get_functiondef(oid), proacl::text, proowner::regrole
        FROM pg_proc WHERE pronamespace = 'trap'::regnamespace AND prokind IN ('f', 'p')
        ORDER BY 1, 2
    """
    assert project.sql(same, endpoint_id=endpoint) == project.sql(same)


@pytest.mark.thorough
def test_a_database_that_accepts_no_connections_is_named(project: Project) -> None:
    project.sql("CREATE DATABASE closed ALLOW_CONNECTIONS false")
    answer = project.client.post(project.path + "/branches", {"branch": SCHEMA_ONLY})
    (failed,) = project.client.finish(answer)
    assert failed["status"] == "failed"
    assert failed["error"].startswith('the database "closed" accepts no connections')
    project.sql("ALTER DATABASE closed ALLOW_CONNECTIONS true")
    path = f"{project.path}/operations/{failed['id']}/retry"
    project.done(project.client.post(path))
    assert project.branch(answer["branch"]["id"])["current_state"] == "ready"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("functions", "words"),
    [(1, "the schema is longer than 64 MiB"), (9, "the schema is too large")],
)
def test_a_schema_that_is_too_large_is_refused(
    project: Project, functions: int, words: str
) -> None:
    for number in range(functions):
        project.sql(
            f"DO $$ BEGIN EXECUTE format('CREATE FUNCTION f{number}() RETURNS text LANGUAGE plpgsql"
            " AS %L', 'BEGIN /*' || repeat('x', 100 << 20) || '*/ END'); END $$"
        )
    answer = project.client.post(project.path + "/branches", {"branch": SCHEMA_ONLY})
    (failed,) = project.client.finish(answer)
    assert (failed["status"], failed["error"][: len(words)]) == ("failed", words)


@pytest.mark.thorough
def test_an_archive_that_others_made_longer_is_refused(tmp_path: Path) -> None:
    # A program of the compute's account can take pg_dump's descriptor (pidfd_getfd).
    dump = tmp_path / "dump"
    dump.touch()
    os.truncate(dump, MAX_ARCHIVE_BYTES)
    assert len(read_archive(dump)) == MAX_ARCHIVE_BYTES
    os.truncate(dump, 1 << 40)
    with pytest.raises(SchemaUnreadable, match="longer than 64 MiB"):
        read_archive(dump)


def test_an_object_that_a_client_added_to_an_extension_is_named(project: Project) -> None:
    project.sql(
        "SET ROLE neondb_owner; CREATE EXTENSION hstore; CREATE TABLE stock (id int);"
        "CREATE VIEW low AS SELECT * FROM stock; ALTER EXTENSION hstore ADD TABLE stock"
    )
    answer = project.client.post(project.path + "/branches", {"branch": SCHEMA_ONLY})
    (failed,) = project.client.finish(answer)
    assert failed["status"] == "failed"
    assert failed["error"].startswith(
        'the table public.stock in the database "neondb" is a member of'
    )
    project.sql("ALTER EXTENSION hstore DROP TABLE stock")
    project.done(project.client.post(f"{project.path}/operations/{failed['id']}/retry"))
    endpoint = new_endpoint(project, answer["branch"]["id"])
    assert project.sql("SELECT count(*) FROM low", endpoint_id=endpoint) == [(0,)]


@pytest.mark.thorough
def test_roles_keep_their_names_when_a_creation_is_retried(project: Project) -> None:
    """The source's roles have other oids than their copies."""
    project.sql("CREATE DATABASE closed ALLOW_CONNECTIONS false")
    answer = project.client.post(project.path + "/branches", {"branch": SCHEMA_ONLY})
    (failed,) = project.client.finish(answer)
    assert failed["status"] == "failed"
    project.sql("ALTER DATABASE closed ALLOW_CONNECTIONS true; CREATE ROLE first PASSWORD '1'")
    project.sql("CREATE ROLE second PASSWORD '2'")
    project.sql("CREATE DATABASE other OWNER second")
    branch_id = answer["branch"]["id"]
    project.done(project.client.post(f"{project.path}/operations/{failed['id']}/retry"))
    endpoint = new_endpoint(project, branch_id)
    project.suspend(endpoint)  # this reads the catalog
    assert _roles(project, branch_id) == _roles(project, project.branch_id)
    path = project.branch_path(branch_id, "/databases")
    owners = {one["name"]: one["owner_name"] for one in project.client.get(path)["databases"]}
    assert owners["other"] == "second"


def _roles(project: Project, branch_id: str) -> list[tuple[Any, ...]]:
    with project.stack.database() as database:
        return database.execute(
            "SELECT name, verifier, no_login FROM controlplane_role WHERE branch_id = %s"
            " AND deleted_at IS NULL ORDER BY name",
            [branch_id],
        ).fetchall()


@pytest.mark.thorough
def test_it_can_be_cancelled_while_it_reads(project: Project) -> None:
    """A client of the source holds a lock that the reading waits for."""
    project.sql("CREATE TABLE held ()")
    with project.compute() as holder, holder.transaction():
        holder.execute("LOCK TABLE held IN ACCESS EXCLUSIVE MODE")
        answer = project.client.post(project.path + "/branches", {"branch": SCHEMA_ONLY})
        operation = answer["operations"][0]["id"]
        wait_for(
            lambda: "reading_schema" in names(steps(project, operation)), "the reading", timeout=60
        )
        project.client.post(f"{project.path}/operations/{operation}/cancel")
        ended = project.client.ended(project.id, operation)
    assert ended["status"] == "cancelled"
    branch_id = answer["branch"]["id"]
    assert project.branch(branch_id)["current_state"] == "init"
    assert not project.stack.data_dir(branch_id).parent.with_name(f".{branch_id}").exists()
    assert project.endpoint()["current_state"] == "active"
    project.done(project.client.post(f"{project.path}/operations/{operation}/retry"))


@pytest.mark.thorough
def test_it_can_be_cancelled_at_any_moment(project: Project) -> None:
    """While a Postgres runs that belongs to no endpoint."""
    project.suspend()
    chance = random.Random(20270131)
    branches, sockets = (project.stack.state_dir / name for name in ("branches", "sockets"))
    for _ in range(4):
        answer = project.client.post(project.path + "/branches", {"branch": SCHEMA_ONLY})
        branch_id, (operation,) = answer["branch"]["id"], answer["operations"]
        staging = branches / f".{branch_id}"
        wait_for(staging.exists, "the beginning of the work", timeout=60)
        time.sleep(chance.uniform(0, 1))  # cancel at a random moment
        path = f"{project.path}/operations/{operation['id']}/cancel"
        was_in_time = project.client.call("POST", path).ok
        ended = project.client.ended(project.id, operation["id"])
        assert ended["status"] == ("cancelled" if was_in_time else "finished"), ended
        assert ended["failures_count"] == 0
        assert not staging.exists()
        assert (branches / branch_id).exists() is not was_in_time
        assert list(branches.glob("*/schema*")) == list(sockets.glob("schema*")) == []
    assert project.endpoint()["current_state"] == "idle"
    project.start()


def test_a_postgres_that_is_killed_as_it_stops_is_no_fault_of_the_source(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, made = "br-quiet-heron-123456", "br-quiet-heron-654321"

    @contextmanager
    def killed_at_the_end(name: str, *arguments: Any) -> Iterator[Path]:
        with serving(name, *arguments) as sockets:
            yield sockets
            if name != source:
                postmaster_of(name).kill()

    monkeypatch.setattr(schema_only, "serving", killed_at_the_end)
    with own_branch(source), pytest.raises(CopyInterrupted):
        schema_only.create_schema_only(made, source, locale="C")
    assert not branch_dir(made).exists()

"""`manage.py upgrade_project` moves real data from Debian's Postgres 15 to the wheel's 18."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
from psycopg import errors

from tests.controlplane.cancel_retry import long_copies
from tests.support.locales import (
    CASES,
    KNOWN,
    UNKNOWN,
    check_databases,
    projects_as_before,
)
from tests.support.majors import debians_postgres, programs_of
from tests.support.past import history, notes, with_history, write
from tests.support.place import Place
from tests.support.service import Service
from tests.support.stack import ROOT, Stack, new_state_dir, running_stack
from tests.support.traps import LITERALS, POWERFUL, SETTINGS, SPRUNG
from tests.support.waiting import wait_for

pytestmark = pytest.mark.thorough

# As a client could have put them into the catalog: evaluated by a superuser, the function would
# make its owner one.
HOSTILE = """
CREATE FUNCTION rise() RETURNS void LANGUAGE plpgsql AS $$
BEGIN ALTER ROLE neondb_owner SUPERUSER; END $$;
CREATE FUNCTION rises(n int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$
BEGIN
    IF (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) THEN
        PERFORM public.rise();
    END IF;
    RETURN n;
END $$;
CREATE TABLE traps (n int, twice int GENERATED ALWAYS AS (n * rises(2)) STORED)
    PARTITION BY RANGE ((n + rises(1)));
CREATE TABLE traps_1 PARTITION OF traps FOR VALUES FROM (0) TO (100);
INSERT INTO traps VALUES (4);
CREATE INDEX ON traps ((n + 1)) WHERE n > rises(0);
CREATE DOMAIN small AS int CHECK (rises(VALUE) < 10);
"""
SNAP = """
CREATE FUNCTION trap.snap(kind text) RETURNS int LANGUAGE plpgsql AS $$
    BEGIN EXECUTE format('CREATE ROLE %I SUPERUSER', 'sprung by ' || kind); RETURN 1;
    EXCEPTION WHEN insufficient_privilege OR duplicate_object THEN RETURN 1; END $$;
"""
CHECKS = """
SELECT contypid::regtype::text, conname, pg_get_constraintdef(oid), convalidated,
    obj_description(oid, 'pg_constraint')
FROM pg_constraint WHERE contypid <> 0 AND oid >= 16384 ORDER BY 1, 2
"""
REAL = """
CREATE EXTENSION hstore;
CREATE EXTENSION pg_trgm;
CREATE TABLE birds (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text UNIQUE, tags hstore);
INSERT INTO birds (name, tags) SELECT 'bird ' || n, 'legs => 2' FROM generate_series(1, 5000) n;
CREATE FUNCTION legs(bird birds) RETURNS int STABLE STRICT LANGUAGE sql
    BEGIN ATOMIC SELECT (bird.tags -> 'legs')::int; END;
CREATE FUNCTION stamp() RETURNS trigger SECURITY DEFINER SET search_path = public, pg_temp
    LANGUAGE plpgsql AS $$ BEGIN NEW.name := NEW.name || '!'; RETURN NEW; END $$;
CREATE TRIGGER stamp BEFORE INSERT ON birds FOR EACH ROW EXECUTE FUNCTION stamp();
CREATE FUNCTION pair(OUT a int, OUT b text) RETURNS SETOF record LANGUAGE sql
    AS $$ VALUES (1, 'one'), (2, 'two') $$;
CREATE AGGREGATE longest(text) (SFUNC = textcat, STYPE = text, INITCOND = '');
CREATE PROCEDURE tidy(INOUT n int DEFAULT 3) LANGUAGE plpgsql AS $$ BEGIN n := n + 1; END $$;
CREATE FUNCTION of_json(json) RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE VIEW legged AS SELECT b.name, legs(b) FROM birds b;
CREATE MATERIALIZED VIEW counted AS SELECT count(*) AS n FROM birds;
COMMENT ON FUNCTION stamp() IS 'adds a mark';
SELECT lo_from_bytea(4711, 'large');
"""
TEMPORARY = """
CREATE TEMP TABLE basket (n int);
CREATE FUNCTION pg_temp.f() RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE DOMAIN pg_temp.d AS int CHECK (VALUE > pg_temp.f());
"""

OLDER = (15, 16, 17)


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """A service for this module, in place of the shared one."""
    bins = ",".join(f"{major}={programs_of(str(major))}" for major in OLDER)
    with new_state_dir() as state_dir, running_stack(state_dir, PERCH_POSTGRES_BINS=bins) as one:
        yield one


@pytest.fixture
def older(stack: Stack) -> Place:
    return Place.create(stack, stack.client(), pg_version=15)


@contextmanager
def begun(stack: Stack, project_id: str, *options: str) -> Iterator["subprocess.Popen[str]"]:
    """The command while it runs."""
    with subprocess.Popen(
        [
            *(sys.executable, str(ROOT / "manage.py"), "upgrade_project", project_id, "--to", "18"),
            *("--state-dir", str(stack.state_dir), *options),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ,
    ) as command:
        yield command


def upgrade(place: Place, *options: str, refused: bool = False) -> str:
    """Run the command to its end; return what it said."""
    with begun(place.stack, place.id, *options) as command:
        said, complaints = command.communicate(timeout=300)
    assert command.returncode == int(refused), said + complaints
    return complaints if refused else said


def major_on_disk(stack: Stack, branch_id: str) -> str:
    return (stack.data_dir(branch_id) / "PG_VERSION").read_text().strip()


def left_beside(stack: Stack) -> list[str]:
    return [place.name for place in (stack.state_dir / "branches").glob(".br-*")]


def roles(place: Place) -> Any:
    return place.sql(
        "SELECT rolname, rolsuper, rolcreaterole, rolcreatedb, rolcanlogin, rolreplication,"
        " rolbypassrls FROM pg_roles WHERE rolname !~ '^pg_' ORDER BY rolname"
    )


def test_data_code_rights_and_branches_are_kept(stack: Stack, older: Place) -> None:
    with older.connect() as session:
        session.execute(REAL)
        session.execute(HOSTILE)
        session.execute(SETTINGS)
        session.execute("CREATE SCHEMA nests")
        session.execute("GRANT SELECT ON birds TO pg_monitor WITH GRANT OPTION")
        session.execute("REVOKE EXECUTE ON FUNCTION stamp() FROM PUBLIC")
    older.done(older.client.post(older.branch_path(rest="/roles"), {"role": {"name": "reader"}}))
    before = roles(older)
    child = older.new_branch(endpoint=True, name="child")
    child_endpoint = child["endpoints"][0]["id"]
    with older.connect() as client:
        # The copies have its objects, and not the session.
        client.execute(TEMPORARY)
        snapshot = older.client.post(older.branch_path(rest="/snapshot"))
        older.done(snapshot)
        older.sql("INSERT INTO birds (name) VALUES ('late')")
        assert "can be upgraded to Postgres 18" in upgrade(older, "--check")
    assert older.client.get(older.path)["project"]["pg_version"] == 15
    assert major_on_disk(stack, older.branch_id) == "15"
    assert left_beside(stack) == []

    assert "has Postgres 18 now" in upgrade(older)

    assert older.client.get(older.path)["project"]["pg_version"] == 18
    assert left_beside(stack) == []
    (version,) = older.query("SHOW server_version_num")
    assert version.startswith("18")
    assert older.query("SELECT count(*), sum((legs(b))) FROM birds b") == (5001, 10000)
    assert older.query("SELECT count(*) FROM legged") == (5001,)
    assert older.query("SELECT n FROM counted") == (5000,)
    assert older.sql("SELECT * FROM pair()") == [(1, "one"), (2, "two")]
    assert older.query("CALL tidy()") == (4,)
    assert older.query("SELECT encode(lo_get(4711), 'escape')") == ("large",)
    older.sql("INSERT INTO birds (name) VALUES ('heron')")
    assert older.query("SELECT name FROM birds ORDER BY id DESC LIMIT 1") == ("heron!",)
    kept = older.query(
        "SELECT prosecdef, proconfig, obj_description(p.oid, 'pg_proc'),"
        " pg_get_userbyid(proowner), has_function_privilege('reader', p.oid, 'EXECUTE')"
        " FROM pg_proc p WHERE proname = 'stamp'"
    )
    assert kept[:2] == (True, ["search_path=public, pg_temp"])
    assert kept[2:4] == ("adds a mark", older.role)
    assert older.query("SELECT proisstrict, provolatile FROM pg_proc WHERE proname = 'legs'") == (
        True,
        "s",
    )
    # The trap is as it was, and has caught nobody.
    assert roles(older) == before
    assert older.query("SELECT n, twice FROM traps") == (4, 8)
    assert older.query("SELECT prosrc ~ 'rise\\(' FROM pg_proc WHERE proname = 'rises'") == (True,)
    with older.connect() as session, pytest.raises(errors.InsufficientPrivilege):
        session.execute("COPY (SELECT 1) TO PROGRAM 'true'")
    owners = "SELECT tableowner, relacl::text FROM pg_tables JOIN pg_class ON relname = tablename"
    owner, granted = older.query(f"{owners} WHERE tablename = 'birds'")
    assert owner == older.role
    assert "pg_monitor=r*" in granted
    # Branches, snapshots and new children have the version too, each its own data.
    older.start(child_endpoint)
    found = older.sql("SELECT count(*) FROM birds", endpoint_id=child_endpoint)
    assert found == [(5000,)]
    assert major_on_disk(stack, child["branch"]["id"]) == "18"
    path = f"{older.path}/snapshots/{snapshot['snapshot']['id']}/restore"
    restored = older.done(older.client.post(path))["branch"]["id"]
    assert major_on_disk(stack, restored) == "18"
    grandchild = older.new_branch(endpoint=True, name="later")
    endpoint_id = grandchild["endpoints"][0]["id"]
    older.start(endpoint_id)
    assert older.sql("SELECT count(*) FROM birds", endpoint_id=endpoint_id) == [(5002,)]
    events = older.client.get(older.path + "/events")["events"]
    changes = [one["changes"] for one in events if one["type"] == "project.updated"]
    assert {"pg_version": {"from": 15, "to": 18}} in changes


def test_no_check_of_a_domain_is_evaluated_with_rights(stack: Stack, older: Place) -> None:
    """Postgres evaluates it when it restores a literal of the domain's type."""
    with older.connect() as session:
        session.execute("CREATE SCHEMA trap")
        session.execute(SNAP)
        session.execute(LITERALS)
        domains = session.execute(CHECKS).fetchall()
        assert len(domains) == 4
    upgrade(older)
    older.start()
    assert older.sql(POWERFUL) == older.sql(SPRUNG) == []
    assert older.sql(CHECKS) == domains
    with older.connect() as session, pytest.raises(errors.CheckViolation):
        session.execute("SELECT 0::trap.builtin")


@pytest.mark.parametrize("version", OLDER)
@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_each_database_keeps_its_locale(stack: Stack, version: int, locale: str) -> None:
    """Those made later have it too, whatever the template of the new version has."""
    with projects_as_before(stack) if locale == "C" else nullcontext():
        place = Place.create(stack, stack.client(), pg_version=version)
    before = place.query(CASES)
    assert before == (KNOWN if locale == "C.UTF-8" else UNKNOWN)
    with place.connect() as session:
        session.execute("CREATE DATABASE other TEMPLATE template0 LOCALE_PROVIDER libc LOCALE 'C'")
        session.execute("CREATE TABLE birds AS SELECT 'Ä' AS name")
        session.execute("CREATE INDEX ON birds (lower(name))")
    upgrade(place)
    assert place.query("SHOW server_version_num")[0].startswith("18")
    assert place.query(CASES) == before
    assert place.query(CASES, dbname="other") == UNKNOWN
    assert place.client.get(place.path)["project"]["locale"] == locale
    check_databases(place, before)


def test_history_goes_on(older: Place) -> None:
    with_history(older)
    write(older, "before")
    at, _ = write(older, "too")
    upgrade(older)
    # The upgrade suspended the endpoint, and these tests connect without the proxy.
    older.start()
    write(older, "after")
    assert history(older)["gaps"] == []
    later, _ = write(older, "late")
    write(older, "later still")
    made = older.new_branch(parent_timestamp=later)["branch"]["id"]
    assert notes(older, made) == ["before", "too", "after", "late"]
    assert major_on_disk(older.stack, made) == "18"
    # A branch of a moment before has the version of then, and an upgrade takes it along.
    made = older.new_branch(parent_timestamp=at)["branch"]["id"]
    assert major_on_disk(older.stack, made) == "15"
    upgrade(older)
    assert major_on_disk(older.stack, made) == "18"
    assert notes(older, made) == ["before", "too"]


def test_what_cannot_go_is_refused_by_name_and_nothing_changes(stack: Stack, older: Place) -> None:
    older.change(settings={"pg_settings": {"vacuum_cost_delay": "3ms"}})
    with older.connect() as session:
        session.execute("CREATE TABLE birds AS SELECT 'heron' AS name")
    older.sql("CREATE EXTENSION pgcrypto")
    assert (
        f'the database "{older.database}" has the extension "pgcrypto", which Postgres 18 does'
        in upgrade(older, refused=True)
    )
    assert older.query("SELECT name FROM birds") == ("heron",)
    assert older.client.get(older.path)["project"]["pg_version"] == 15
    assert left_beside(stack) == []


def test_clients_wait_and_a_cancel_before_the_switch_changes_nothing(
    stack: Stack, older: Place
) -> None:
    older.sql("CREATE TABLE birds AS SELECT 'heron' AS name")
    with long_copies(older), begun(stack, older.id) as command:
        wait_for(lambda: left_beside(stack), "the copies")
        command.send_signal(signal.SIGINT)
        said, complaints = command.communicate(timeout=120)
    assert command.returncode == 1, said
    assert "cancelled" in complaints
    assert older.query("SELECT name FROM birds") == ("heron",)
    assert major_on_disk(stack, older.branch_id) == "15"
    wait_for(lambda: left_beside(stack) == [], "the removal of the copies")
    with begun(stack, older.id) as command:
        wait_for(lambda: left_beside(stack), "the copies")
        # The client waits for the end of the upgrade.
        (version,) = older.query("SHOW server_version_num")
        assert version.startswith("18")
        command.communicate(timeout=120)
    assert command.returncode == 0
    assert older.query("SELECT name FROM birds") == ("heron",)


def steps(place: Place) -> list[str]:
    """The steps of the project's unfinished upgrade."""
    with place.stack.database() as database:
        rows = database.execute(
            "SELECT steps FROM controlplane_operation WHERE project_id = %s"
            " AND action = 'upgrade_project' AND status = 'running'",
            [place.id],
        ).fetchall()
    return [one["name"] for row in rows for one in row[0]]


@pytest.mark.parametrize("moment", ["checking_catalog", "upgrading", "restoring_functions"])
def test_a_killed_worker_leaves_every_branch_whole(moment: str) -> None:
    with new_state_dir() as state_dir:
        service = Service(state_dir, PERCH_POSTGRES_BINS=f"15={debians_postgres()}")
        try:
            place = Place.create(service.stack, service.client, pg_version=15)
            place.sql("CREATE TABLE birds AS SELECT 'heron' AS name")
            child = place.new_branch(name="child")["branch"]["id"]
            with begun(service.stack, place.id) as command:
                wait_for(lambda: moment in steps(place), moment)
                service.kill("worker")
                command.communicate(timeout=180)
            assert command.returncode == 0
            assert place.query("SELECT name FROM birds") == ("heron",)
            assert major_on_disk(service.stack, place.branch_id) == "18"
            assert major_on_disk(service.stack, child) == "18"
            assert left_beside(service.stack) == []
        finally:
            service.down()

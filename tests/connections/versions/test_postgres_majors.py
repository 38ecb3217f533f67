"""Projects of other major versions of Postgres, 15 to 17, beside those of the wheel's 18; and their
locale, which is C.UTF-8 unless an earlier release made the project."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import errors

from tests.selection import first_of
from tests.support.locales import KNOWN, UNKNOWN, check_databases, projects_as_before
from tests.support.majors import programs_of
from tests.support.past import notes, with_history, write
from tests.support.place import Place
from tests.support.stack import Stack, new_state_dir, running_stack

OLDER = (15, 16, 17)


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """A service for this module, in place of the shared one."""
    bins = ",".join(f"{major}={programs_of(str(major))}" for major in OLDER)
    with new_state_dir() as state_dir, running_stack(state_dir, PERCH_POSTGRES_BINS=bins) as one:
        yield one


@pytest.fixture(scope="module", params=first_of(OLDER))
def older(stack: Stack, request: pytest.FixtureRequest) -> Place:
    return Place.create(stack, stack.client(), pg_version=request.param)


def major_of(place: Place) -> int:
    """The major version of the project's Postgres, as the API says."""
    return int(place.created["project"]["pg_version"])


def version_of(place: Place, **parameters: Any) -> int:
    (version,) = place.query("SHOW server_version_num", **parameters)
    return int(version) // 10000


def branch_version(place: Place, made: Any) -> int:
    """Return the major version of Postgres that the new branch `made` runs."""
    endpoint_id = made["endpoints"][0]["id"]
    place.start(endpoint_id)
    return int(place.sql("SHOW server_version_num", endpoint_id=endpoint_id)[0][0]) // 10000


def test_a_project_of_another_major_version_serves_branches_sleeps_and_wakes(
    stack: Stack, older: Place
) -> None:
    region = older.client.get("/regions")["regions"][0]
    assert (region["pg_version"], region["pg_versions"]) == (18, [*OLDER, 18])
    major = major_of(older)
    assert version_of(older) == major
    with older.connect() as session:
        session.execute("CREATE TABLE birds AS SELECT 'heron' AS name")
    running = older.new_branch(endpoint=True, name="of a running one")
    older.suspend()
    asleep = older.new_branch(endpoint=True, name="of a sleeping one")
    for made in (running, asleep):
        assert branch_version(older, made) == major
        found = older.sql("SELECT name FROM birds", endpoint_id=made["endpoints"][0]["id"])
        assert found == [("heron",)]
    assert older.query("SELECT name FROM birds") == ("heron",)
    assert older.query("SELECT name FROM birds", pooled=True) == ("heron",)
    newer = Place.create(stack, older.client)
    assert version_of(newer) == 18
    answer = older.client.call("POST", "/projects", json={"project": {"pg_version": 19}})
    assert answer.status_code == 422
    assert answer.json()["message"].endswith("use 15 or 16 or 17 or 18")


@pytest.mark.thorough
def test_the_past_of_another_major_version(stack: Stack, older: Place) -> None:
    project = with_history(Place.create(stack, older.client, pg_version=major_of(older)))
    write(project, "first")
    at, _ = write(project, "second")
    write(project, "third")
    made = project.new_branch(parent_timestamp=at)["branch"]["id"]
    assert notes(project, made) == ["first", "second"]
    assert (stack.data_dir(made) / "PG_VERSION").read_text() == f"{major_of(older)}\n"
    path = project.branch_path(rest="/schema")
    assert "CREATE TABLE" in project.client.get(path, db_name="neondb", timestamp=at)["sql"]
    project.suspend()
    project.start()
    _, lsn = write(project, "fourth")
    project.suspend()
    made = project.new_branch(parent_lsn=lsn)["branch"]["id"]
    assert notes(project, made) == ["first", "second", "third", "fourth"]


@pytest.mark.thorough
def test_schemas_and_snapshots_of_another_major_version(older: Place) -> None:
    with older.connect() as session:
        session.execute("CREATE TABLE nests (id int PRIMARY KEY, eggs int)")
        session.execute("INSERT INTO nests VALUES (1, 4)")
    path = older.branch_path(rest="/schema")
    assert "CREATE TABLE public.nests" in older.client.get(path, db_name="neondb")["sql"]
    empty = older.new_branch(endpoint=True, init_source="schema-only")
    assert branch_version(older, empty) == major_of(older)
    endpoint_id = empty["endpoints"][0]["id"]
    assert older.sql("SELECT count(*) FROM nests", endpoint_id=endpoint_id) == [(0,)]
    snapshot = older.client.post(older.branch_path(rest="/snapshot"))
    older.done(snapshot)
    with older.connect() as session:
        session.execute("DELETE FROM nests")
    restored = older.client.post(f"{older.path}/snapshots/{snapshot['snapshot']['id']}/restore")
    older.done(restored)
    made = older.create_endpoint(restored["branch"]["id"])
    endpoint_id = made["endpoint"]["id"]
    older.start(endpoint_id)
    assert older.sql("SELECT eggs FROM nests", endpoint_id=endpoint_id) == [(4,)]


@pytest.mark.thorough
def test_settings_and_extensions_are_those_of_the_projects_major_version(older: Place) -> None:
    path = older.endpoint_path(rest="/pg_settings")
    names = {one["name"] for one in older.client.get(path)["pg_settings"]}
    assert "work_mem" in names
    # Postgres 18 was the first to have it.
    assert "enable_distinct_reordering" not in names
    body = {"endpoint": {"settings": {"pg_settings": {"enable_distinct_reordering": "on"}}}}
    answer = older.client.call("PATCH", older.endpoint_path(), json=body)
    assert answer.status_code == 422
    assert "Postgres has no such setting" in answer.json()["message"]
    older.change(settings={"pg_settings": {"work_mem": "8MB"}})
    with older.connect() as session:
        assert session.execute("SHOW work_mem").fetchone() == ("8MB",)
        offered = "SELECT FROM pg_available_extensions WHERE name IN ('hstore', 'pg_buffercache')"
        if session.execute(offered).rowcount:  # not in every build
            session.execute("CREATE EXTENSION hstore")
            with pytest.raises(errors.InsufficientPrivilege):
                session.execute("CREATE EXTENSION pg_buffercache")


@pytest.mark.thorough
@pytest.mark.parametrize(
    "statement",
    [
        "ALTER SYSTEM SET work_mem = '1MB'",
        # With CREATEROLE, before Postgres 16, the next one would succeed.
        "CREATE ROLE another",
        "GRANT pg_execute_server_program TO CURRENT_USER",
        "COPY (SELECT 1) TO PROGRAM 'true'",
    ],
)
def test_an_owner_of_an_older_major_version_gets_no_further(older: Place, statement: str) -> None:
    if statement == "CREATE ROLE another" and major_of(older) > 15:
        older.sql(statement)
        return
    with older.connect() as session, pytest.raises(psycopg.Error) as refused:
        session.execute(statement.encode())
    # Postgres 17 has a setting that forbids ALTER SYSTEM.
    assert isinstance(refused.value, errors.InsufficientPrivilege | errors.FeatureNotSupported)


@pytest.fixture(scope="module")
def earlier(stack: Stack) -> Place:
    """A project as an earlier release made it, with history whose base is that release's
    template."""
    with projects_as_before(stack):
        return with_history(Place.create(stack, stack.client()))


@pytest.mark.parametrize("version", first_of([18, 15]))
def test_a_new_project_knows_the_cases_of_all_letters(stack: Stack, version: int) -> None:
    place = Place.create(stack, stack.client(), pg_version=version)
    assert place.client.get(place.path)["project"]["locale"] == "C.UTF-8"
    check_databases(place, KNOWN)


@pytest.mark.thorough
def test_a_project_of_an_earlier_release_keeps_its_locale_and_its_past(
    stack: Stack, earlier: Place
) -> None:
    """The base of its history is another template than that of the new projects beside it."""
    beside = with_history(Place.create(stack, earlier.client))
    for place, expected in ((earlier, UNKNOWN), (beside, KNOWN)):
        write(place, "first")
        at, _ = write(place, "second")
        write(place, "third")
        made = place.new_branch(parent_timestamp=at)["branch"]["id"]
        assert notes(place, made) == ["first", "second"]
        check_databases(place, expected)
    assert earlier.client.get(earlier.path)["project"]["locale"] == "C"
    (release,) = earlier.query("SHOW server_version")
    templates = stack.state_dir / "templates"
    assert (templates / f"{release}-closed").is_dir()
    assert (templates / f"{release}-C.UTF-8-closed").is_dir()

"""Owners use the roles that they make, by SQL and by the API, and gain none of the platform's
rights by them."""

from typing import Any

import psycopg
import pytest
from psycopg import errors

from tests.support.place import Connection, Place
from tests.support.waiting import wait_for

# What the owner of a project does with a role that somebody made for it.
USES = (
    "CREATE SCHEMA AUTHORIZATION {role}",
    "GRANT CREATE ON SCHEMA public TO {role}",
    "CREATE TABLE notes_of_{role} (id int)",
    "ALTER TABLE notes_of_{role} OWNER TO {role}",
    # Its owner still reads it, and looks after it.
    "ALTER TABLE notes_of_{role} ADD COLUMN words text",
    "SET ROLE {role}",
    "CREATE TABLE public.made_by_{role} (id int)",
    "RESET ROLE",
    "REASSIGN OWNED BY {role} TO CURRENT_USER",
    "CREATE DATABASE of_{role} OWNER {role}",
)
PLATFORMS = ("perch_platform", "pg_execute_server_program", "pg_read_server_files")
# An owner's attempts to gain what only the platform has.
CLIMBING = (
    "CREATE ROLE climber SUPERUSER",
    "CREATE ROLE climber REPLICATION",
    "CREATE ROLE climber IN ROLE pg_execute_server_program",
    "CREATE ROLE climber ADMIN perch_platform",
    "GRANT app TO perch_platform WITH ADMIN OPTION GRANTED BY perch_platform",
    "GRANT perch_platform TO app",
    "GRANT pg_write_server_files TO app",
    "GRANT perch_superuser TO app",
    "GRANT neondb_owner TO app",
    "SET ROLE perch_platform",
    "SET SESSION AUTHORIZATION app",
    "ALTER ROLE app SUPERUSER",
    "ALTER ROLE app REPLICATION",
    "ALTER ROLE perch_superuser CREATEROLE",
    "ALTER DATABASE neondb OWNER TO perch_platform",
    "CREATE SUBSCRIPTION s CONNECTION 'host=127.0.0.1 password=x' PUBLICATION p",
)


def use(session: Connection, role: str) -> None:
    for statement in USES:
        session.execute(statement.format(role=role).encode())


def memberships(place: Place, role: str) -> Any:
    """Those of which the role is a member, and whether it may hand them on."""
    with place.stack.compute(place.endpoint_id) as platform:
        return platform.execute(
            "SELECT roleid::regrole::text, admin_option FROM pg_auth_members"
            " WHERE member = %s::regrole ORDER BY 1, 2",
            [role],
        ).fetchall()


def test_an_owner_uses_the_roles_that_it_makes_by_sql(place: Place) -> None:
    with place.connect() as session:
        session.execute("CREATE ROLE app LOGIN")
        use(session, "app")
    assert place.query("SELECT current_database()", dbname="of_app") == ("of_app",)
    path = place.of_catalog("databases", "of_app")
    wait_for(lambda: place.client.call("GET", path).ok, "the database to be taken in")
    assert place.client.get(path)["database"]["owner_name"] == "app"


def test_an_owner_uses_the_roles_that_the_api_makes(place: Place) -> None:
    password = place.new_role("app")
    with place.connect() as session:
        use(session, "app")
        # Only the API gives it away, and changes it.
        for refused in ("GRANT app TO pg_monitor", "ALTER ROLE app PASSWORD 'x'", "DROP ROLE app"):
            with pytest.raises(psycopg.Error):
                session.execute(refused.encode())
    assert place.query("SELECT current_user", user="app", password=password) == ("app",)
    # The other direction would be a circle, and is not needed.
    with (
        place.connect(user="app", password=password) as session,
        pytest.raises(errors.InsufficientPrivilege),
    ):
        session.execute("SET ROLE neondb_owner")
    assert ("app", False) in memberships(place, "neondb_owner")


def test_a_client_changes_what_it_is_granted_of_the_roles_that_it_makes(place: Place) -> None:
    assert place.query("SHOW createrole_self_grant") == ("set, inherit",)
    with place.connect() as session:
        session.execute("SET createrole_self_grant = ''")
        session.execute("CREATE ROLE apart")
        with pytest.raises(errors.InsufficientPrivilege):
            session.execute("SET ROLE apart")
    place.change(settings={"pg_settings": {"createrole_self_grant": "inherit"}})
    assert place.query("SHOW createrole_self_grant") == ("inherit",)


def test_no_role_that_an_owner_makes_leads_to_the_platforms_rights(place: Place) -> None:
    place.new_role("made")
    with place.connect() as session:
        session.execute("CREATE ROLE app LOGIN CREATEROLE")
        for climbing in CLIMBING:
            with pytest.raises((errors.InsufficientPrivilege, errors.InvalidGrantOperation)):
                session.execute(climbing.encode())
        for role in ("app", "perch_superuser", "made"):
            session.execute(f"SET ROLE {role}".encode())
            with pytest.raises(errors.InsufficientPrivilege):
                session.execute("COPY (SELECT 1) TO PROGRAM 'true'")
            for platforms in PLATFORMS:
                held = session.execute("SELECT pg_has_role(%s, 'member')", [platforms])
                assert held.fetchone() == (False,), (role, platforms)
            session.execute("RESET ROLE")


@pytest.mark.thorough
def test_roles_that_own_and_grant_each_other_are_dropped_and_copied(place: Place) -> None:
    place.new_role("first")
    second = place.new_role("second")
    with place.connect(user="second", password=second) as session:
        session.execute("CREATE ROLE app")
        session.execute("GRANT app TO neondb_owner WITH ADMIN OPTION")
        session.execute("GRANT app TO first")
    copy = place.new_branch(endpoint=True, init_source="schema-only")["endpoints"][0]["id"]
    place.start(copy)
    found = "SELECT count(*) FROM pg_auth_members WHERE member >= 16384"
    assert place.sql(found, endpoint_id=copy) == place.sql(found, endpoint_id=place.endpoint_id)
    place.done(place.client.delete(place.of_catalog("roles", "second")))
    place.done(place.client.delete(place.of_catalog("roles", "first")))
    assert "second" not in {role for role, _ in memberships(place, "neondb_owner")}

"""What a deleted role wrote belongs to the owner of its database, and runs with nobody's rights but
those of whoever uses it."""

from typing import Any

import psycopg
import pytest
from psycopg import errors

from tests.support.place import Connection, Place
from tests.support.waiting import wait_for

# What the owner has, and wrote itself.
OWNERS = """
CREATE ROLE carol LOGIN PASSWORD 'password of carol';
CREATE ROLE dave LOGIN PASSWORD 'password of dave';
CREATE SCHEMA notes AUTHORIZATION dave;
CREATE TABLE diary (secret text);
INSERT INTO diary VALUES ('hush');
CREATE VIEW summary AS SELECT count(*) FROM diary;
CREATE FUNCTION longest() RETURNS int LANGUAGE sql SECURITY DEFINER
    AS 'SELECT max(length(secret)) FROM public.diary';
GRANT SELECT ON summary TO carol
"""
# What dave wrote. He may not read the diary, but does not need to for any of it.
DAVES = """
SET search_path = notes;
CREATE TYPE "a, b" AS (i int);
CREATE TABLE seen (secret text);
CREATE TABLE page (i int);
CREATE FUNCTION read(i int, b int) RETURNS SETOF text LANGUAGE sql SECURITY DEFINER
    AS 'SELECT secret FROM public.diary';
CREATE PROCEDURE read(i int, OUT b int) LANGUAGE sql SECURITY DEFINER AS 'SELECT 1';
CREATE FUNCTION "it's %s" (VARIADIC "a b" "a, b"[] DEFAULT '{}') RETURNS SETOF text LANGUAGE sql
    SECURITY DEFINER AS 'SELECT secret FROM public.diary';
CREATE VIEW copied WITH (security_barrier, security_invoker = false) AS SELECT * FROM public.diary;
CREATE RULE copying AS ON INSERT TO copied
    DO INSTEAD INSERT INTO seen SELECT secret FROM public.diary;
CREATE RULE "it's copying" AS ON INSERT TO page
    DO ALSO INSERT INTO seen SELECT secret FROM public.diary;
CREATE RULE kept AS ON DELETE TO page DO INSTEAD NOTHING;
GRANT USAGE ON SCHEMA notes TO carol;
GRANT ALL ON ALL TABLES IN SCHEMA notes TO carol, PUBLIC
"""
READING = (
    "SELECT * FROM notes.read(1, 1)",
    """SELECT * FROM notes."it's %s" ()""",
    "SELECT * FROM notes.copied",
    "INSERT INTO notes.copied VALUES ('mine')",
)


def execute(place: Place, statements: str, **connection: Any) -> None:
    with place.connect(**connection) as session:
        session.execute(statements.encode())


def delete_role(place: Place, name: str) -> None:
    path = place.of_catalog("roles", name)
    wait_for(lambda: place.client.call("GET", path).ok, "the role to be taken in")
    place.done(place.client.delete(path))


def refused(session: Connection, statement: str) -> None:
    with pytest.raises(errors.InsufficientPrivilege):
        session.execute(statement.encode())


def test_nobody_gains_the_owners_rights_by_what_a_deleted_role_wrote(place: Place) -> None:
    execute(place, OWNERS)
    execute(place, DAVES, user="dave", password="password of dave")
    delete_role(place, "dave")
    with place.connect(user="carol", password="password of carol") as session:
        for reading in READING:
            refused(session, reading)
        session.execute("INSERT INTO notes.page VALUES (1)")
        assert session.execute("SELECT * FROM notes.seen").fetchall() == []
        # Rules that do nothing, and what the owner wrote itself, are as they were.
        assert session.execute("DELETE FROM notes.page").rowcount == 0
        assert session.execute("SELECT * FROM summary").fetchone() == (1,)
        assert session.execute("SELECT longest()").fetchone() == (4,)
    assert place.query("SELECT * FROM notes.copied") == ("hush",)


def test_a_role_with_a_materialized_view_is_not_dropped_before_the_view(place: Place) -> None:
    execute(place, OWNERS)
    view = 'notes."it\'s dated"'
    statement = f"CREATE MATERIALIZED VIEW {view} AS SELECT 1 AS i"
    execute(place, statement, user="dave", password="password of dave")
    path = place.of_catalog("roles", "dave")
    wait_for(lambda: place.client.call("GET", path).ok, "the role to be taken in")
    (failed,) = place.client.finish(place.client.delete(path))
    assert failed["status"] == "failed"
    assert f"it owns the materialized view {view}," in failed["error"]
    with pytest.raises(psycopg.OperationalError):
        place.connect(user="dave", password="password of dave")
    execute(place, f"DROP MATERIALIZED VIEW {view}")
    place.done(place.client.post(f"{place.path}/operations/{failed['id']}/retry"))
    assert place.query("SELECT count(*) FROM pg_roles WHERE rolname = 'dave'") == (0,)


def test_a_temporary_view_of_a_deleted_role_does_not_gain_the_owners_rights(place: Place) -> None:
    execute(place, OWNERS + "; GRANT dave TO carol")
    with place.connect(user="carol", password="password of carol") as session:
        session.execute("SET ROLE dave; CREATE TEMPORARY VIEW held AS SELECT * FROM diary")
        session.execute("GRANT SELECT ON held TO carol; RESET ROLE")
        delete_role(place, "dave")
        refused(session, "SELECT * FROM held")

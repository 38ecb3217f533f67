"""No session of the platform in a compute executes code of a database's owner.

SECURITY.md lists these sessions. Each is opened here on a database with an object of every kind
whose definition Postgres may evaluate.
"""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.place import Place
from tests.support.traps import TRAPS, sprung
from tests.support.waiting import wait_for

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def trapped(shop: Place) -> Place:
    shop.change(settings={"pg_settings": {"autovacuum_naptime": "1"}})
    shop.sql(TRAPS)
    return shop


def changing_the_catalog(place: Place) -> None:
    body = {"database": {"name": "second", "owner_name": place.role}}
    place.done(place.client.post(place.branch_path(rest="/databases"), body))
    place.new_role("bob")
    place.sql("ALTER TABLE trap.bait OWNER TO bob; ALTER FUNCTION trap.snap OWNER TO bob")
    for kind, name in (("databases", "second"), ("roles", "bob")):
        place.done(place.client.delete(place.of_catalog(kind, name)))


def looking_at_a_compute(place: Place) -> None:
    place.suspend()
    place.start()


def asking_for_a_login(place: Place) -> None:
    place.sql("CREATE ROLE carol LOGIN PASSWORD 'by SQL'")
    assert place.query("SELECT 1", user="carol", password="by SQL") == (1,)


def checking_the_data(place: Place) -> None:
    place.make_older(hours=3)
    assert place.await_operation("check_availability")["failures_count"] == 0


def copying_the_data(place: Place) -> None:
    endpoint = place.create_endpoint(place.new_branch_id())["endpoint"]["id"]
    assert sprung(place, endpoint) == []


def reading_the_schema(place: Place) -> None:
    for form in ("sql", "json"):
        answer = place.client.get(place.branch_path(rest="/schema"), db_name="neondb", format=form)
        assert "bait" in str(answer)
    other = place.new_branch_id()
    path = place.branch_path(other, "/compare_schema")
    place.client.get(path, db_name="neondb", base_branch_id=place.branch_id)


def copying_the_schema(place: Place) -> None:
    branch_id = place.new_branch_id(init_source="schema-only")
    endpoint = place.create_endpoint(branch_id)["endpoint"]["id"]
    assert sprung(place, endpoint) == []


def vacuuming(place: Place) -> None:
    """Wait for Postgres's own autovacuum."""
    with place.connect() as owner:
        owner.execute("INSERT INTO trap.bait (a) SELECT generate_series(200, 2000)")
    asked = """
        SELECT 1 FROM pg_stat_user_tables WHERE relname = 'bait' AND autoanalyze_count > 0
            AND autovacuum_count > 0
    """
    wait_for(lambda: place.sql(asked), "the table to be vacuumed", timeout=60)


SESSIONS: dict[str, Callable[[Place], None]] = {
    "roles and databases are applied": changing_the_catalog,
    "activity, sizes, roles and databases are read": looking_at_a_compute,
    "a role's verifier is read at a login": asking_for_a_login,
    "data is checked": checking_the_data,
    "data is copied": copying_the_data,
    "a schema is read": reading_the_schema,
    "a schema-only branch is made": copying_the_schema,
    "autovacuum": vacuuming,
}


@pytest.mark.parametrize("name", SESSIONS)
def test_a_session_executes_no_code_of_an_owner(trapped: Place, name: str) -> None:
    SESSIONS[name](trapped)
    assert sprung(trapped) == []


def test_security_lists_every_session() -> None:
    listed = re.findall(r"^\| ([^|]+?) \|", (ROOT / "SECURITY.md").read_text(), re.MULTILINE)
    assert set(listed) >= SESSIONS.keys()

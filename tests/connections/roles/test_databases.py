"""Databases of a branch: created, renamed, given to another owner and dropped through the API."""

from typing import Any

import psycopg
import pytest

from tests.connections.roles.test_roles import ODD_NAMES, actions
from tests.selection import first_of
from tests.support.place import Place, last_words


def create(place: Place, name: str, owner: str | None = None) -> Any:
    body = {"database": {"name": name, "owner_name": owner or place.role}}
    return place.client.post(f"{place.branch_path()}/databases", body)


def update(place: Place, database: str, **changes: Any) -> Any:
    return place.client.patch(place.of_catalog("databases", database), {"database": changes})


def delete(place: Place, name: str) -> Any:
    return place.client.delete(place.of_catalog("databases", name))


def finish(place: Place, *answers: Any) -> None:
    for answer in answers:
        for row in place.client.finish(answer):
            assert row["status"] == "finished", row


def mark_of(place: Place, name: str) -> str | None:
    found = place.query("SELECT to_regclass('mark') IS NOT NULL", dbname=name)
    return place.query("SELECT name FROM mark", dbname=name)[0] if found[0] else None


@pytest.fixture
def without_endpoint(place: Place) -> Place:
    """The place. Its endpoint is on another branch until `update(branch_id=...)` brings it back."""
    finish(place, create(place, "a"), create(place, "b"))
    for name in ("a", "b"):
        with place.connect(dbname=name) as connection:
            connection.execute(f"CREATE TABLE mark AS SELECT '{name}' AS name".encode())
    place.change(branch_id=place.new_branch_id(name="aside"))
    return place


def test_a_database_is_created_listed_and_found(shop: Place) -> None:
    made = create(shop, "books")
    assert actions(made) == [("apply_config", "running")]
    finish(shop, made)
    found = shop.client.get(shop.of_catalog("databases", "books"))["database"]
    assert found == made["database"]
    assert isinstance(found["id"], int)
    assert (found["branch_id"], found["owner_name"]) == (shop.branch_id, shop.role)
    assert found in shop.client.get(f"{shop.branch_path()}/databases")["databases"]
    with shop.connect(dbname="books") as connection:
        connection.execute("CREATE TABLE t ()")


@pytest.mark.thorough
def test_names_that_need_quoting_work_everywhere(shop: Place) -> None:
    finish(shop, *[create(shop, name) for name in ODD_NAMES])
    for name in ODD_NAMES:
        asked = shop.query("SELECT current_database()", pooled=True, dbname=name)
        assert asked == (name,)
        uri = shop.client.get(
            f"{shop.path}/connection_uri", database_name=name, role_name=shop.role
        )["uri"]
        with psycopg.connect(uri, hostaddr="127.0.0.1") as connection:
            assert connection.execute("SELECT current_database()").fetchone() == (name,)
    finish(shop, *[update(shop, name, name=name[:-1] + "!") for name in ODD_NAMES])
    finish(shop, *[delete(shop, name[:-1] + "!") for name in ODD_NAMES])
    assert "does not exist" in str(shop.refusal(dbname=ODD_NAMES[0]))


@pytest.mark.thorough
@pytest.mark.parametrize("name", first_of(["postgres", "template0", "template1", "pgbouncer"]))
def test_a_reserved_name_is_refused(shop: Place, name: str) -> None:
    body = {"database": {"name": name, "owner_name": shop.role}}
    answer = shop.client.call("POST", f"{shop.branch_path()}/databases", json=body)
    assert (answer.status_code, name in answer.json()["message"]) == (422, True)
    path = shop.of_catalog("databases", shop.database)
    answer = shop.client.call("PATCH", path, json={"database": {"name": name}})
    assert answer.status_code == 422


def test_a_taken_name_and_an_unknown_owner_are_refused(shop: Place) -> None:
    for name, owner, status in ((shop.database, shop.role, 409), ("new", "nobody", 422)):
        body = {"database": {"name": name, "owner_name": owner}}
        answer = shop.client.call("POST", f"{shop.branch_path()}/databases", json=body)
        assert answer.status_code == status


def test_an_unknown_database_is_not_found(shop: Place) -> None:
    for method in ("GET", "DELETE"):
        assert shop.client.call(method, shop.of_catalog("databases", "none")).status_code == 404
    assert 'database "none" does not exist' in str(shop.refusal(dbname="none"))


def test_a_renamed_database_keeps_its_data_and_drops_its_clients(shop: Place) -> None:
    finish(shop, create(shop, "old name"))
    with shop.connect(dbname="old name") as connection:
        connection.execute("CREATE TABLE kept AS SELECT 1 AS n")
        finish(shop, update(shop, "old name", name="new name"))
        assert last_words(connection) == "57P01"
    assert shop.query("SELECT n FROM kept", dbname="new name") == (1,)
    assert "does not exist" in str(shop.refusal(dbname="old name"))


@pytest.mark.thorough
def test_a_database_changes_its_owner(shop: Place) -> None:
    bob: dict[str, Any] = {"user": "bob", "password": shop.new_role("bob")}
    shop.new_role("carol")
    finish(shop, create(shop, "songs", "carol"), update(shop, "songs", owner_name="bob"))
    with shop.connect(dbname="songs", **bob) as connection:
        connection.execute("CREATE TABLE public.bobs ()")
    finish(shop, shop.client.delete(shop.of_catalog("roles", "carol")))
    assert shop.query("SELECT current_user", **bob) == ("bob",)


@pytest.mark.thorough
def test_a_deleted_database_ends_its_clients(shop: Place) -> None:
    finish(shop, create(shop, "plays"))
    with shop.connect(dbname="plays") as connection, shop.connect() as owner:
        # A client that has sent no query learns it with its first query.
        connection.execute("SELECT 1")
        owner.execute("ALTER DATABASE plays IS_TEMPLATE true")
        finish(shop, delete(shop, "plays"))
        assert last_words(connection) == "57P01"
    assert 'database "plays" does not exist' in str(shop.refusal(dbname="plays"))


@pytest.mark.thorough
@pytest.mark.parametrize("asleep", [False, True], ids=["awake", "asleep"])
def test_a_database_dropped_and_created_again_is_empty(shop: Place, asleep: bool) -> None:
    name = f"again {asleep}"
    finish(shop, create(shop, name))
    with shop.connect(dbname=name) as connection:
        connection.execute("CREATE TABLE old ()")
    if asleep:
        shop.suspend()
    finish(shop, *[change(shop, name) for change in (delete, create, delete, create)])
    assert shop.query("SELECT to_regclass('old')", dbname=name) == (None,)


@pytest.mark.thorough
def test_changes_that_wait_for_an_endpoint_are_made_in_order(
    without_endpoint: Place,
) -> None:
    place = without_endpoint
    assert update(place, "a", name="c")["operations"] == []
    create(place, "a")
    delete(place, "a")
    create(place, "a")
    delete(place, "b")
    update(place, "c", name="b")
    place.change(branch_id=place.branch_id)
    assert (mark_of(place, "a"), mark_of(place, "b")) == (None, "a")


@pytest.mark.thorough
def test_a_name_that_another_database_still_has_is_refused(without_endpoint: Place) -> None:
    """Two databases that swap their names at once could not be distinguished after a crash."""
    place = without_endpoint
    update(place, "a", name="c")
    answer = place.client.call(
        "PATCH", place.of_catalog("databases", "b"), json={"database": {"name": "a"}}
    )
    assert answer.status_code == 409
    place.change(branch_id=place.branch_id)
    place.query("SELECT 1")
    place.settle()
    finish(place, update(place, "b", name="a"))
    assert (mark_of(place, "a"), mark_of(place, "c")) == ("b", "a")


def test_a_database_is_created_although_a_client_uses_the_template(shop: Place) -> None:
    with shop.connect(dbname="template1"):
        finish(shop, create(shop, "poems"))
    assert shop.query("SELECT 1", dbname="poems") == (1,)

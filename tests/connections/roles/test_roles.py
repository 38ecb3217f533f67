"""Roles of a branch: what the API says about them agrees with who can log in to Postgres."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from psycopg import errors

from tests.support.client import Client
from tests.support.place import Place
from tests.support.stack import Stack
from tests.support.waiting import wait_for

ODD_NAMES = (
    """double "quotes", 'single' and $dollar$""",
    " spaces in and around ",
    "100%s %(percent)s {braces}",
    "back\\slash; DROP TABLE x; --comment",
    "question?mark#hash&ampersand=a@b:c+d%20e%2Ff",
    "UPPER and lower",
    "ünïcödé 象 🐘",
    "x" * 63,
    "é" * 31,
    "current_user",
    "$user",
)
UNADDRESSABLE = ("a/b", "/", ".", "..")
RESERVED = ("pg_mine", "perch_mine", "public", "none", "pgbouncer")


def actions(answer: Any) -> list[tuple[str, str]]:
    return [(row["action"], row["status"]) for row in answer["operations"]]


def create(place: Place, name: str, **attributes: Any) -> Any:
    return place.client.post(f"{place.branch_path()}/roles", {"role": {"name": name, **attributes}})


def test_a_new_projects_owner_connects_and_owns_its_database(shop: Place) -> None:
    assert shop.query("SELECT current_user, current_database()") == (shop.role, shop.database)
    roles = shop.client.get(f"{shop.branch_path()}/roles")["roles"]
    assert [role["name"] for role in roles] == [shop.role]
    assert "password" not in roles[0]
    assert shop.client.get(shop.of_catalog("roles", shop.role))["role"] == roles[0]


def test_a_role_created_on_an_active_endpoint_connects_at_once(shop: Place) -> None:
    made = create(shop, "ann")
    assert actions(made) == [("apply_config", "running")]
    shop.client.finish(made)
    assert shop.state() == "active"
    assert shop.query("SELECT current_user", user="ann", password=made["role"]["password"]) == (
        "ann",
    )


@pytest.mark.parametrize("pooled", [False, True])
def test_clients_wait_for_a_role_that_the_compute_does_not_have_yet(
    shop: Place, pooled: bool
) -> None:
    shop.query("SELECT 1", pooled=pooled)  # awake
    with ThreadPoolExecutor() as threads:
        platform = shop.stack.compute(shop.endpoint_id, "postgres")
        with platform as session, session.transaction():
            session.execute("LOCK TABLE pg_authid IN SHARE MODE")
            made = create(shop, f"early {pooled}")
            role = {"user": made["role"]["name"], "password": made["role"]["password"]}
            waiting = threads.submit(shop.query, "SELECT current_user", pooled=pooled, **role)
            with pytest.raises(TimeoutError):
                waiting.result(timeout=1)
        assert waiting.result() == (role["user"],)


def test_a_role_created_on_an_idle_endpoint_leaves_it_idle(shop: Place) -> None:
    shop.suspend()
    made = create(shop, "ben")
    assert actions(made) == [("apply_config", "running"), ("suspend_compute", "scheduling")]
    ended = shop.client.finish(made)
    assert [row["status"] for row in ended] == ["finished", "finished"]
    assert shop.state() == "idle"
    assert shop.query("SELECT current_user", user="ben", password=made["role"]["password"]) == (
        "ben",
    )


@pytest.mark.thorough
def test_a_role_created_without_an_endpoint_exists_with_the_next_one(place: Place) -> None:
    branch = place.new_branch_id(name="dev")
    made = place.client.post(f"{place.path}/branches/{branch}/roles", {"role": {"name": "bob"}})
    assert made["operations"] == []
    endpoint = place.client.post(
        f"{place.path}/endpoints", {"endpoint": {"branch_id": branch, "type": "read_write"}}
    )
    place.client.finish(endpoint)
    place.branch_id, place.endpoint_id = branch, endpoint["endpoint"]["id"]
    password = made["role"]["password"]
    assert place.query("SELECT current_user", user="bob", password=password) == ("bob",)


@pytest.mark.thorough
def test_names_that_need_quoting_work_everywhere(shop: Place) -> None:
    made = [create(shop, name) for name in ODD_NAMES]
    for answer in made:
        shop.client.finish(answer)
    for name, answer in zip(ODD_NAMES, made, strict=True):
        path, password = shop.of_catalog("roles", name), answer["role"]["password"]
        assert shop.client.get(path)["role"]["name"] == name
        assert shop.client.get(f"{path}/reveal_password")["password"] == password
        for pooled in (False, True):
            asked = shop.query("SELECT current_user", pooled=pooled, user=name, password=password)
            assert asked == (name,)
        assert shop.psql("-c", "SELECT current_user", user=name, password=password).stdout == (
            name + "\n"
        )
    for answer in [shop.client.delete(shop.of_catalog("roles", name)) for name in ODD_NAMES]:
        assert [row["status"] for row in shop.client.finish(answer)] == ["finished"]


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["roles", "databases"])
@pytest.mark.parametrize("name", UNADDRESSABLE)
def test_a_name_that_no_path_can_hold_is_refused(shop: Place, kind: str, name: str) -> None:
    body = {kind[:-1]: {"name": name, "owner_name": shop.role}}
    answer = shop.client.call("POST", f"{shop.branch_path()}/{kind}", json=body)
    assert answer.status_code == 422
    assert "part of a URL" in answer.json()["message"]


@pytest.mark.parametrize("name", RESERVED)
def test_a_reserved_name_is_refused(shop: Place, name: str) -> None:
    answer = shop.client.call("POST", f"{shop.branch_path()}/roles", json={"role": {"name": name}})
    assert (answer.status_code, name in answer.json()["message"]) == (422, True)


@pytest.mark.parametrize("name", ["", "x" * 64, "é" * 32, "nul\0", "line\nbreak"])
def test_a_name_that_postgres_cannot_hold_is_refused(shop: Place, name: str) -> None:
    answer = shop.client.call("POST", f"{shop.branch_path()}/roles", json={"role": {"name": name}})
    assert answer.status_code == 400


def test_a_taken_name_is_refused(shop: Place) -> None:
    answer = shop.client.call(
        "POST", f"{shop.branch_path()}/roles", json={"role": {"name": shop.role}}
    )
    assert answer.status_code == 409


def test_an_unknown_role_is_not_found(shop: Place) -> None:
    path = shop.of_catalog("roles", "nobody")
    calls = (("GET", ""), ("DELETE", ""), ("POST", "/reset_password"), ("GET", "/reveal_password"))
    for method, suffix in calls:
        assert shop.client.call(method, path + suffix).status_code == 404


@pytest.mark.thorough
def test_a_reset_password_replaces_the_old_one(shop: Place) -> None:
    path = shop.of_catalog("roles", shop.role)
    reset = shop.client.post(f"{path}/reset_password")
    assert actions(reset) == [("apply_config", "running")]
    new = reset["role"]["password"]
    assert new != shop.password
    shop.client.finish(reset)
    assert shop.query("SELECT 1", password=new) == (1,)
    assert "password authentication failed" in str(shop.refusal())
    shop.password = new
    for method in ("GET", "POST"):
        answer = shop.client.call(method, f"{path}/reveal_password")
        assert (answer.status_code, answer.json()) == (200, {"password": new})


@pytest.mark.thorough
def test_passwords_that_are_not_stored_cannot_be_revealed(stack: Stack, alice: Client) -> None:
    place = Place.create(stack, alice, store_passwords=False)
    path = place.of_catalog("roles", place.role)
    for method in ("GET", "POST"):
        assert alice.call(method, f"{path}/reveal_password").status_code == 412
    query = {"database_name": place.database, "role_name": place.role}
    assert alice.call("GET", f"{place.path}/connection_uri", params=query).status_code == 412
    uri = alice.get(f"{place.path}/connection_uri", **query, password=False)["uri"]
    assert uri.startswith(f"postgresql://{place.role}@")
    new = alice.post(f"{path}/reset_password")["role"]["password"]
    assert place.query("SELECT 1", password=new) == (1,)


@pytest.mark.thorough
def test_a_role_is_deleted_with_everything_it_owns(shop: Place) -> None:
    bob: dict[str, Any] = {"user": "bob", "password": shop.new_role("bob")}
    shop.new_role("carol")
    with shop.connect() as owner:
        owner.execute("GRANT ALL ON SCHEMA public TO bob WITH GRANT OPTION")
        owner.execute("GRANT ALL ON DATABASE neondb TO bob")
    with shop.connect(**bob) as connection:
        for statement in (
            "CREATE TABLE notes (id int)",
            "GRANT ALL ON notes TO carol",
            "GRANT CREATE ON SCHEMA public TO carol",
            "CREATE SCHEMA bobs; CREATE TABLE bobs.t (); ALTER DEFAULT PRIVILEGES"
            " IN SCHEMA bobs GRANT SELECT ON TABLES TO carol",
            "CREATE ROLE helper; GRANT helper TO carol",
            "ALTER ROLE bob SET work_mem = '8MB'",
            "SELECT lo_create(4711)",
            "CREATE DATABASE bobs",
            "CREATE PUBLICATION news FOR TABLE notes",
            "CREATE EXTENSION isn",
        ):
            connection.execute(statement.encode())
    with shop.connect(**bob, dbname="bobs") as connection:
        connection.execute("CREATE TABLE t (); CREATE EXTENSION pg_trgm")
    listed = f"{shop.branch_path()}/databases"
    wait_for(lambda: "bobs" in str(shop.client.get(listed)), "the database to be listed")
    answer = shop.client.call("DELETE", shop.of_catalog("roles", "bob"))
    assert (answer.status_code, "owns databases: bobs" in answer.json()["message"]) == (422, True)
    given = {"database": {"owner_name": shop.role}}
    shop.done(shop.client.patch(shop.of_catalog("databases", "bobs"), given))
    ended = shop.client.finish(shop.client.delete(shop.of_catalog("roles", "bob")))
    assert [(row["status"], row.get("error")) for row in ended] == [("finished", None)]
    assert shop.query("SELECT tableowner FROM pg_tables WHERE tablename = 'notes'") == (shop.role,)


def test_the_owner_of_a_database_cannot_be_deleted(shop: Place) -> None:
    answer = shop.client.call("DELETE", shop.of_catalog("roles", shop.role))
    assert (answer.status_code, shop.database in answer.json()["message"]) == (422, True)


@pytest.mark.thorough
def test_a_role_created_again_right_after_its_deletion_exists(shop: Place) -> None:
    old = shop.new_role("bob")
    deleted = shop.client.delete(shop.of_catalog("roles", "bob"))
    made = create(shop, "bob")
    new = made["role"]["password"]
    ended = shop.client.finish(deleted) + shop.client.finish(made)
    assert {row["status"] for row in ended} == {"finished"}
    assert shop.query("SELECT current_user", user="bob", password=new) == ("bob",)
    assert "password" in str(shop.refusal(user="bob", password=old))
    assert shop.client.call("DELETE", shop.of_catalog("roles", "bob")).status_code == 200


def test_a_role_without_login_is_refused_like_a_wrong_password(shop: Place) -> None:
    password = shop.new_role("group", no_login=True)
    error = shop.refusal(user="group", password=password)
    assert 'password authentication failed for user "group"' in str(error)


def test_a_role_has_the_rights_of_an_owner(shop: Place) -> None:
    with shop.connect() as connection:
        for extension in ("pg_trgm", "hstore", "citext", "btree_gist", "unaccent", "ltree"):
            connection.execute(f"CREATE EXTENSION {extension}".encode())
        connection.execute("CREATE DATABASE made_by_sql")
        connection.execute("CREATE ROLE made_by_sql LOGIN PASSWORD 'x'")
        connection.execute("GRANT pg_read_all_data, pg_monitor TO made_by_sql")
        connection.execute("CREATE TABLE things (id int PRIMARY KEY, name text)")
        connection.execute("CREATE TYPE mood AS ENUM ('sad', 'happy')")
        connection.execute("CREATE PUBLICATION all_of_it FOR TABLE things")
        with pytest.raises(errors.InsufficientPrivilege):
            connection.execute("CREATE ROLE boss SUPERUSER")
    assert shop.query("SELECT current_database()", dbname="made_by_sql") == ("made_by_sql",)


@pytest.mark.thorough
def test_a_child_branch_has_its_parents_roles_passwords_and_databases(place: Place) -> None:
    bob: dict[str, Any] = {"user": "bob", "password": place.new_role("bob")}
    branch = place.new_branch_id(name="dev")
    listed = place.client.get(f"{place.path}/branches/{branch}/roles")["roles"]
    assert [role["name"] for role in listed] == ["bob", place.role]
    listed = place.client.get(f"{place.path}/branches/{branch}/databases")["databases"]
    assert [database["name"] for database in listed] == [place.database]
    place.change(branch_id=branch)
    assert place.query("SELECT current_user", **bob) == ("bob",)
    assert place.query("SELECT current_user") == (place.role,)
    place.branch_id = branch
    place.client.finish(place.client.delete(place.of_catalog("roles", "bob")))
    assert "password" in str(place.refusal(**bob))


@pytest.mark.thorough
def test_every_generated_password_works(shop: Place) -> None:
    path = shop.of_catalog("roles", shop.role)
    seen = {shop.password}
    for _ in range(10):
        reset = shop.client.post(f"{path}/reset_password")
        shop.client.finish(reset)
        shop.password = reset["role"]["password"]
        seen.add(shop.password)
        assert shop.query("SELECT 1") == (1,)
    assert len(seen) == 11
    assert shop.psql("-c", "SELECT 1").stdout == "1\n"


def test_a_burst_of_changes_is_applied_by_few_operations(place: Place) -> None:
    made = [
        place.client.post(place.branch_path(rest="/roles"), {"role": {"name": f"burst{number}"}})
        for number in range(20)
    ]
    for answer in made:
        ended = place.client.finish(answer)
        assert {row["status"] for row in ended} == {"finished"}
        role = answer["role"]
        row = place.query("SELECT current_user", user=role["name"], password=role["password"])
        assert row == (role["name"],)
    used = {row["id"] for answer in made for row in answer["operations"]}
    assert len(used) < len(made)

"""What SQL changes in roles and databases takes effect at the proxy and is visible in the API."""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest

from tests.support.place import Place, last_words, serves
from tests.support.processes import standing_still
from tests.support.stack import Stack
from tests.support.waiting import load, wait_for


def run(place: Place, *statements: str, **connection: Any) -> None:
    with place.connect(**connection) as session:
        for statement in statements:
            session.execute(statement.encode())


def lets_in(place: Place, password: str, user: str | None = None, **parameters: Any) -> bool:
    refusal = ""
    try:
        place.connect(user=user or place.role, password=password, **parameters).close()
    except psycopg.OperationalError as error:
        refusal = str(error)
    assert "password authentication failed" in refusal or not refusal, refusal
    return not refusal


def names(place: Place, kind: str) -> list[str]:
    return sorted(row["name"] for row in place.client.get(place.branch_path(rest=f"/{kind}"))[kind])


def await_names(place: Place, kind: str, wanted: list[str]) -> None:
    wait_for(lambda: names(place, kind) == sorted(wanted), f"{kind} to be {wanted}", timeout=15)


def rolpassword(place: Place, role: str) -> str | None:
    with place.stack.compute(place.endpoint_id, "postgres") as platform:
        row = platform.execute("SELECT rolpassword FROM pg_authid WHERE rolname = %s", [role])
        found = row.fetchone()
        assert found is not None
        return None if found[0] is None else str(found[0])


def kill(place: Place) -> None:
    place.postmaster().kill()


@pytest.mark.thorough
@pytest.mark.parametrize("pooled", [False, True], ids=["direct", "pooled"])
def test_a_password_set_by_sql_is_valid_at_once_and_the_old_one_no_longer(
    place: Place, pooled: bool
) -> None:
    assert place.query("SELECT 1", pooled=pooled) == (1,)
    old = place.password
    for new in ("first", "second", "thïrd"):
        run(place, f"ALTER ROLE neondb_owner PASSWORD '{new}'")
        for _ in range(4):  # whichever process it reaches
            assert not lets_in(place, old, pooled=pooled)
            assert lets_in(place, new, pooled=pooled)
        old = place.password = new


def test_a_verifier_set_by_a_driver_works_like_a_password(place: Place) -> None:
    with place.connect() as connection:
        verifier = connection.pgconn.encrypt_password(b"new", b"neondb_owner", b"scram-sha-256")
        connection.execute(f"ALTER ROLE neondb_owner PASSWORD '{verifier.decode()}'".encode())
    assert not lets_in(place, place.password)
    assert lets_in(place, "new")


@pytest.mark.thorough
def test_a_password_set_by_sql_outlives_the_compute(place: Place) -> None:
    run(place, "ALTER ROLE neondb_owner PASSWORD 'new'")
    old, place.password = place.password, "new"
    place.suspend()
    assert not lets_in(place, old)
    assert place.state() == "idle"
    assert lets_in(place, "new")
    wait_for(lambda: "$AAAA" in str(rolpassword(place, place.role)), "the verifier to go")


@pytest.mark.thorough
def test_an_old_password_is_invalid_after_a_crash(place: Place) -> None:
    old = place.password
    with place.connect() as connection:
        connection.execute("ALTER ROLE neondb_owner PASSWORD 'new'")
        kill(place)
    assert not place.is_served(password=old)
    wait_for(lambda: place.is_served(password="new"), "the new password to be known", timeout=60)
    assert not lets_in(place, old)


def test_a_role_created_by_sql_connects_at_once(place: Place) -> None:
    run(place, "CREATE ROLE bob LOGIN PASSWORD 'bobs'")
    assert place.query("SELECT current_user", user="bob", password="bobs") == ("bob",)
    run(place, "CREATE ROLE ann LOGIN PASSWORD 'anns'")
    assert place.query("SELECT current_user", user="ann", password="anns", pooled=True) == ("ann",)
    assert not lets_in(place, "wrong", "bob")
    await_names(place, "roles", ["ann", "bob", place.role])
    # It has only what SQL gave it, also after a change by the API.
    place.new_role("carol")
    asked = "SELECT rolcreatedb OR rolbypassrls OR pg_has_role('perch_superuser', 'MEMBER')"
    asked += " FROM pg_roles WHERE rolname = current_user"
    assert place.query(asked, user="bob", password="bobs") == (False,)
    path = place.of_catalog("roles", "bob")
    answer = place.client.call("GET", f"{path}/reveal_password")
    assert (answer.status_code, "was set by SQL" in answer.json()["message"]) == (412, True)
    reset = place.done(place.client.post(f"{path}/reset_password"))["role"]["password"]
    assert lets_in(place, reset, "bob")
    assert not lets_in(place, "bobs", "bob")
    assert place.query(asked, user="bob", password=reset) == (False,)


@pytest.mark.thorough
def test_a_role_that_sql_locks_out_stays_locked_out(place: Place) -> None:
    run(
        place,
        "CREATE ROLE late LOGIN PASSWORD 'x' VALID UNTIL '2020-01-01'",
        "CREATE ROLE far LOGIN PASSWORD 'x' VALID UNTIL '290000-01-01'",
        "CREATE ROLE soon LOGIN PASSWORD 'x' VALID UNTIL 'infinity'",
        "CREATE ROLE blank LOGIN",
        "CREATE ROLE grp PASSWORD 'x'",
        "SET password_encryption = 'md5'",
        "CREATE ROLE old LOGIN PASSWORD 'x'",
    )
    for _ in range(2):
        for role in ("late", "blank", "grp", "old"):
            assert not lets_in(place, "x", role), role
        for role in ("far", "soon"):
            assert lets_in(place, "x", role), role
        everybody = ["late", "far", "soon", "blank", "grp", "old", place.role]
        await_names(place, "roles", everybody)
    assert rolpassword(place, "old") is None
    run(place, "ALTER ROLE grp LOGIN", "ALTER ROLE soon NOLOGIN")
    assert lets_in(place, "x", "grp")
    assert not lets_in(place, "x", "soon")
    run(place, f"ALTER ROLE far VALID UNTIL '{time.strftime('%Y-%m-%d')}'")
    assert not lets_in(place, "x", "far")
    run(place, "ALTER ROLE grp PASSWORD NULL")
    for _ in range(3):
        assert not lets_in(place, "x", "grp")
    summaries = [row["summary"] for row in place.client.get("/events", limit=100)["events"]]
    assert any("stored as MD5" in words for words in summaries)
    assert any('"grp" was removed by SQL' in words for words in summaries)


@pytest.mark.thorough
def test_roles_and_databases_follow_changes_by_sql(place: Place) -> None:
    run(place, "CREATE ROLE bob", "GRANT bob TO neondb_owner")
    run(place, "CREATE DATABASE one", "CREATE DATABASE two", "CREATE DATABASE three OWNER bob")
    await_names(place, "databases", ["neondb", "one", "two", "three"])
    run(
        place,
        "ALTER DATABASE one RENAME TO swap",
        "ALTER DATABASE two RENAME TO one",
        "ALTER DATABASE swap RENAME TO two",
        "DROP DATABASE three",
        "ALTER ROLE bob RENAME TO rob",
        "ALTER DATABASE one OWNER TO rob",
    )
    await_names(place, "databases", ["neondb", "one", "two"])
    await_names(place, "roles", ["rob", place.role])
    assert place.client.get(place.of_catalog("databases", "one"))["database"]["owner_name"] == "rob"
    # Later changes by the API apply to the same objects.
    renamed = place.client.patch(place.of_catalog("databases", "one"), {"database": {"name": "1"}})
    place.done(renamed)
    assert place.query("SELECT 1", dbname="1") == (1,)
    run(place, 'DROP DATABASE "1"', "DROP ROLE rob")
    place.suspend()
    assert names(place, "databases") == ["neondb", "two"]
    assert names(place, "roles") == [place.role]
    types = {row["type"] for row in place.client.get("/events", actor="sql", limit=100)["events"]}
    assert {"role.updated", "role.deleted", "database.created", "database.updated"} <= types


@pytest.mark.thorough
def test_a_role_dropped_by_sql_is_not_created_again(place: Place) -> None:
    password = place.new_role("bob")
    with place.stack.compute(place.endpoint_id) as platform:
        platform.execute("DROP ROLE bob")
    assert not lets_in(place, password, "bob")
    place.new_role("ann")
    assert names(place, "roles") == ["ann", place.role]
    place.suspend()
    place.start()
    assert not lets_in(place, password, "bob")
    place.new_role("bob")


@pytest.mark.thorough
def test_a_later_change_by_the_api_takes_precedence(place: Place) -> None:
    run(place, "ALTER ROLE neondb_owner PASSWORD 'new'")
    reset = place.client.post(place.of_catalog("roles", place.role) + "/reset_password")
    place.done(reset)
    assert not lets_in(place, "new")
    assert lets_in(place, reset["role"]["password"])
    place.password = reset["role"]["password"]
    run(place, "ALTER ROLE neondb_owner PASSWORD 'newest'")
    place.password = "newest"
    made = place.new_role("bob")
    assert lets_in(place, "newest")
    assert not lets_in(place, reset["role"]["password"])
    assert lets_in(place, made, "bob")


@pytest.mark.thorough
@pytest.mark.parametrize("source", ["parent-data", "schema-only"])
def test_a_child_has_the_changes_that_sql_made_on_its_parent(place: Place, source: str) -> None:
    old = place.password
    run(
        place,
        "CREATE ROLE gone",
        "DROP ROLE gone",
        "CREATE ROLE bob LOGIN PASSWORD 'bobs'",
        "ALTER ROLE neondb_owner PASSWORD 'new'",
    )
    place.password = "new"
    branch = place.new_branch_id(name="dev", init_source=source)
    place.change(branch_id=branch)
    place.branch_id = branch
    assert not lets_in(place, old)
    assert lets_in(place, "new")
    assert lets_in(place, "bobs", "bob")
    assert names(place, "roles") == ["bob", place.role]


@pytest.mark.thorough
def test_a_hanging_compute_accepts_nobody_and_delays_nobody(place: Place, shop: Place) -> None:
    run(place, "ALTER ROLE neondb_owner PASSWORD 'new'")
    postmaster = place.postmaster()
    with standing_still([postmaster, *postmaster.children(recursive=True)]):
        began = time.monotonic()
        assert not place.is_served(connect_timeout=20)
        assert shop.query("SELECT 1") == (1,)
        assert time.monotonic() - began < 40
    wait_for(lambda: lets_in(place, "new"), "the compute to come back", timeout=40)


@pytest.mark.thorough
def test_sql_ends_the_sessions_of_a_role_without_login(place: Place) -> None:
    run(place, "CREATE ROLE bob LOGIN PASSWORD 'bobs'")
    bob: dict[str, Any] = {"user": "bob", "password": "bobs"}
    with place.connect(**bob) as direct, place.connect(**bob, pooled=True) as pooled:
        assert serves(direct)
        assert serves(pooled)
        run(place, "ALTER ROLE bob NOLOGIN")
        assert [last_words(direct), last_words(pooled)] == ["57P01", "57P01"]


@pytest.mark.thorough
def test_a_new_role_gets_no_session_of_a_former_role_of_its_name(place: Place) -> None:
    run(place, "CREATE ROLE bob LOGIN PASSWORD 'old'")
    old = place.connect(user="bob", password="old", pooled=True)
    assert serves(old)
    run(place, "DROP ROLE bob", "CREATE ROLE bob LOGIN PASSWORD 'new'")
    assert place.query(IS_OWN, user="bob", password="new", pooled=True) == (True,)
    with old, pytest.raises(psycopg.OperationalError):
        old.execute("SELECT 1")


@pytest.mark.thorough
def test_a_protected_branchs_child_has_its_own_passwords(place: Place) -> None:
    run(place, "CREATE ROLE bob LOGIN PASSWORD 'bobs'", "CREATE ROLE grp")
    await_names(place, "roles", ["bob", "grp", place.role])
    place.client.patch(place.branch_path(), {"branch": {"protected": True}})
    body = {"branch": {"name": "dev"}}
    made = place.done(place.client.post(f"{place.path}/branches", body))
    given = {role["name"]: role.get("password") for role in made["roles"]}
    assert (given["grp"], len({given["bob"], given[place.role], "bobs"})) == (None, 3)
    child = made["branch"]["id"]
    listed = place.client.get(f"{place.path}/branches/{child}/roles")["roles"]
    assert not any("password" in role for role in listed)
    path = f"{place.path}/branches/{child}/roles/bob/reveal_password"
    assert place.client.get(path)["password"] == given["bob"]
    assert lets_in(place, place.password)
    place.change(branch_id=child)
    for role, old in ((place.role, place.password), ("bob", "bobs")):
        assert not lets_in(place, old, role)
        assert lets_in(place, given[role], role)
        assert "$AAAA" in str(rolpassword(place, role))


@pytest.mark.thorough
@pytest.mark.parametrize("is_known", [True, False], ids=["in the rows", "in the copy alone"])
def test_it_has_no_passwords_that_sql_set_during_its_creation(place: Place, is_known: bool) -> None:
    place.client.patch(place.branch_path(), {"branch": {"protected": True}})
    with place.locked():
        made = place.client.post(f"{place.path}/branches", {"branch": {"name": "dev"}})
        run(place, "CREATE ROLE late LOGIN PASSWORD 'lates'")
        if is_known:
            await_names(place, "roles", ["late", place.role])
    place.done(made)
    assert lets_in(place, "lates", "late")
    place.change(branch_id=made["branch"]["id"])
    place.branch_id = made["branch"]["id"]
    await_names(place, "roles", ["late", place.role])
    assert not lets_in(place, "lates", "late")
    place.start()
    assert rolpassword(place, "late") is None


@pytest.mark.thorough
@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
@pytest.mark.parametrize("pooled", [False, True], ids=["direct", "pooled"])
def test_a_reset_password_ends_the_roles_sessions(place: Place, pooled: bool, busy: bool) -> None:
    bob: dict[str, Any] = {"user": "bob", "password": place.new_role("bob"), "pooled": pooled}
    others = place.connect(pooled=pooled)
    with others, place.connect(**bob) as his, ThreadPoolExecutor(1) as thread:
        assert serves(his)
        running = thread.submit(his.execute, "SELECT pg_sleep(60)") if busy else None
        if busy:
            wait_for(lambda: sessions_of(place, "bob", "active") == 1, "the query to run")
        reset = place.client.post(place.of_catalog("roles", "bob") + "/reset_password")
        if running is None:
            assert last_words(his) == "57P01"
        else:
            with pytest.raises(psycopg.OperationalError):
                running.result(20)
        bob["password"] = reset["role"]["password"]
        place.done(reset)
        assert sessions_of(place, "bob") == 0
        assert serves(others)
        assert place.query("SELECT current_user", **bob) == ("bob",)


@pytest.mark.thorough
def test_a_new_role_does_not_get_a_deleted_roles_pooled_session(place: Place) -> None:
    bob: dict[str, Any] = {"user": "bob", "password": place.new_role("bob"), "pooled": True}
    # More than once: at first there is little that the proxy could remember of an older role.
    for _ in range(4):
        with place.connect(**bob) as his:
            assert serves(his)
            deleted = place.client.delete(place.of_catalog("roles", "bob"))
            made = place.client.post(place.branch_path(rest="/roles"), {"role": {"name": "bob"}})
            bob["password"] = made["role"]["password"]
            assert place.query(IS_OWN, **bob) == (True,)
            assert last_words(his) == "57P01"
            place.client.finish(deleted)
            place.done(made)
            assert place.query(IS_OWN, **bob) == (True,)


# Whether the session belongs to the role that has this name now.
IS_OWN = """
SELECT (SELECT oid FROM pg_roles WHERE rolname = 'bob')
    = (SELECT usesysid FROM pg_stat_activity WHERE pid = pg_backend_pid())
"""


def sessions_of(place: Place, role: str, state: str = "%") -> int:
    with place.stack.compute(place.endpoint_id, "postgres") as platform:
        asked = "SELECT count(*) FROM pg_stat_activity WHERE usename = %s AND state LIKE %s"
        row = platform.execute(asked, [role, state]).fetchone()
        return int(row[0]) if row else 0


def test_sql_makes_more_roles_than_the_plan_allows(stack: Stack) -> None:
    client = stack.client(plan="free")
    place = Place(stack, client, client.new_project())
    loop = "DO $$ BEGIN FOR i IN 1..{} LOOP EXECUTE format('{}', i); END LOOP; END $$"
    try:
        run(
            place,
            "SET createrole_self_grant = ''",
            loop.format(30, "CREATE ROLE r%s"),
            "CREATE ROLE last LOGIN PASSWORD 'lasts'",
        )
        wait_for(lambda: len(names(place, "roles")) == 10, "the limit of the plan", timeout=15)
        (event,) = client.get("/events", type="catalog.limit_exceeded")["events"]
        assert event["changes"]["roles"]["to"] == 22
        assert place.query("SELECT current_user", user="last", password="lasts") == ("last",)
        place.suspend()
        assert not lets_in(place, "lasts", "last")
        # A copy of a protected branch has no passwords, those of roles without rows included.
        client.patch(place.branch_path(), {"branch": {"protected": True}})
        copied = place.done(client.post(f"{place.path}/branches", {"branch": {"name": "dev"}}))
        parent = place.branch_id
        place.change(branch_id=copied["branch"]["id"])
        place.start()
        wait_for(lambda: rolpassword(place, "last") is None, "the copy to lose its passwords")
        place.change(branch_id=parent)
        run(place, loop.format(30, "DROP ROLE r%s"))
        await_names(place, "roles", ["last", place.role])
        place.suspend()
        assert lets_in(place, "lasts", "last")
    finally:
        client.call("DELETE", place.path)


@pytest.mark.thorough
def test_catalogs_that_hang_delay_no_other_account(stack: Stack, shop: Place) -> None:
    """An owner may lock what a new session of the platform reads first."""
    account = stack.client()
    hanging = [Place.create(stack, account) for _ in range(4)]
    with ExitStack() as held:
        for place in hanging:
            # In every process of the proxy.
            session, *_ = [held.enter_context(place.connect()) for _ in range(6)]
            session.execute("CREATE ROLE bob LOGIN")
            await_names(place, "roles", [place.role, "bob"])
            lock = held.enter_context(place.connect(dbname="postgres"))
            lock.autocommit = False
            lock.execute("LOCK TABLE pg_catalog.pg_indexes IN ACCESS EXCLUSIVE MODE")
            session.execute("ALTER ROLE neondb_owner SET work_mem = '5MB'")
        for _ in range(10):
            shop.suspend()
            began = time.monotonic()
            assert shop.query("SELECT 1", pooled=True) == (1,)
            assert time.monotonic() - began < 3 * load()

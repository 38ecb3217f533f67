"""Whatever the owner of a database sets, locks or leaves unread, the platform's own sessions work,
and an obstacle to one role or database affects no other."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
import pytest

from tests.support.place import Connection, Place, last_words
from tests.support.waiting import wait_for

# Settings that change what a session sees, or prevent it from connecting.
BENDING = (
    "datestyle = 'German'",
    "client_encoding = 'SQL_ASCII'",
    "local_preload_libraries = 'nonexistent'",
    "search_path = pg_temp",
    "bytea_output = 'escape'",
    "default_transaction_isolation = 'serializable'",
    "default_transaction_read_only = on",
    "lock_timeout = 1",
    "statement_timeout = 1",
)


def finish(place: Place, answer: Any) -> None:
    for row in place.client.finish(answer):
        assert (row["status"], row.get("error")) == ("finished", None), row


def new_database(place: Place, name: str) -> None:
    body = {"database": {"name": name, "owner_name": place.role}}
    finish(place, place.client.post(f"{place.branch_path()}/databases", body))


def drop(place: Place, kind: str, name: str) -> None:
    finish(place, place.client.delete(place.of_catalog(kind, name)))


def failing(place: Place, answer: Any, words: str) -> None:
    """Wait until every requested operation has failed for this reason."""
    for row in place.client.finish(answer, timeout=120):
        assert row["status"] == "failed"
        assert words in row["error"]


def run(place: Place, *statements: str, **connection: Any) -> None:
    with place.connect(**connection) as session:
        for statement in statements:
            session.execute(statement.encode())


@contextmanager
def reading_nothing(place: Place, dbname: str) -> Iterator[Connection]:
    """A client that requests much data and reads none, until the compute waits for it."""
    with place.connect(dbname=dbname) as client, place.stack.compute(place.endpoint_id) as platform:
        client.pgconn.send_query(b"SELECT repeat('x', 100000) FROM generate_series(1, 100000)")
        client.pgconn.flush()
        waits = b"SELECT 1 FROM pg_stat_activity WHERE wait_event = 'ClientWrite'"
        wait_for(lambda: platform.execute(waits).fetchone(), "a full socket")
        yield client
        client.close()


@pytest.mark.thorough
@pytest.mark.parametrize("reads_in", ["doomed", "neondb"])
def test_a_client_that_does_not_read_prevents_no_deletion_of_a_database(
    shop: Place, reads_in: str
) -> None:
    """Postgres waits for every backend of the compute, also for those of other databases."""
    new_database(shop, "doomed")
    with reading_nothing(shop, reads_in):
        began = time.monotonic()
        drop(shop, "databases", "doomed")
        assert time.monotonic() - began < 20
    shop.new_role(f"after {reads_in}")
    assert "does not exist" in str(shop.refusal(dbname="doomed"))


def test_an_interrupted_drop_is_completed(shop: Place) -> None:
    new_database(shop, "half gone")
    with shop.stack.compute(shop.endpoint_id) as platform:
        # Postgres leaves the database in this state: only another DROP is possible.
        platform.execute("UPDATE pg_database SET datconnlimit = -2 WHERE datname = 'half gone'")
    drop(shop, "databases", "half gone")
    new_database(shop, "half gone")


@pytest.mark.thorough
def test_prepared_transactions_prevent_no_deletion(place: Place) -> None:
    place.change(settings={"pg_settings": {"max_prepared_transactions": "3"}})
    new_database(place, "doomed")
    bob: dict[str, Any] = {"user": "bob", "password": place.new_role("bob")}
    run(place, "GRANT CREATE ON SCHEMA public TO bob")
    run(place, "BEGIN", "CREATE TABLE t ()", "PREPARE TRANSACTION 'it''s'", dbname="doomed")
    run(place, "BEGIN", "CREATE TABLE t ()", "PREPARE TRANSACTION 'b'", **bob)
    drop(place, "databases", "doomed")
    drop(place, "roles", "bob")


@pytest.mark.thorough
def test_a_standby_that_does_not_exist_delays_nothing(place: Place) -> None:
    configured = place.stack.data_dir(place.branch_id) / "postgresql.auto.conf"
    configured.write_text("synchronous_standby_names = 'nobody'\n")
    with place.stack.compute(place.endpoint_id) as platform:
        platform.execute("SELECT pg_reload_conf()")
        asked = b"SHOW synchronous_standby_names"
        wait_for(lambda: platform.execute(asked).fetchone() == ("nobody",), "the new setting")
    place.new_role("bob")
    drop(place, "roles", "bob")


@pytest.mark.thorough
def test_settings_of_databases_do_not_affect_the_platforms_sessions(place: Place) -> None:
    new_database(place, "bent")
    password = place.new_role("bob")
    run(place, "GRANT ALL ON DATABASE bent TO bob")
    run(place, "CREATE SCHEMA bobs", dbname="bent", user="bob", password=password)
    for database in ("bent", "neondb"):
        settings = (f"ALTER DATABASE {database} SET {setting}" for setting in BENDING)
        run(place, *settings, f"ALTER DATABASE {database} SET role = bob", dbname="template1")
    drop(place, "roles", "bob")
    new_database(place, "bent as well")
    place.make_older(hours=3)
    assert place.await_operation("check_availability")["failures_count"] == 0


@pytest.mark.thorough
def test_settings_of_a_compute_prevent_no_suspend(place: Place) -> None:
    place.change(
        settings={
            "pg_settings": {
                "datestyle": "German",
                "timezone": "Antarctica/Troll",
                "client_encoding": "SQL_ASCII",
                "intervalstyle": "sql_standard",
                "statement_timeout": "1ms",
                "default_transaction_read_only": "on",
                "search_path": "pg_temp",
            }
        },
        suspend_timeout_seconds=1,
    )
    wait_for(lambda: place.state() == "idle", "the endpoint to sleep", timeout=15)
    new_database(place, "nächste")
    listed = place.client.get(f"{place.branch_path()}/databases")["databases"]
    assert [row["name"] for row in listed] == ["neondb", "nächste"]


ENCODINGS = {"MULE_INTERNAL": "SQL_ASCII", "SQL_ASCII": "UTF8", "LATIN1": "UTF8"}


@pytest.mark.thorough
@pytest.mark.parametrize(("encoding", "client"), ENCODINGS.items())
def test_a_database_of_another_encoding_locks_nobody_out(
    shop: Place, encoding: str, client: str
) -> None:
    name = f"in {encoding}"
    password = shop.new_role("müller")
    run(
        shop,
        f"CREATE DATABASE \"{name}\" ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0",
        f'GRANT ALL ON DATABASE "{name}" TO "müller"',
    )
    strange: dict[str, Any] = {"dbname": name, "client_encoding": client}
    run(shop, "CREATE SCHEMA s; CREATE TABLE s.t ()", user="müller", password=password, **strange)
    drop(shop, "roles", "müller")
    with shop.stack.compute(shop.endpoint_id, "postgres") as platform:
        asked = "SELECT datdba::regrole::text FROM pg_database WHERE datname = %s"
        assert platform.execute(asked, [name]).fetchone() == (shop.role,)


@pytest.mark.thorough
def test_names_in_another_encoding_affect_nobody_else(place: Place) -> None:
    """The catalog stores their bytes unchanged, and they are not valid UTF-8."""
    run(place, "CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    run(place, 'CREATE DATABASE "é"', 'CREATE ROLE "ü"', dbname="latin")
    place.new_role("ünïcödé")
    new_database(place, "ünïcödé")
    branch = place.new_branch_id(name="child")
    place.change(branch_id=branch)
    assert place.query("SELECT 1", dbname="ünïcödé") == (1,)
    place.branch_id = branch
    drop(place, "roles", "ünïcödé")
    place.make_older(hours=3)
    assert place.await_operation("check_availability")["failures_count"] == 0


@pytest.mark.thorough
@pytest.mark.parametrize(
    "closed",
    ["ALLOW_CONNECTIONS false", "CONNECTION LIMIT 0", "IS_TEMPLATE true"],
)
def test_a_role_is_removed_from_a_database_that_accepts_no_connections(
    shop: Place, closed: str
) -> None:
    name = f"closed by {closed}"
    bob: dict[str, Any] = {"user": "bob", "password": shop.new_role("bob")}
    run(shop, f'CREATE DATABASE "{name}"', f'GRANT ALL ON DATABASE "{name}" TO bob')
    run(shop, "CREATE SCHEMA bobs", dbname=name, **bob)
    run(shop, f'ALTER DATABASE "{name}" WITH {closed}')
    asked = (
        "SELECT datallowconn, datconnlimit, datistemplate FROM pg_database"
        f" WHERE datname = '{name}'"
    )
    before = shop.query(asked)
    drop(shop, "roles", "bob")
    assert shop.query(asked) == before
    run(shop, f'ALTER DATABASE "{name}" WITH ALLOW_CONNECTIONS true CONNECTION LIMIT -1')
    owner = "SELECT nspowner::regrole::text FROM pg_namespace WHERE nspname = 'bobs'"
    assert shop.query(owner, dbname=name) == (shop.role,)


@pytest.mark.thorough
def test_a_change_that_cannot_be_applied_fails_alone(place: Place) -> None:
    """SQL has made a role with this name, which the API does not know yet."""
    run(place, "CREATE ROLE carol")
    made = place.client.post(f"{place.branch_path()}/roles", {"role": {"name": "carol"}})
    failing(place, made, 'role "carol": SQL has made a role with this name')
    # Other changes are applied, and so is a start.
    password = place.new_role("dave")
    new_database(place, "daves")
    place.suspend()
    assert place.query("SELECT current_user", user="dave", password=password) == ("dave",)
    # The same change fails again, and succeeds with the next change once the cause is removed.
    reset = place.client.post(place.of_catalog("roles", "carol") + "/reset_password")
    failing(place, reset, 'role "carol"')
    run(place, "DROP ROLE carol")
    place.new_role("erin")
    carol = {"user": "carol", "password": reset["role"]["password"]}
    assert place.query("SELECT pg_has_role('perch_superuser', 'MEMBER')", **carol) == (True,)


@pytest.mark.thorough
def test_a_database_created_again_does_not_take_over_one_that_stayed(place: Place) -> None:
    new_database(place, "books")
    with place.stack.compute(place.endpoint_id, "books") as platform:
        platform.execute("CREATE TABLE old ()")
        # Only the platform can keep a database in this state, and it would not.
        platform.execute("CREATE SUBSCRIPTION s CONNECTION '' PUBLICATION p WITH (connect = false)")
    place.client.delete(place.endpoint_path())
    place.client.delete(place.of_catalog("databases", "books"))
    body = {"database": {"name": "books", "owner_name": place.role}}
    place.client.post(f"{place.branch_path()}/databases", body)
    endpoint = {"endpoint": {"branch_id": place.branch_id, "type": "read_write"}}
    started = place.client.post(f"{place.path}/endpoints", endpoint)
    finish(place, started)
    place.endpoint_id = started["endpoint"]["id"]
    with place.stack.compute(place.endpoint_id, "books") as platform:
        assert platform.execute("SELECT to_regclass('old')").fetchone() == ("old",)
        platform.execute("ALTER SUBSCRIPTION s SET (slot_name = NONE)")
        platform.execute("DROP SUBSCRIPTION s")
    new_database(place, "plays")
    assert place.query("SELECT to_regclass('old')", dbname="books") == (None,)


def test_a_role_that_cannot_be_dropped_can_connect_no_longer(shop: Place) -> None:
    bob: dict[str, Any] = {"user": "bob", "password": shop.new_role("bob")}
    run(shop, "GRANT CREATE ON SCHEMA public TO bob")
    run(shop, "CREATE TABLE held ()", **bob)
    with shop.connect(**bob) as his, shop.connect() as owner:
        with owner.transaction():
            owner.execute("LOCK TABLE held")
            deleted = shop.client.delete(shop.of_catalog("roles", "bob"))
            assert last_words(his) == "57P01"
            asked = b"SELECT rolcanlogin FROM pg_roles WHERE rolname = 'bob'"
            wait_for(lambda: owner.execute(asked).fetchone() == (False,), "the login to be removed")
        finish(shop, deleted)


@pytest.mark.thorough
def test_the_platform_connects_when_every_connection_is_taken(place: Place) -> None:
    place.change(settings={"pg_settings": {"max_connections": "12"}})
    taken: list[Connection] = []
    with suppress(psycopg.OperationalError):
        while len(taken) < 12:
            taken.append(place.connect())
    assert len(taken) < 12
    place.new_role("bob")
    for connection in taken:
        connection.close()

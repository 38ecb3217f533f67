"""What counts as activity on an endpoint that ignores heartbeats: statements that read or write a
table, whatever their text says."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from controlplane.compute import compute
from controlplane.compute.observation import MAX_DATABASES, look, read_sessions
from controlplane.compute.processes.session import Session, session, socket_dir
from tests.controlplane.local_compute import ENDPOINT, SPEC, branch, computes
from tests.support.waiting import wait_for

__all__ = ["branch", "computes"]

Client = psycopg.Connection[tuple[Any, ...]]
SINCE = datetime(2026, 1, 1, tzinfo=UTC)
TABLES = """
CREATE TABLE birds (name text PRIMARY KEY);
CREATE TABLE empty (name text);
CREATE SEQUENCE numbers;
CREATE FUNCTION hidden() RETURNS int LANGUAGE plpgsql AS
    $$ BEGIN INSERT INTO birds VALUES (clock_timestamp()::text); RETURN 1; END $$;
INSERT INTO birds VALUES ('wren');
"""
HEARTBEATS = (
    "SELECT 1",
    "",
    "/* FROM birds */ SELECT 'INSERT INTO birds'",
    "SHOW work_mem",
    "SET work_mem = '5MB'",
    "BEGIN; SELECT version(); COMMIT",
    "SELECT count(*) FROM pg_stat_activity",
    "SELECT relname FROM pg_class WHERE relname = 'birds'",
    "LISTEN birds",
    "SELECT pg_advisory_lock(1)",
)
USES = (
    "SELECT * FROM birds",
    "SELECT * FROM empty",
    "SELECT name FROM birds WHERE name = 'wren'",
    "INSERT INTO empty VALUES ('x'); SELECT 1",
    "SELECT hidden()",
    "DO $$ BEGIN PERFORM hidden(); END $$",
    "BEGIN; DELETE FROM empty; ROLLBACK; SELECT 1",
    "COPY birds TO STDOUT",
    "SELECT nextval('numbers')",
    "SELECT lo_create(0)",
    "CREATE TABLE more (a int)",
    "ALTER TABLE empty ADD COLUMN IF NOT EXISTS b int",
    "TRUNCATE empty",
    "PREPARE p AS SELECT * FROM birds; EXECUTE p; DEALLOCATE p; SELECT 1",
)


@pytest.fixture(scope="module")
def client(computes: Path) -> Iterator[Client]:
    compute.start(SPEC)
    with session(socket_dir(ENDPOINT)) as platform:
        platform.execute("CREATE ROLE app LOGIN CREATEDB")
        platform.execute("CREATE DATABASE shop OWNER app")
    with connect() as client:
        client.execute(TABLES.encode())
        yield client
    compute.stop(SPEC.branch_id)


def connect(database: str = "shop") -> Client:
    return psycopg.connect(
        host=str(socket_dir(ENDPOINT)), user="app", dbname=database, autocommit=True
    )


def settle(client: Client) -> datetime:
    """Wait until the client has told Postgres what it used, which it does at most once a second.
    Returns the last activity."""
    last: datetime | None = None
    seen_at = time.monotonic()

    def is_settled() -> bool:
        nonlocal last, seen_at
        client.execute("SELECT 1")
        found = look(ENDPOINT, SINCE).last_activity
        if found != last:
            last, seen_at = found, time.monotonic()
        return time.monotonic() - seen_at > 1.5

    wait_for(is_settled, "the session to settle", timeout=20)
    assert last is not None
    return last


def run(client: Client, statement: str) -> None:
    if statement.startswith("COPY"):
        with client.cursor().copy(statement.encode()) as copy:
            assert list(copy)
    else:
        client.execute(statement.encode())


def test_a_heartbeat_is_no_activity(client: Client) -> None:
    # The first time, each may read the catalog, or load what it needs.
    for statement in HEARTBEATS:
        run(client, statement)
    before = settle(client)
    for statement in HEARTBEATS * 3:
        run(client, statement)
        assert look(ENDPOINT, SINCE).last_activity == before, statement
        assert (look(ENDPOINT).last_activity or before) > before, statement


def test_a_use_of_a_table_is_activity(client: Client) -> None:
    last = settle(client)
    for statement in USES:
        with connect() as user:
            backend = user.info.backend_pid
            run(user, statement)
        # A session that has ended has told Postgres all that it used.
        wait_for(lambda backend=backend: not psutil.pid_exists(backend), "its end")  # type: ignore[misc]
        # A heartbeat, which alone would be none.
        client.execute("SELECT 1")
        found = look(ENDPOINT, SINCE).last_activity
        assert found is not None, statement
        assert found > last, statement
        last = found


def test_busy_sessions_are_activity(client: Client) -> None:
    settle(client)
    with client.transaction():
        client.execute("SELECT 1")
        began = time.monotonic()
        while time.monotonic() < began + 1:
            last = look(ENDPOINT, SINCE).last_activity
            assert last is not None
            assert datetime.now(UTC) - last < timedelta(seconds=1)


def test_too_many_databases_make_every_statement_activity(client: Client) -> None:
    before = settle(client)
    others: list[Client] = []
    for number in range(MAX_DATABASES):
        client.execute(f"CREATE DATABASE d{number}".encode())
        others.append(connect(f"d{number}"))
        others[-1].execute("SELECT 1")
    try:
        client.execute("SELECT 1")
        last = look(ENDPOINT, SINCE).last_activity
        assert last is not None
        assert last > before
        client.execute("SELECT 1")
        later = look(ENDPOINT, SINCE).last_activity
        assert later is not None
        assert later > last
    finally:
        for one in others:
            one.close()


def test_sessions_are_listed_with_their_last_statements(client: Client) -> None:
    with client.transaction(), connect() as other:
        client.execute("SELECT 2")
        other.execute("SELECT 3")
        first, second = read_sessions(ENDPOINT)
    assert (first["state"], first["last_statement"]) == ("idle in transaction", "SELECT 2")
    assert first["xact_start"] >= first["backend_start"]
    assert (second["state"], second["last_statement"]) == ("idle", "SELECT 3")
    assert second["xact_start"] is None
    assert {one["role"] for one in (first, second)} == {"app"}


def test_names_and_statements_in_other_encodings_hide_no_session(client: Client) -> None:
    """Postgres shows them as the bytes that they have there."""
    for name, encoding in (("latin", "LATIN1"), ("mule", "MULE_INTERNAL")):
        made = f"CREATE DATABASE {name} TEMPLATE template0 ENCODING '{encoding}' LOCALE 'C'"
        client.execute(made.encode())
    with ExitStack() as opened:

        def enter(name: str, encoding: str = "UTF8") -> Session:
            as_client: Any = {"user": "app", "options": "", "client_encoding": encoding}
            return opened.enter_context(session(socket_dir(ENDPOINT), name, **as_client))

        latin = enter("latin")
        latin.execute('CREATE DATABASE "é"')
        latin.execute(f"SELECT '{'é' * 600}'")
        enter("mule", "SQL_ASCII").execute("SELECT 1")
        enter("\udce9").execute("SELECT 2")
        assert look(ENDPOINT, SINCE).last_activity is not None
        shown = {one["database"]: one["last_statement"] for one in read_sessions(ENDPOINT)}
        assert shown["\ufffd"] == "SELECT 2"
        assert shown["mule"] == "SELECT 1"
        assert shown["latin"] == ("SELECT '" + "\ufffd" * 600)[:500]
        latin.execute("ALTER ROLE app PASSWORD 'é'")
        shown = {one["database"]: one["last_statement"] for one in read_sessions(ENDPOINT)}
        assert shown["latin"] is None

"""Passwords of roles and their verifiers stay within the platform."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.place import Place
from tests.support.waiting import wait_for

# Settings that make Postgres log statements.
TALKATIVE = {
    "log_statement": "all",
    "log_min_duration_statement": "0",
    "log_duration": "on",
    "log_min_messages": "debug5",
    "log_min_error_statement": "debug5",
    "log_error_verbosity": "verbose",
}
# Whether a session of Perch waits for another transaction.
WAITING = """
SELECT EXISTS (
    SELECT FROM pg_stat_activity WHERE usename = 'perch_platform' AND wait_event = 'transactionid'
)
"""


@contextmanager
def watched(place: Place, seen: set[str]) -> Iterator[None]:
    """Collect what a member of pg_monitor sees of the platform's sessions meanwhile."""
    over = threading.Event()

    def watch() -> None:
        with place.connect() as connection:
            while not over.is_set():
                rows = connection.execute(
                    "SELECT query FROM pg_stat_activity WHERE usename = 'perch_platform'"
                ).fetchall()
                seen.update(str(query) for (query,) in rows)
                # Its own lines would fill the log, of which only a part is kept.
                over.wait(0.002)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def secrets_of(place: Place, name: str) -> list[str]:
    """Return the role's password, and its verifier as a whole and in parts."""
    password = place.client.get(place.of_catalog("roles", name) + "/reveal_password")["password"]
    with place.stack.database() as database:
        row = database.execute(
            "SELECT verifier FROM controlplane_role WHERE branch_id = %s AND name = %s",
            [place.branch_id, name],
        ).fetchone()
    assert row is not None
    return [password, row[0], *row[0].split("$")[1:], *row[0].split(":")]


def test_no_password_reaches_the_log_or_pg_monitor(place: Place) -> None:
    place.change(settings={"pg_settings": TALKATIVE})
    seen: set[str] = set()
    with watched(place, seen):
        place.new_role("ann")
        path = place.of_catalog("roles", "ann")
        place.done(place.client.post(f"{path}/reset_password"))
        with place.connect() as connection, connection.transaction():
            # Perch's creation of the role waits for this transaction and then fails, so that the
            # statement is logged as an error. No reading of the catalog sees the role before.
            connection.execute("CREATE ROLE bob; GRANT bob TO perch_superuser")
            made = place.client.post(place.branch_path(rest="/roles"), {"role": {"name": "bob"}})
            wait_for(lambda: place.query(WAITING)[0], "the creation by Perch")
        assert [row["status"] for row in place.client.finish(made)] == ["failed"]
    log = place.stack.state_dir / "branches" / place.branch_id / "postgres.log"
    # The log comes through a pipe that the worker reads.
    wait_for(lambda: "CREATE ROLE bob" in log.read_text(errors="replace"), "the line in the log")
    logged = log.read_text(errors="replace")
    for name in (place.role, "ann", "bob"):
        for secret in secrets_of(place, name):
            assert secret not in logged
            assert not any(secret in query for query in seen)
    assert "BYPASSRLS" not in logged
    assert "SCRAM-SHA-256$" not in logged
    assert not any("ROLE" in query for query in seen)
    # Nor is it in Postgres's own catalog, which an owner can read.
    in_catalog = place.query("SELECT string_agg(rolpassword, ' ') FROM pg_authid")[0]
    shared = "SCRAM-SHA-256$4096"
    assert not any(secret in in_catalog for secret in secrets_of(place, "ann") if secret != shared)

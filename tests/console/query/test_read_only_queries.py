"""The query page's "Read only": nothing that is typed can write, and what writes unnoticed is
rolled back."""

import re
from typing import Any

import pytest

from tests.console.conftest import Person, Shop
from tests.console.pages import Page
from tests.selection import first_of


def test_a_query_is_read_only_unless_chosen_otherwise(run_sql: Any) -> None:
    page = run_sql("CREATE TABLE mine (n int)")
    assert "read-only transaction" in page.text
    assert "“Read only” is on, so nothing was changed." in page.text
    page = run_sql("CREATE TABLE mine (n int); DROP TABLE mine", read_only=False)
    assert "DROP" in page.text


# Each tries to delete the rows of `kept`, in a session with "Read only".
HOSTILE = [
    "SET TRANSACTION READ WRITE; DELETE FROM kept",
    "SET transaction_read_only = off; DELETE FROM kept",
    "SET LOCAL transaction_read_only TO DEFAULT; DELETE FROM kept",
    "SELECT set_config('transaction_read_only', 'off', true); DELETE FROM kept",
    "UPDATE pg_settings SET setting = 'off' WHERE name = 'transaction_read_only'; DELETE FROM kept",
    "SET default_transaction_read_only = off; DELETE FROM kept",
    "SET default_transaction_read_only = off; COMMIT; DELETE FROM kept",
    "SET default_transaction_read_only = off; ROLLBACK; SELECT 1; DELETE FROM kept",
    "COMMIT; BEGIN READ WRITE; DELETE FROM kept; COMMIT",
    "END; START TRANSACTION READ WRITE; SELECT 1; DELETE FROM kept; END",
    "ABORT; SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE; DELETE FROM kept",
    "SET default_transaction_read_only = off; COMMIT AND CHAIN; DELETE FROM kept",
    "COMMIT; SET TRANSACTION READ WRITE; DELETE FROM kept",
    "SAVEPOINT s; SET TRANSACTION READ WRITE; DELETE FROM kept",
    "SAVEPOINT s; ROLLBACK TO s; SET TRANSACTION READ WRITE; DELETE FROM kept",
    "RESET ALL; DELETE FROM kept",
    "DISCARD ALL; DELETE FROM kept",
    "COMMIT; DISCARD ALL; DELETE FROM kept",
    "DO $$BEGIN SET default_transaction_read_only = off; COMMIT; DELETE FROM kept; END$$",
    "COMMIT; DO $$BEGIN SET default_transaction_read_only = off; COMMIT; DELETE FROM kept; END$$",
    "DO $$BEGIN ROLLBACK; SET TRANSACTION READ WRITE; DELETE FROM kept; END$$",
    "CALL wipe()",
    "COMMIT; CALL wipe()",
    "SELECT wiped()",
    "EXPLAIN ANALYZE DELETE FROM kept",
    "WITH gone AS (DELETE FROM kept RETURNING n) SELECT * FROM gone",
    "PREPARE p AS DELETE FROM kept; COMMIT; EXECUTE p",
    "DECLARE c CURSOR WITH HOLD FOR SELECT wiped(); COMMIT",
    "LISTEN a; NOTIFY a; TRUNCATE kept",
    "-- \rCOMMIT\nSELECT 1; DELETE FROM kept",
    "COMMIT; DROP TABLE kept",
]


@pytest.mark.thorough
def test_no_typed_sql_disables_read_only(run_sql: Any) -> None:
    run_sql(
        "CREATE TABLE kept (n int); INSERT INTO kept VALUES (7); "
        "CREATE PROCEDURE wipe() LANGUAGE plpgsql AS $$BEGIN SET default_transaction_read_only"
        " = off; COMMIT; DELETE FROM kept; END$$; "
        "CREATE FUNCTION wiped() RETURNS int LANGUAGE plpgsql AS $$BEGIN PERFORM "
        "set_config('transaction_read_only', 'off', true); DELETE FROM kept; RETURN 1; END$$",
        read_only=False,
    )
    for typed in HOSTILE:
        html = run_sql(typed, htmx=True).html
        assert 'class="error"' in html or "ROLLBACK" in html, typed
    assert run_sql("SELECT n FROM kept", htmx=True).rows() == ["7"]
    run_sql("DROP TABLE kept; DROP PROCEDURE wipe; DROP FUNCTION wiped", read_only=False)


# Postgres itself lets each of these write in a read-only transaction.
UNNOTICED = [
    "EXPLAIN ANALYZE CREATE TABLE made AS SELECT 1; COMMIT",
    "EXPLAIN ANALYZE CREATE TABLE made AS SELECT 1",
    "EXPLAIN ANALYZE SELECT 1 INTO made; END; SELECT 1",
    "EXPLAIN ANALYZE CREATE TABLE made AS SELECT 1; COMMIT AND CHAIN; COMMIT",
    "/* */ EXPLAIN ANALYZE CREATE TABLE made AS SELECT 1; /* ; */ coMMit",
    "EXPLAIN ANALYZE CREATE TABLE made AS SELECT 1; SAVEPOINT s; RELEASE s; COMMIT WORK",
    "DO $$BEGIN EXECUTE 'EXPLAIN ANALYZE CREATE TABLE made AS SELECT 1'; END$$; COMMIT",
    "EXPLAIN ANALYZE CREATE MATERIALIZED VIEW made AS SELECT 1; -- \rCOMMIT\nCOMMIT",
    "EXPLAIN ANALYZE CREATE TABLE made AS SELECT 1; PREPARE/**/TRANSACTION 'p'; COMMIT",
]


@pytest.mark.parametrize("typed", first_of(UNNOTICED))
def test_nothing_that_read_only_sql_has_written_is_committed(run_sql: Any, typed: str) -> None:
    run_sql(typed, htmx=True)
    assert run_sql("SELECT to_regclass('made')", htmx=True).rows() == ["NULL"]


def test_several_statements_run_in_read_only_mode(run_sql: Any) -> None:
    page = run_sql("SHOW transaction_read_only; COMMIT; SELECT 'after'")
    assert re.findall(r"Statement (\d)", page.text) == ["1", "2", "3"]
    assert page.rows()[-1] == "after"
    page = run_sql("SELECT 1; COMMIT; SELECT * FROM nowhere")
    assert "<mark>nowhere</mark>" in page.html


def test_a_button_turns_read_only_off_and_runs_the_statement(run_sql: Any) -> None:
    page = run_sql("CREATE TABLE wished (n int)")
    assert "Turn off read only and run" in page.text
    (write,) = re.findall(r'name="write" value="([^"]+)"', page.html)
    page = run_sql("CREATE TABLE wished (n int)", write=write)
    assert "CREATE" in page.text
    assert page.fields["read_only"] == ""
    # What was explained and run is explained and run again.
    page = run_sql("INSERT INTO wished VALUES (1)", act="analyze")
    (write,) = re.findall(r'name="write" value="([^"]+)"', page.html)
    page = run_sql("INSERT INTO wished VALUES (1)", write=write)
    assert "Each step with its share" in page.text
    assert "INSERT" not in run_sql("DROP TABLE wished", write=write.replace("analyze", "run")).text
    assert 'name="write"' not in run_sql("SELECT nowhere").html


def test_on_another_branch_statements_change_nothing_unless_confirmed(
    alice: Person, shop: Shop
) -> None:
    shop.create_endpoint(shop.dev_id)
    form = {"branch": shop.main_id, "database": "neondb", "role": "neondb_owner"}
    typed = form | {"sql": "CREATE TABLE elsewhere (n int)"}

    def there() -> str:
        asked = form | {"branch": shop.dev_id, "sql": "SELECT to_regclass('elsewhere')"}
        return Page(alice.post(f"{shop.url}/query", asked)).rows()[-1]

    # “Read only” is off.
    page = Page(alice.post(f"{shop.url}/query", typed | {"other": shop.dev_id}))
    assert "On another branch, statements run read only at first." in page.text
    assert there() == "NULL"
    (write,) = re.findall(r'name="write" value="([^"]+)"', page.html)
    page = Page(alice.post(f"{shop.url}/query", typed | {"read_only": "on", "write": write}))
    assert "CREATE" in page.text
    # It was confirmed for the other branch only.
    assert page.fields["read_only"] == "on"
    assert there() == "elsewhere"
    read = Page(alice.post(f"{shop.url}/query", form | {"sql": "SELECT 7", "other": shop.dev_id}))
    assert read.rows()[-1] == "7"

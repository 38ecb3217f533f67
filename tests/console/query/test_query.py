"""The query page: SQL on a branch, through its endpoint, as one of its roles."""

import re
import ssl
from typing import Any, ClassVar

import pytest

from console.api.errors import ServerError
from console.api.transport import Server
from console.query import authority, results, sql_over_http
from console.query.results import MAX_ROWS
from console.query.sql_over_http import Result, SqlFailed
from console.query.statements import MAX_STATEMENTS
from console.query.table_description import listed_tables, read_table
from console.query.table_pages import read_row_name
from console.query.views import QueryForm
from tests.console.browser import Browser
from tests.console.conftest import Misbehaving, Person, Shop
from tests.console.pages import Page


def test_it_works(run_sql: Any) -> None:
    page = run_sql("SELECT 6 * 7 AS answer, 'two words' AS t, NULL AS nothing, true AS yes")
    assert page.rows()[-1].startswith("42 | two words | NULL | t")
    for name in ("answer integer", "t text", "yes boolean", "1 row"):
        assert name in page.text
    assert page.fields["sql"].startswith("SELECT 6")
    assert page.fields["role"] == "neondb_owner"


def test_the_choices_of_the_form(carol: Person, still_shop: Shop) -> None:
    page = Page(carol.get(f"{still_shop.url}/query"))
    # The other branch has no endpoint, so it cannot be queried.
    assert page.options["branch"] == [still_shop.main_id]
    assert page.options["database"] == ["neondb"]
    assert "neondb_owner" in page.options["role"]
    assert page.fields["read_only"] == "on"
    assert f'href="{still_shop.url}/query" aria-current="page"' in page.html


def test_pages_of_a_branch_and_its_endpoint_lead_to_its_queries(
    carol: Person, still_shop: Shop
) -> None:
    address = f'href="{still_shop.url}/query?branch={still_shop.main_id}"'
    for url in (f"{still_shop.url}/branches/{still_shop.main_id}", still_shop.endpoint_url):
        # The button and the tab.
        assert Page(carol.get(url)).html.count(address) == 2
    page = Page(carol.get(f"{still_shop.url}/query?branch={still_shop.dev_id}"))
    assert "dev has no endpoint, through which queries run. Create endpoint" in page.text
    assert page.fields["branch"] == still_shop.main_id


def test_htmx_gets_only_the_answer(run_sql: Any) -> None:
    page = run_sql("SELECT 1", htmx=True)
    assert page.html.strip().startswith('<section id="answer"')
    assert run_sql("", htmx=True, act="choose").html.strip().startswith('<div class="place"')


def test_a_query_wakes_an_idle_endpoint(alice: Person, shop: Shop) -> None:
    shop.client.finish(shop.client.post(f"{shop.path}/endpoints/{shop.endpoint_id}/suspend"))
    data = {"branch": shop.main_id, "database": "neondb", "role": "neondb_owner"}
    page = Page(alice.post(f"{shop.url}/query", {**data, "sql": "SELECT 'awake'"}))
    assert "awake" in page.rows()[-1]


@pytest.mark.thorough
def test_a_query_runs_on_an_endpoint_with_pooling(alice: Person, shop: Shop) -> None:
    path = f"{shop.path}/endpoints/{shop.endpoint_id}"
    data = {"branch": shop.main_id, "database": "neondb", "role": "neondb_owner"}
    for is_on in (True, False):
        changed = {"endpoint": {"pooler_enabled": is_on}}
        shop.client.finish(shop.client.patch(path, changed))
        page = Page(alice.post(f"{shop.url}/query", {**data, "sql": "SHOW statement_timeout"}))
        assert page.rows()[-1] == "30s"


def test_several_statements_run_in_one_transaction(run_sql: Any) -> None:
    page = run_sql(
        "CREATE TEMP TABLE t (n int); INSERT INTO t VALUES (1), (2);\nSELECT sum(n) FROM t;",
        read_only=False,
    )
    assert re.findall(r"Statement (\d)", page.text) == ["1", "2", "3"]
    assert "INSERT · 2 rows" in page.text
    assert page.rows()[-1] == "3"


def test_an_error_is_marked_at_its_position(run_sql: Any) -> None:
    page = run_sql("SELECT 1;\n\nSELECT *\nFROM nowhere WHERE true")
    assert 'Relation "nowhere" does not exist (SQLSTATE 42P01)' in page.text
    assert "Line 4 FROM nowhere WHERE true" in page.text
    assert "<mark>nowhere</mark>" in page.html
    typed = page.fields["sql"]
    start, end = map(int, re.findall(r'data-mark="(\d+),(\d+)"', page.html)[0])
    assert typed.replace("\r", "")[start:end] == "nowhere"


def test_explaining_runs_nothing(run_sql: Any) -> None:
    page = run_sql("SELECT pg_sleep(100)", act="explain")
    assert "Result cost 0." not in page.html
    assert "Each step with its share of the cost" in page.text
    assert "1 row expected" in page.text
    page = run_sql("SELECT * FROM nowhere", act="explain")
    assert "<mark>nowhere</mark>" in page.html


def test_a_plan_is_shown_with_what_it_took(run_sql: Any) -> None:
    page = run_sql("SELECT * FROM generate_series(1, 5000) n WHERE n > 4", act="analyze")
    assert "Function Scan on generate_series as n" in page.text
    assert "4,996 rows" in page.text
    assert "Rows Removed by Filter: 4" in page.text
    # A plan as text stays as it is.
    assert "<pre" in run_sql("EXPLAIN SELECT 1").html
    # It is run, so it must not change anything either.
    run_sql("CREATE TABLE analyzed AS SELECT 1", act="analyze")
    assert run_sql("SELECT to_regclass('analyzed')").rows()[-1] == "NULL"


def test_notices_are_shown_with_their_statement_and_with_an_error(run_sql: Any) -> None:
    says = "DO $$BEGIN RAISE NOTICE 'counted %', 7 USING HINT = 'all is well'; END$$"
    page = run_sql(f"SELECT 1; {says}")
    assert "NOTICE counted 7 Hint: all is well" in page.text
    fails = "DO $$BEGIN RAISE WARNING 'so far'; PERFORM 1/0; END$$"
    assert "WARNING so far Division by zero" in run_sql(fails).text


def test_notices_that_are_left_out_are_counted_with_an_error_too(run_sql: Any) -> None:
    many = "DO $$BEGIN FOR n IN 1..130 LOOP RAISE NOTICE '%', n; END LOOP; {}; END$$"
    for ends in ("PERFORM 1/0", "PERFORM pg_cancel_backend(pg_backend_pid()), pg_sleep(20)"):
        assert "NOTICE 100 and 30 more" in run_sql(many.format(ends)).text


def test_a_plan_in_text_says_what_it_leaves_out_and_is_downloaded_whole(
    run_sql: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = run_sql("EXPLAIN SELECT 1" + " UNION ALL SELECT 1" * 800)
    assert f"802 rows, of which the first {MAX_ROWS} are shown" in page.text
    monkeypatch.setattr(results, "MAX_PLAN_PARTS", 0)
    page = run_sql("SELECT 1", act="explain")
    assert "Download CSV" in page.text
    answer = run_sql("SELECT 1", act=page.fields["act"], csv="0")
    assert answer.html.startswith('QUERY PLAN\r\n"[\n')


def test_a_result_is_downloaded_whole(carol: Person, still_shop: Shop) -> None:
    place = {"branch": still_shop.main_id, "database": "neondb", "role": "neondb_owner"}
    sql = "SELECT 1; SELECT n, NULL AS no, '' AS empty, 'a \"b\", c' FROM generate_series(1, 900) n"
    answer = carol.post(f"{still_shop.url}/query", {**place, "sql": sql, "csv": "1"})
    assert answer["Content-Type"] == "text/csv; charset=utf-8"
    lines = answer.content.decode().split("\r\n")
    assert lines[0] == "n,no,empty,?column?"
    assert (lines[900], len(lines)) == ('900,,"","a ""b"", c"', 902)
    # The statements run again, so they must not change anything.
    again = {**place, "sql": "CREATE TABLE twice (n int)", "csv": "0"}
    assert (
        "Downloads run the statements again"
        in Page(carol.post(f"{still_shop.url}/query", again)).text
    )


@pytest.mark.thorough
def test_a_query_that_takes_too_long_is_ended(
    run_sql: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(QueryForm.base_fields["seconds"], "choices", [(1, "1 s")])
    page = run_sql("SELECT pg_sleep(20)", seconds="1")
    assert "statement timeout" in page.text
    assert "Choose a longer timeout" in page.text


def test_a_cancelled_query_is_no_error(run_sql: Any) -> None:
    page = run_sql("SELECT pg_cancel_backend(pg_backend_pid()), pg_sleep(20)")
    assert re.search(r"Cancelled after [\d.]+ m?s\. Nothing was changed\.", page.text)
    assert 'data-result="cancelled"' in page.html
    assert "alert" not in page.html[page.html.index('id="answer"') :]
    assert "SQLSTATE" not in page.text


def test_after_a_cancel_it_is_not_said_that_nothing_was_changed_if_it_may_have_been(
    run_sql: Any,
) -> None:
    cancels = "SELECT pg_cancel_backend(pg_backend_pid()), pg_sleep(20)"
    page = run_sql(f"CREATE TABLE stays (n int); COMMIT; {cancels}", read_only=False)
    assert "What was not committed was rolled back." in page.text
    assert "Nothing was changed" not in page.text
    assert run_sql("SELECT to_regclass('stays')").rows()[-1] == "stays"
    run_sql("DROP TABLE stays", read_only=False)


def test_a_server_that_breaks_is_described_in_a_sentence(
    run_sql: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = 'endpoint could not start: could not open file "pg_control": No such file'

    def fail(*args: Any, **options: Any) -> None:
        raise SqlFailed(raw, code="57P03")

    monkeypatch.setattr(sql_over_http, "run", fail)
    page = run_sql("SELECT 1")
    assert "The branch's data is damaged or incomplete. (SQLSTATE 57P03)" in page.text
    assert f"Details {raw}" in page.text


def test_only_the_first_of_many_rows_are_shown(run_sql: Any) -> None:
    page = run_sql("SELECT n FROM generate_series(1, 1200) n")
    assert f"1200 rows, of which the first {MAX_ROWS} are shown" in page.text
    assert str(MAX_ROWS) in page.rows()[-1]


def test_a_long_value_is_cut(run_sql: Any) -> None:
    page = run_sql("SELECT repeat('x', 5000)")
    assert "(5000 characters)" in page.text
    assert "x" * 1001 not in page.text


def test_an_answer_that_is_too_large_is_refused_with_a_reason(
    run_sql: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_over_http, "MAX_RESULT_BYTES", 1 << 20)
    page = run_sql("SELECT repeat('x', 1000) FROM generate_series(1, 3000)")
    assert "larger than 1 MiB. Select fewer rows, with LIMIT" in page.text


@pytest.mark.parametrize("typed", ["", " ", "-- nothing", ";;"])
def test_nothing_to_run(run_sql: Any, typed: str) -> None:
    assert "Enter a statement." in run_sql(typed).text


def test_markup_in_values_stays_text(run_sql: Any) -> None:
    page = run_sql("SELECT '<script>alert(1)</script>' AS \"<b>\"")
    assert "<script>alert" not in page.html
    assert "<b>" not in page.html


def test_a_role_that_does_not_exist_is_reported(run_sql: Any) -> None:
    assert "Role not found" in run_sql("SELECT 1", role="nobody").text


class TestTables:
    def test_it_works(self, run_sql: Any) -> None:
        run_sql(
            'CREATE SCHEMA "my shop"; CREATE TABLE "my shop"."the ""birds" (id int PRIMARY KEY, '
            "name varchar(9)); CREATE VIEW few AS SELECT 1 AS n",
            read_only=False,
        )
        page = run_sql("SELECT kept", act="tables")
        for name in ("my shop", 'the "birds', "id integer", "character varying(9)", "few view"):
            assert name in page.text
        assert page.fields["sql"] == "SELECT kept"
        run_sql('DROP SCHEMA "my shop" CASCADE; DROP VIEW few', read_only=False)

    def test_a_database_without_tables(self, run_sql: Any) -> None:
        page = run_sql("", act="tables", htmx=True)
        assert "This database has no tables yet." in page.text
        assert page.html.strip().startswith('<section id="tables"')

    def test_a_failure_is_shown_in_place_of_the_tables(self, run_sql: Any) -> None:
        page = run_sql("", act="tables", htmx=True, role="nobody")
        assert page.html.strip().startswith('<section id="tables"')
        assert "Role not found" in page.text

    @pytest.mark.parametrize("value", ["x", "[1, 2]", '["a"]', '["a", "b\\u0000"]', "[" * 100_000])
    def test_an_invalid_table_is_none(self, value: str) -> None:
        assert read_table(value) is None

    def test_half_a_character_in_an_address_is_replaced(self) -> None:
        table = read_table('["public", "\\ud800"]')
        assert table is not None
        assert table.name == "\ufffd"
        assert read_row_name('["\\udfff", null]', 2) == ["\ufffd", None]
        rows: list[list[str | None]] = [["public", "a", "r", '[["\\ud800", "text"]]']]
        ((_, (listed,)),) = listed_tables(Result("SELECT", 1, [], rows))["schemas"]
        assert listed.columns == [("\ufffd", "text")]

    def test_columns_that_cannot_be_read_are_left_out(self) -> None:
        rows: list[list[str | None]] = [["public", "a", "r", "[[1]]"], ["public", "b", "v", None]]
        rows.append(["public"])
        ((_, tables),) = listed_tables(Result("SELECT", 3, [], rows))["schemas"]
        assert [(one.name, one.kind, one.columns) for one in tables] == [
            ("a", "", []),
            ("b", "view", []),
        ]


class TestAccess:
    def test_a_read_only_key_sees_no_password(self, carol: Person, still_shop: Shop) -> None:
        made = carol.api.post("/api_keys", {"key_name": "r", "read_only": True})
        reader = Browser()
        reader.post("/sign-in", {"key": made["key"]})
        page = Page(reader.get(f"{still_shop.url}/query"))
        assert "You are signed in with a read-only API key" in page.text
        assert "sql" not in page.fields

    def test_another_server_has_no_query_page(self, dave: Person, misbehaving: Misbehaving) -> None:
        assert dave.get("/projects/a-b-1/query").status_code == 404
        assert misbehaving.asked == []

    def test_a_project_without_an_endpoint(self, alice: Person, shop: Shop) -> None:
        shop.client.finish(shop.client.delete(f"{shop.path}/endpoints/{shop.endpoint_id}"))
        assert "No endpoint" in Page(alice.get(f"{shop.url}/query")).text


class TestConnection:
    def test_the_certificate_is_verified(
        self, run_sql: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(authority, "authority", lambda server: "")
        assert "The console does not trust the certificate" in run_sql("SELECT 1").text

    def test_the_authorities_are_read_once(
        self, run_sql: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run_sql("SELECT 1")
        monkeypatch.delattr(ssl.SSLContext, "load_default_certs")
        monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", None, raising=False)
        assert "forty-two" in run_sql("SELECT 'forty' || '-two'").text

    @pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]", "ep-x.localhost"])
    def test_another_server_cannot_name_this_machine(self, host: str) -> None:
        server = Server("far", "https://api.example.com/api/v2")
        with pytest.raises(SqlFailed, match="leads to"):
            sql_over_http._address(server, f"postgresql://a:b@{host}:5432/db")

    @pytest.mark.parametrize("uri", ["", "postgresql:///db", "postgresql://a@h:port/db", "x://[/"])
    def test_an_invalid_connection_string(self, uri: str) -> None:
        with pytest.raises(SqlFailed, match="connection string"):
            sql_over_http._address(Server("", "http://127.0.0.1/api/v2"), uri)

    def test_limits_are_sent_with_the_endpoints_name(self) -> None:
        uri = "postgresql://a:p%40ss@localhost:1/db?sslmode=require&options=endpoint%3Dep-x"
        sent = sql_over_http._with_options(uri, seconds=10, read_only=True)
        assert sent.startswith("postgresql://a:p%40ss@localhost:1/db?")
        assert "options=endpoint%3Dep-x+-c+statement_timeout%3D10000+-c+standard" in sent
        assert "+-c+default_transaction_read_only%3Don" in sent


def test_the_statements_of_one_query_are_limited(run_sql: Any) -> None:
    page = run_sql("SELECT 1;" * (MAX_STATEMENTS + 1))
    assert f"At most {MAX_STATEMENTS} statements" in page.text


def test_htmx_gets_a_refusal_in_place(run_sql: Any) -> None:
    page = run_sql("SELECT 1", htmx=True, branch="")
    assert page.html.strip().startswith('<section id="answer"')
    assert "Choose an existing branch" in page.text
    page = run_sql("", htmx=True, branch="", act="tables")
    assert page.html.strip().startswith('<section id="tables"')


class TestOutdatedPage:
    """The user has signed in again, or out, in another tab."""

    data: ClassVar = {
        "branch": "br-1",
        "database": "neondb",
        "role": "neondb_owner",
        "sql": "SELECT 'what I typed'",
        "csrfmiddlewaretoken": "of-before",
    }

    def test_nothing_is_executed(self, carol: Person, still_shop: Shop) -> None:
        strict = Browser(enforce_csrf_checks=True)
        strict.cookies = carol.browser.cookies
        data = self.data | {"branch": still_shop.main_id}
        own = {"Origin": "http://testserver"}
        page = Page(strict.post(f"{still_shop.url}/query", data, headers=own))
        assert "You have signed in again since this page was loaded" in page.text
        assert page.fields["sql"] == data["sql"]
        assert not page.rows()

    @pytest.mark.parametrize("by", [{}, {"HX-Request": "true"}])
    def test_the_typed_query_stays_after_signing_out(
        self, still_shop: Shop, by: dict[str, str]
    ) -> None:
        page = Page(Browser().post(f"{still_shop.url}/query", self.data, headers=by))
        assert "Sign in again" in page.text
        assert by or page.fields["sql"] == self.data["sql"]


def test_an_answer_is_shown_even_if_the_lists_cannot_be_read(
    carol: Person, still_shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise ServerError("out of order")

    monkeypatch.setattr("console.api.management_api.ManagementAPI.branches", fail)
    data = {"branch": still_shop.main_id, "database": "neondb", "role": "neondb_owner"}
    page = Page(carol.post(f"{still_shop.url}/query", {**data, "sql": "SELECT 'here'"}))
    assert page.rows()[-1] == "here"

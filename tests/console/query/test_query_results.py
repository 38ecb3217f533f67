"""How the query page splits what is typed into statements, marks the position of an error, and
shows rows; and that an import of a CSV file reads no more than it takes. None needs a service."""

import json
import time
from typing import Any

import pytest
from django.template.loader import render_to_string

from console.query import statements, table_imports
from console.query.csv_text import MAX_FIELDS, UnreadableCsv
from console.query.place import Refused
from console.query.results import (
    MAX_PAGE_LENGTH,
    MAX_PLAN_LENGTH,
    MIN_CELL_LENGTH,
    MIN_COLUMNS,
    _Room,
    _step,
    mark_of,
    shown_results,
)
from console.query.sql_over_http import (
    MAX_NOTICES,
    MAX_WORDS_LENGTH,
    Column,
    Result,
    SqlFailed,
    _refused,
)
from console.query.statements import MAX_STATEMENTS, TOKEN, Statement, split
from console.query.table_description import (
    MAX_COLUMNS,
    Description,
    Table,
    TableColumn,
    listed_tables,
)
from console.query.table_pages import read_sizes
from console.templatetags.reasons import reason
from tests.support.psql_statements import psql_statements

A_BODY = "begin atomic insert into t values (1); select case when true then (case 1 end) end; end"
# Each is split as psql splits it.
HARD_TO_SPLIT = [
    "create function days(begin date, finish date) returns int return 1; select 1",
    f"create function f(begin int, case int) returns int {A_BODY}; select 1",
    f"CREATE OR REPLACE PROCEDURE p(a int) {A_BODY.upper()}; select 1; select 2",
    "create function f() returns int return case when true then 1 end; select 1",
    "create table t (begin int); select begin from t; end; select 1",
    "create function beginning() returns int return 1; select 1",
    'create function "begin"() returns int return 1; select 1',
    "create rule r as on insert to t do (insert into a values (1); delete from b); select 1",
    "select ) ; select (1; 2",
    r"select 'a\'; select e'\';', E'a'';b', U&'a;\0441'; select 1",
    'select U&"a;b", "a"";b"; select x\'1f\', nameE\'a\'; select 1',
    "select 'a' -- ; '\n  'b;c'; select 1",
    "select $$;$$, $a$ ; $b$ $$ $a$, $é$;$é$; select a$$;$$1; select é$$; select 😀$$; select $1;",
    "/* ; /* ; */ ; */ select 1 /* -- */; -- ; '\rselect 2; select +--;\n1; select */*;*/1",
    "select\u00a01;\u2028select\x0b2\x0c;select\x853",
    "select 'unclosed ; x",
    "select 1; /* unclosed ; x",
]


class TestStatements:
    @pytest.mark.parametrize(
        ("typed", "found"),
        [
            ("select 1; select 2;", ["select 1", "select 2"]),
            ("select ';' ; -- ;\n select $a$ ; $b$ $a$", ["select ';'", "select $a$ ; $b$ $a$"]),
            ("/* ; /* ; */ */ -- x", []),
            ("create rule r as on insert to t do (a; b); x", None),
            ("create or replace function f() returns int begin atomic select case when true "
             "then 1 end; end; select 3", None),
            ("begin; commit", ["begin", "commit"]),
            # Postgres takes them so; psql takes the first for the begin of a body, and reads the
            # second, which is one string, as two.
            ("create function f(begin date) returns date return begin; select 1", None),
            ("select E'a' -- '\n'b\\';c'; select 1", None),
            (r"select e'\';', E'a'';'; x", [r"select e'\';', E'a'';'", "x"]),
            ('select "a;b"; do $$ begin; end $$', ['select "a;b"', "do $$ begin; end $$"]),
            ("select $1; select a$b$c; x", ["select $1", "select a$b$c", "x"]),
            ("select 'unclosed ; ", ["select 'unclosed ; "]),
        ],
    )  # fmt: skip
    def test_where_a_statement_ends(self, typed: str, found: list[str] | None) -> None:
        texts = [one.text for one in split(typed)]
        assert texts == found if found is not None else len(texts) == 2

    def test_statements_end_where_psql_ends_them(self) -> None:
        for typed, sent in zip(HARD_TO_SPLIT, psql_statements(HARD_TO_SPLIT), strict=True):
            found = [one.text for one in split(typed)]
            assert len(found) == len(sent), typed
            assert all(text in one for text, one in zip(found, sent, strict=True)), typed

    def test_each_statement_has_its_position(self) -> None:
        typed = "  -- first\n select 1 ;\n\n /* x */ select 2"
        for one in split(typed):
            assert typed[one.start :].startswith(one.text)

    def test_long_statements_are_parsed_quickly(self) -> None:
        for typed in ("'" + "''" * 200_000, "/*" * 200_000, "$a$" + "$" * 200_000, "(" * 200_000):
            assert len(split(typed)) <= 1

    def test_what_follows_too_many_statements_is_not_read(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tokens: list[object] = []

        class Counted:
            def match(self, *place: Any) -> Any:
                tokens.append(place)
                return TOKEN.match(*place)

        monkeypatch.setattr(statements, "TOKEN", Counted())
        assert len(split("a;" * 10_000)) == MAX_STATEMENTS + 1
        assert len(tokens) == 2 * (MAX_STATEMENTS + 1)


class TestMarks:
    def mark(self, typed: str, position: int, statement: int = 0) -> Any:
        failure = SqlFailed("x", position=position, statement=statement)
        return mark_of(failure, typed, split(typed))

    def test_an_error_at_the_end_of_the_input(self) -> None:
        mark = self.mark("SELECT (", 9)
        assert (mark.before, mark.marked, mark.after) == ("SELECT (", "", "")

    def test_an_error_after_characters_outside_ascii(self) -> None:
        assert self.mark("SELECT 'žluť', x", 16).marked == "x"

    def test_an_error_without_a_position(self) -> None:
        assert self.mark("SELECT 1", 0) is None
        assert self.mark("SELECT 1", 99) is None
        assert self.mark("SELECT 1", 1, statement=4) is None
        assert (
            mark_of(SqlFailed("x", position=3), "y", [Statement("y", 0)], prefix="EXPLAIN ") is None
        )


def test_rows_of_any_shape_are_shown() -> None:
    result = Result("SELECT", None, [Column("a", "")], [["x", "more"], [None], []])
    (shown,) = shown_results([result])
    assert [[cell.text for cell in row] for row in shown.rows] == [["x"], ["NULL"], []]


def test_the_results_shown_fit_on_one_page() -> None:
    """However small the cells are, and however many results there are."""
    columns = [Column(f"c{n}", "") for n in range(1600)]
    wide = Result("SELECT", 500, columns, [[""] * 1600] * 500)
    results = shown_results([wide] * 5)
    cells = sum(len(row) for one in results for row in one.rows)
    assert 1600 < cells <= MAX_PAGE_LENGTH / MIN_CELL_LENGTH
    assert [one.received for one in results] == [500] * 5


PLAN = [Column("QUERY PLAN", "json")]


def plan_of(steps: int) -> Result:
    node = '{"Node Type":"Seq Scan","Filter":"x"}'
    children = ",".join([node] * steps)
    text = f'[{{"Plan":{{"Node Type":"Append","Plans":[{children}]}}}}]'
    return Result("EXPLAIN", 1, PLAN, [[text]])


def test_the_trees_of_a_page_have_a_limited_number_of_steps_and_details() -> None:
    large, *small, last = shown_results([plan_of(450_000), *[plan_of(1_000)] * 3])
    assert large.plan_tree is None
    assert large.plan.endswith(f"… ({len(plan_of(450_000).rows[0][0] or '')} characters)")
    assert [one.plan_tree is not None for one in (*small, last)] == [True, True, False]


def test_a_scan_of_some_hundred_partitions_is_shown_as_a_tree() -> None:
    figures = {f"Figure {n}": 1 for n in range(4)}
    steps = [{"Node Type": "Index Scan", **figures}] * 900
    text = json.dumps([{"Plan": {"Node Type": "Append", "Plans": steps}}])
    (shown,) = shown_results([Result("EXPLAIN", 1, PLAN, [[text]])])
    assert shown.plan_tree is not None


@pytest.mark.parametrize("of", ["steps", "details"])
def test_a_plan_is_read_only_as_far_as_it_can_be_shown(of: str) -> None:
    class Counted(dict[str, Any]):
        read = 0

        def get(self, *name: Any) -> Any:
            Counted.read += 1
            return super().get(*name)

        def items(self) -> Any:
            for item in super().items():
                Counted.read += 1
                yield item

    node = Counted({"Node Type": "a", "Plans": [Counted({"Node Type": "b"})] * 100_000})
    if of == "details":
        node = Counted({"Node Type": "a", **{f"{n}": 1 for n in range(100_000)}})
    with pytest.raises(ValueError, match="too many"):
        _step(node, 1, _Room(100), has_run=False)
    assert Counted.read < 2_000


def test_a_very_long_plan_is_shown_as_text() -> None:
    detail = "x" * MAX_PLAN_LENGTH
    text = json.dumps([{"Plan": {"Node Type": "Seq Scan", "Filter": detail}}])
    (shown,) = shown_results([Result("EXPLAIN", 1, PLAN, [[text]])])
    assert shown.plan_tree is None


@pytest.mark.parametrize("number", ["1" + "0" * 400, "1e999", "-1e999", "NaN"])
def test_numbers_of_a_plan_that_no_postgres_reports_count_as_none(number: str) -> None:
    figures = f'"Plan Rows":{number},"Total Cost":{number},"Actual Total Time":{number}'
    text = f'[{{"Plan":{{"Node Type":"a",{figures}}},"Planning Time":{number}}}]'
    (shown,) = shown_results([Result("EXPLAIN", 1, PLAN, [[text]])])
    assert shown.plan_tree is not None
    assert shown.plan_tree.times == "planned in 0.00 ms"


def test_the_columns_of_a_page_are_limited() -> None:
    wide = Result("SELECT", 0, [Column("c", "")] * 65_535, [])
    first, *others = shown_results([wide] * 50)
    assert len(first.columns) == MAX_PAGE_LENGTH / MIN_CELL_LENGTH
    assert {len(one.columns) for one in others} == {MIN_COLUMNS}
    page = render_to_string("_query_answer.html", {"results": [others[0]], "repeated": {}})
    assert f"0 rows; the first {MIN_COLUMNS} of 65535 columns are shown" in page


def test_the_columns_of_the_listed_tables_are_limited() -> None:
    columns = json.dumps([["a", "int"]] * (MAX_COLUMNS - 1))
    rows = [["public", name, "r", columns] for name in ("a", "b", "x" * 1000)]
    listed = listed_tables(Result("SELECT", 3, [], rows))
    ((_, tables),) = listed["schemas"]
    assert [len(table.columns) for table in tables] == [MAX_COLUMNS - 1, 1]
    assert listed["most_columns"] == MAX_COLUMNS
    assert len(read_sizes("{" + "1," * 1_000_000 + "9" * 5000 + "}")) < 2000


def test_long_words_of_a_failure_are_cut_and_read_quickly() -> None:
    words = "ERROR: " + "; change it" * 100_000 + "\n."
    began = time.process_time()
    assert reason(words).raw == words
    assert time.process_time() - began < 2
    failure = _refused({"message": words, "perch:notices": [{"message": words}] * 1000}, step=1)
    assert len(failure.message) == len(failure.notices[0].message) == MAX_WORDS_LENGTH
    assert failure.message == words[: MAX_WORDS_LENGTH - 1] + "…"
    assert len(failure.notices) == MAX_NOTICES


COLUMN = TableColumn(
    "a", "text", "text", is_nullable=True, is_generated=False, is_identity=False,
    is_long=True, is_exact=True, operators=(),
)  # fmt: skip
DESCRIBED = Description(
    Table("public", "t"), [COLUMN], [], 0, is_insertable=True, is_updatable=True, has_rules=False
)


def test_a_file_of_too_many_values_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_imports, "MAX_VALUES", 20_000)

    def seconds(lines: int) -> float:
        began = time.process_time()
        with pytest.raises(Refused, match="more than 20,000 values"):
            table_imports._read(DESCRIBED, b"a\n" + b"\n" * lines)
        return time.process_time() - began

    fewest = min(seconds(30_000) for _ in range(3))
    assert min(seconds(3_000_000) for _ in range(2)) < 20 * fewest


def test_a_row_of_too_many_fields_is_not_read_to_its_end() -> None:
    with pytest.raises(UnreadableCsv, match="Line 2 has more than 2,000 fields"):
        table_imports._read(DESCRIBED, b"a\n" + b"," * (MAX_FIELDS + 1))


def test_the_names_of_a_file_are_not_looked_for_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked_for: list[str] = []
    monkeypatch.setattr(Description, "column", lambda _, name: looked_for.append(name))
    columns, _ = table_imports._read(DESCRIBED, b"a\nx\n")
    assert (columns, looked_for) == ([COLUMN], [])

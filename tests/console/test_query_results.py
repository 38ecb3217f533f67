"""How the query page splits what is typed into statements, marks the position of an error, and
shows rows. No test here needs a service."""

from typing import Any

import pytest

from console.query.results import LEAST_CELL, MOST_CHARACTERS, all_shown, mark_of
from console.query.sql_over_http import Column, Result, SqlFailed
from console.query.statements import Statement, split


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
            (r"select e'\';', E'a'';'; x", [r"select e'\';', E'a'';'", "x"]),
            ('select "a;b"; do $$ begin; end $$', ['select "a;b"', "do $$ begin; end $$"]),
            ("select $1; select a$b$c; x", ["select $1", "select a$b$c", "x"]),
            ("select 'unclosed ; ", ["select 'unclosed ; "]),
        ],
    )  # fmt: skip
    def test_where_a_statement_ends(self, typed: str, found: list[str] | None) -> None:
        texts = [one.text for one in split(typed)]
        assert texts == found if found is not None else len(texts) == 2

    def test_each_statement_has_its_position(self) -> None:
        typed = "  -- first\n select 1 ;\n\n /* x */ select 2"
        for one in split(typed):
            assert typed[one.start :].startswith(one.text)

    def test_long_statements_are_parsed_quickly(self) -> None:
        for typed in ("'" + "''" * 200_000, "/*" * 200_000, "$a$" + "$" * 200_000, "(" * 200_000):
            assert len(split(typed)) <= 1


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
    (shown,) = all_shown([result])
    assert [[cell.text for cell in row] for row in shown.rows] == [["x"], ["NULL"], []]


def test_the_results_shown_fit_on_one_page() -> None:
    """However small the cells are, and however many results there are."""
    columns = [Column(f"c{n}", "") for n in range(1600)]
    wide = Result("SELECT", 500, columns, [[""] * 1600] * 500)
    results = all_shown([wide] * 5)
    cells = sum(len(row) for one in results for row in one.rows)
    assert 1600 < cells <= MOST_CHARACTERS / LEAST_CELL
    assert [one.received for one in results] == [500] * 5

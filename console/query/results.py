"""What the query page shows: results, shortened for reading, and the position of an error."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest

from console.query.plans import Plan, read_plan
from console.query.sql_over_http import Column, Notice, Result, SqlFailed
from console.query.statements import Statement

# The most that is shown: rows of a result, characters of a value, and characters of a page. Each
# cell counts as at least MIN_CELL_LENGTH characters, because even a short one takes time to draw.
MAX_ROWS, MAX_VALUE_LENGTH, MAX_PAGE_LENGTH, MIN_CELL_LENGTH = 500, 1000, 400_000, 20
# Written before each statement to be explained.
EXPLAIN, ANALYZE = "EXPLAIN (FORMAT JSON) ", "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "
WORD = re.compile(r"\w+|\S|$")


@dataclass(frozen=True)
class Cell:
    text: str
    is_null: bool = False
    is_number: bool = False
    # The number of characters, or bytes in a page of a table, of the value if `text` is only its
    # beginning; otherwise 0.
    whole: int = 0
    # The name of the column of a table.
    column: str = ""


@dataclass(frozen=True)
class ShownResult:
    command: str
    row_count: int | None
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    # How many rows were received. If there are many, `rows` has only the first ones.
    received: int
    # The statement of this result, if there are several.
    statement: str = ""
    # How many characters of the page it takes.
    size: int = 0
    notices: Sequence[Notice] = ()
    notices_left_out: int = 0
    # The plan in JSON, as received; "" if the result is no plan.
    plan_json: str = ""

    @property
    def is_cut(self) -> bool:
        return len(self.rows) < self.received

    @property
    def is_plan(self) -> bool:
        return [column.name for column in self.columns] == ["QUERY PLAN"]

    @cached_property
    def plan_tree(self) -> Plan | None:
        return read_plan(self.plan_json) if self.plan_json else None

    @property
    def plan(self) -> str:
        return "\n".join(row[0].text for row in self.rows if row)


def shown_results(results: Sequence[Result], statements: Sequence[str] = ()) -> list[ShownResult]:
    """Return what is shown of each result. Earlier results use up the page's characters first."""
    found, room = [], MAX_PAGE_LENGTH
    for result, statement in zip_longest(results, statements[: len(results)], fillvalue=""):
        assert isinstance(result, Result)
        found.append(_shown_result(result, statement, room=room))
        room -= found[-1].size
    return found


def _shown_result(result: Result, statement: str, *, room: int) -> ShownResult:
    is_number = [column.is_number for column in result.columns]
    rows: list[list[Cell]] = []
    size = MIN_CELL_LENGTH * len(result.columns)
    for row in result.rows[:MAX_ROWS]:
        cells = [_cell(*pair) for pair in zip(row, is_number, strict=False)]
        size += sum(max(MIN_CELL_LENGTH, len(cell.text)) for cell in cells)
        if size > room:
            break
        rows.append(cells)
    return ShownResult(
        result.command,
        result.row_count,
        result.columns,
        rows,
        len(result.rows),
        statement,
        size,
        result.notices,
        result.notices_left_out,
        _plan_json(result),
    )


def _plan_json(result: Result) -> str:
    columns = [(column.name, column.type) for column in result.columns]
    if columns != [("QUERY PLAN", "json")] or len(result.rows) != 1:
        return ""
    (value,) = result.rows[0]
    return value if isinstance(value, str) else ""


def _cell(value: str | None, is_number: bool) -> Cell:
    if value is None:
        return Cell("NULL", is_null=True)
    text = value if isinstance(value, str) else json.dumps(value)
    is_long = len(text) > MAX_VALUE_LENGTH
    return Cell(text[:MAX_VALUE_LENGTH], is_number=is_number, whole=len(text) if is_long else 0)


@dataclass(frozen=True)
class Mark:
    """The position of an error in what was typed: its line, in three parts."""

    line: int
    before: str
    marked: str
    after: str
    # The range, in characters of what was typed.
    start: int
    end: int


def mark_of(
    failure: SqlFailed, typed: str, statements: Sequence[Statement], *, prefix: str = ""
) -> Mark | None:
    """Return the position of the error; None if Postgres gives none, or one outside what was
    typed."""
    place = failure.position - 1 - len(prefix)
    if not 0 <= failure.statement < len(statements) or failure.position < 1 or place < 0:
        return None
    start = statements[failure.statement].start + place
    if start > len(typed):
        return None
    found = WORD.search(typed, start)
    end = found.end() if found and found.start() == start else min(start + 1, len(typed))
    begin = typed.rfind("\n", 0, start) + 1
    line_end = typed.find("\n", start)
    line = typed[begin : line_end if line_end >= 0 else len(typed)].rstrip("\r")
    return Mark(
        line=typed.count("\n", 0, start) + 1,
        before=line[: start - begin],
        marked=line[start - begin : end - begin],
        after=line[end - begin :],
        start=start,
        end=end,
    )
